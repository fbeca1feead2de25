"""The command line of `simnet measure` and `python -m binsgdm measure`; torch is imported when a command runs."""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from binsgdm.bench.gpu.parts import BUDGET_S, PARTS
from binsgdm.errors import INSTALL_TORCH, BinsgdmError
from binsgdm.options import RareOption

if TYPE_CHECKING:
    from binsgdm.bench.ranks import Ranks
    from binsgdm.bench.record import Bench

FAILED, MISTAKE, INTERRUPTED = 1, 2, 130
BYTES_PER_S = 1e9 / 8
Work = Callable[["Bench"], None]


class _Count(click.ParamType[int]):
    """A whole number above 0, written plainly or as a power of two, below 2^40."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        match = re.fullmatch(r"([1-9][0-9]{0,14})|2\^([0-9]|[1-3][0-9])", str(value))
        if match is None:
            self.fail(f"{value!r}: write a whole number above 0, at most 2^39, such as 65536 or 2^16", param, ctx)
        return int(match[1]) if match[1] else int(2 ** int(match[2]))


COUNT = _Count()


@click.group(
    "measure",
    help="Time the parts of training, and keep every sample in a measurement file.\n\n"
    "Runs on one rank, or on all ranks that torchrun starts; the slowest rank counts, and rank 0 writes. Needs torch.",
    epilog="\b\nExample:\n  simnet measure kernels -o kernels.json\n"
    "  torchrun --nproc-per-node 2 -m binsgdm measure collectives -o collectives.json",
)
def measure() -> None:
    """Run `simnet measure`."""


def _common(max_seconds: float) -> list[click.Parameter]:
    """Return the options of every command but gpu."""
    return [
        click.Option(
            ["-o", "--output"], type=click.Path(path_type=Path), default="measurements.json", show_default=True,
            help="File for the measurements.",
        ),
        click.Option(["--force"], is_flag=True, help="Replace an existing file."),
        click.Option(
            ["--device"], type=click.Choice(["cpu", "cuda"]),
            help="Device of every rank.  [default: cuda if each rank has a GPU]",
        ),
        RareOption(["--threads"], type=click.IntRange(1, 4096), help="Threads of a rank.  [default: torch's]"),
        RareOption(
            ["--ranks-per-node"], type=click.IntRange(1, 4096),
            help="Ranks on each node.  [default: LOCAL_WORLD_SIZE]",
        ),
        click.Option(
            ["--nic-gbit-per-s"], type=click.FloatRange(0, min_open=True),
            help="NIC bandwidth of a node, noted in the file.",
        ),
        RareOption(
            ["--nic-latency-ms"], type=click.FloatRange(0, min_open=True),
            help="Latency, one way, that a shaper adds to a node's NIC, noted in the file.",
        ),
        RareOption(["--network"], default="", help="Description of the network, noted in the file."),
        RareOption(
            ["--speed", "with_speed"], is_flag=True,
            help="Time fixed pieces of work, too, now and then: they show how fast a shared machine is meanwhile.",
        ),
        RareOption(
            ["--relative-error"], type=click.FloatRange(0, 1, min_open=True), default=0.03, show_default=True,
            help="Repeat a measurement until the 95 % interval of its median is this narrow.",
        ),
        RareOption(
            ["--max-repetitions"], type=click.IntRange(8, 100_000), default=100, show_default=True,
            help="Largest number of repetitions of a measurement.",
        ),
        RareOption(
            ["--max-seconds"], type=click.FloatRange(0, min_open=True), default=max_seconds, show_default=True,
            help="Longest time of a measurement [s].",
        ),
    ]  # fmt: skip


def _command(name: str, *, about: str, example: str, max_seconds: float) -> Callable[[Callable[..., Work]], None]:
    """Return what makes a command of a function that takes the command's own options and returns its work."""

    def decorate(function: Callable[..., Work]) -> None:
        command_options: list[click.Parameter] = getattr(function, "__click_params__", [])
        command = click.Command(
            name,
            params=[*reversed(command_options), *_common(max_seconds)],
            callback=lambda **options: run(function, options),
            help=about,
            short_help=about.partition("\n")[0],
            epilog=f"\b\nExample:\n  {example}",
        )
        measure.add_command(command)

    return decorate


@contextmanager
def _torch_needed() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise BinsgdmError(f"measure: needs torch and numpy ({error}): {INSTALL_TORCH}") from error


def run(function: Callable[..., Work], options: dict[str, Any]) -> None:
    """Measure, write the file, and say what was found."""
    with _torch_needed():
        from binsgdm.bench.ranks import joined
        from binsgdm.bench.record import Bench, Record, SpeedProbe, check_writable, shown_progress
        from binsgdm.bench.timing import StopRule
    start = time.perf_counter()
    output, force = options.pop("output"), options.pop("force")
    stop_rule = StopRule(**{name: options.pop(name) for name in ("relative_error", "max_repetitions", "max_seconds")})
    rate, latency_ms = options.pop("nic_gbit_per_s"), options.pop("nic_latency_ms")
    network, with_speed = options.pop("network"), options.pop("with_speed")
    layout = {name: options.pop(name) for name in ("device", "ranks_per_node", "threads")}
    work = function(**options)
    with joined(**layout) as ranks:
        _on_rank_0(ranks, partial(check_writable, output, force=force))
        if ranks.rank == 0 and ranks.num_nodes > 1 and rate is None:
            # Now, since simnet validate would ask for it when the training is over.
            click.echo(f"note: {ranks.num_nodes} nodes: to predict these times, give --nic-gbit-per-s", err=True)
        nic = {"nic_bytes_per_s": rate and rate * BYTES_PER_S}
        record = Record(ranks, **nic, nic_latency_s=(latency_ms or 0) / 1e3, network=network)
        speed = SpeedProbe(ranks) if with_speed else None
        bench = Bench(record=record, ranks=ranks, stop_rule=stop_rule, probe=speed.sample if speed else lambda: None)
        with shown_progress("measuring") if ranks.rank == 0 else nullcontext(bench.progress) as progress:
            work(replace(bench, progress=progress))
        if speed:
            speed.add_to(record)
        _on_rank_0(ranks, partial(record.write, output))
    if ranks.rank:
        return
    click.echo(record.table())
    samples, elapsed_s = sum(len(series["values"]) for series in record.series), time.perf_counter() - start
    line = f"wrote {output}: {len(record.series)} series, {samples} samples in {elapsed_s:.1f} s"
    if missed := record.imprecise(wanted := stop_rule.relative_error):
        line += f"; {missed} did not reach {wanted:.0%}: allow more with --max-seconds, or use an idle machine"
    click.echo(line, err=True)


def _on_rank_0(ranks: "Ranks", work: Callable[[], object]) -> None:
    """Let rank 0 work for all. A mistake stops all ranks: rank 0 raises it, the others end without a word."""

    def refusal() -> str:
        try:
            work()
        except BinsgdmError as error:
            return str(error)
        return ""

    if reason := ranks.from_rank_0(refusal):
        if ranks.rank:
            raise SystemExit(MISTAKE)
        raise BinsgdmError(reason)


_MODELS = (
    "mlp_200k, mlp_2m, mlp_4m, mlp_25m, cnn_400k, cnn_6m, transformer_1m, transformer_10m, transformer_25m, or "
    "module:function, a function of the batch size that returns (module, inputs, loss of the output)."
)
_MODEL = click.option("--model", default="mlp_4m", show_default=True, help=_MODELS)
_SEVERAL = click.option(
    "--model", "models", multiple=True, default=("mlp_4m",), show_default=True, help=f"{_MODELS} Repeatable."
)
_BATCH = click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Samples per rank.")
_FLOATS = click.Choice(["float32", "bfloat16", "float16"])


@_command(
    "kernels",
    about="Time the kernels of BinSGDM, AdamW, copies, casts and compressing systems over sizes.",
    example="simnet measure kernels --max-size 2^24 --system qsgd:bits=4 --system power_sgd -o kernels.json",
    max_seconds=0.4,
)
@click.option(
    "--kernels", multiple=True, type=click.Choice(["reference", "cpu", "triton"]),
    help="Implementation of the kernels; repeatable.  [default: all that work here; reference up to 2^16 elements]",
)  # fmt: skip
@click.option(
    "--dtype", type=_FLOATS, default="float32", show_default=True, help="Precision of gradients and parameters."
)
@click.option("--min-size", type=COUNT, default="2^10", show_default=True, help="Elements of the smallest tensor.")
@click.option(
    "--max-size",
    type=COUNT,
    help="Elements of the largest tensor.  [default: 2^27 or a quarter of the free memory; on a GPU 2^28 or what fits]",
)
@click.option(
    "--system", "systems", multiple=True, metavar="NAME[:KEY=VALUE,...]",
    help="Compressing system to time as well, such as qsgd:bits=4, one_bit_adam or all; repeatable. Its kernels are "
    "those of its own topology, or of topology=scatter_reduce and others as an option. Payloads are decoded for the "
    "number of ranks that measure (of nodes, in a hierarchical topology), or for 4 on one rank.  [default: none]",
)  # fmt: skip
def _kernels(kernels: tuple[str, ...], systems: tuple[str, ...], **sizes: Any) -> Work:
    from binsgdm.bench import choices
    from binsgdm.bench.kernels import measure as work
    from binsgdm.bench.systems import measure as systems_work

    chosen = [choices.choice(text, "--system") for text in (choices.names() if "all" in systems else systems)]
    sized = {"min_numel": sizes["min_size"], "max_numel": sizes["max_size"]}

    def both(bench: "Bench") -> None:
        share = 1 / (1 + len(chosen))
        work(bench.part(0.0, share), kernels=kernels, dtype=sizes["dtype"], **sized)
        systems_work(bench.part(share, 1.0), systems=chosen, **sized)

    return both


@_command(
    "model",
    about="Time forward, backward (each gradient, too) and optimizers of a model, without communication.",
    example="simnet measure model --model transformer_10m --batch 8 -o model.json",
    max_seconds=30.0,
)
@_SEVERAL
@_BATCH
@click.option("--dtype", type=_FLOATS, default="float32", show_default=True, help="Precision of the parameters.")
def _model(models: tuple[str, ...], **options: Any) -> Work:
    from binsgdm.bench.model import measure as work

    return partial(work, models=models, **options)


@_command(
    "collectives",
    about="Time the collectives of all_reduce and BinSGDM in every process group, over sizes.\n\n"
    "Groups of one kind (the groups inside nodes, the groups between nodes) run at the same time. A size whose 8 "
    "repetitions take longer than --max-seconds is the last one.",
    example="torchrun --nproc-per-node 4 -m binsgdm measure collectives --ranks-per-node 2 -o collectives.json",
    max_seconds=3.0,
)
@click.option(
    "--only", multiple=True, type=click.Choice(["all_reduce", "all_to_all", "all_gather"]),
    help="Time only this collective; repeatable.  [default: all]",
)  # fmt: skip
@click.option("--min-size", type=COUNT, default="2^10", show_default=True, help="Bytes of the smallest message.")
@click.option("--max-size", type=COUNT, default="2^26", show_default=True, help="Bytes of the largest message.")
def _collectives(only: tuple[str, ...], min_size: int, max_size: int) -> Work:
    from binsgdm.bench.collectives import measure as work

    return partial(work, only=only, min_bytes=min_size, max_bytes=max_size)


@_command(
    "training",
    about="Time the steps of real training with a strategy, and their phases.",
    example="torchrun --nproc-per-node 2 -m binsgdm measure training --strategy binsgdm:overlap -o training.json",
    max_seconds=30.0,
)
@_SEVERAL
@_BATCH
@click.option(
    "--strategy", "strategies", multiple=True, default=("binsgdm",), show_default=True,
    help="all_reduce (DDP in fp32 with AdamW), binsgdm, or a compressing system with its options, such as one_bit_adam "
    "(after its dense stage), qsgd:bits=4 or top_k:ratio=0.01 (in DDP's communication hook); repeatable. Options of "
    "binsgdm, as in binsgdm:flat,overlap: flat (one group of all ranks), bf16 or one_bit (the format inside a node), "
    "gradients (a node averages gradients, not updates), overlap (the exchange overlaps backward), random or shaped "
    "(the rounding).",
)  # fmt: skip
@click.option(
    "--bucket-cap-mb",
    type=click.FloatRange(0, min_open=True),
    default=25.0,
    show_default=True,
    help="Size of a bucket in fp32 [MiB], as DDP's option.",
)
@click.option(
    "--without-messages", is_flag=True,
    help="Answer every message at once, as if all ranks had sent the same: a step's own work on every rank.",
)  # fmt: skip
def _training(models: tuple[str, ...], strategies: tuple[str, ...], **options: Any) -> Work:
    from binsgdm.bench.training import measure as work
    from binsgdm.bench.training import strategy

    return partial(work, models=models, strategies=[strategy(text) for text in strategies], **options)


@_command(
    "interference",
    about="Time backward alone, and while collectives run without a pause.",
    example="torchrun --nproc-per-node 2 -m binsgdm measure interference --model mlp_4m -o interference.json",
    max_seconds=15.0,
)
@_MODEL
@_BATCH
def _interference(**options: Any) -> Work:
    from binsgdm.bench.interference import measure as work

    return partial(work, **options)


@measure.command(
    "gpu",
    help="Measure one card, or all cards of a node, part by part, each into a file of its own.\n\n"
    "A part whose file is there is not measured again, so a run that was ended goes on where it was. A part that fails "
    "does not stop the others; the exit code is then 1. Clocks, power limits and other settings are only read.\n\n"
    f"Parts: {'; '.join(f'{part.name} ({part.about})' for part in PARTS)}.",
    short_help="Measure one card, or all cards of a node, part by part.",
    epilog="\b\nExample:\n  simnet measure gpu -o out/gpu\n  simnet measure gpu --only kernels -o out/gpu",
)
@click.option("-o", "--output", type=click.Path(), required=True, help="Folder for the files.")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="cpu tries the parts where there is no card.",
)
@click.option("--quick", is_flag=True, help="Measure the smallest sizes only, to try the command.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([part.name for part in PARTS]),
    metavar="PART",
    help="Measure this part, also where its file is there; repeatable.",
)
@click.option(
    "--budget",
    type=click.FloatRange(1, 86_400),
    default=BUDGET_S,
    show_default=True,
    help="Time of all parts [s], shared out among them.",
)
@click.option(
    "--ranks",
    type=click.IntRange(1, 64),
    help="Ranks of the parts that need several.  [default: one for each card, on a CPU 1]",
)
@click.option("--force", is_flag=True, help="Measure all parts again, also on another card.")  # fmt: skip
def _gpu(**options: Any) -> None:
    try:
        is_good = _measure_card(**options)
    except KeyboardInterrupt:
        click.echo("\nmeasure: interrupted; the parts that are done stay: the same command goes on", err=True)
        sys.exit(INTERRUPTED)
    if not is_good:
        sys.exit(FAILED)


def _measure_card(  # noqa: PLR0913 - one argument an option
    *, output: str, device: str, quick: bool, only: tuple[str, ...], budget: float, ranks: int | None, force: bool
) -> bool:
    """Look at the card, run the parts, and say what was found; return whether all is good."""
    start = time.monotonic()
    folder = _folder(output)
    if os.environ.get("WORLD_SIZE", "1") not in {"", "0", "1"}:
        raise BinsgdmError(
            "measure gpu: WORLD_SIZE: is set: this command starts its own ranks: run it without torchrun"
        )
    if math.isnan(budget):  # it lies in every range
        raise BinsgdmError("--budget nan: must be a number of seconds from 1 on")
    # Both at once would leave files of another card beside the ones that are asked for.
    if force and only:
        raise BinsgdmError("--force --only: one measures all parts again, the other some of them: give one of the two")
    with _torch_needed():
        from binsgdm.bench.gpu import card
        from binsgdm.bench.gpu.run import CardRun
    facts = card.of_card() if device == "cuda" else card.of_cpu()
    run = CardRun(folder, facts, device=device, quick=quick, starts_anew=force)
    folder.mkdir(parents=True, exist_ok=True)
    _introduce(run.content)
    is_good = run.run(
        [part for part in PARTS if part.name in only or not only],
        budget_s=budget,
        num_ranks=ranks or max(1, facts["card"]["num_cards"]),
        spent_s=time.monotonic() - start,
        again=only,
    )
    click.echo(f"wrote {folder} in {time.monotonic() - start:.0f} s", err=True)
    return is_good


def _folder(output: str) -> Path:
    """Return a folder that can be written, or made; `Path` would take empty text for the working directory."""
    folder = Path(output)
    if not output:
        raise BinsgdmError("--output '': is empty: name a folder with -o")
    if folder.exists() and not folder.is_dir():
        raise BinsgdmError(f"{folder}: is no folder: name a folder with -o")
    # The nearest folder that exists: those below it will be made.
    home = next(ancestor for ancestor in (folder, *folder.absolute().parents) if ancestor.exists())
    if not home.is_dir():
        raise BinsgdmError(f"{folder}: {home}: is no folder: name another with -o")
    if not os.access(home, os.W_OK | os.X_OK):
        raise BinsgdmError(f"{folder}: cannot be written: name another folder with -o")
    return folder


def _introduce(content: dict[str, Any]) -> None:
    """Say what is measured."""
    card, software = content["card"], content["software"]
    words = [f"{card['num_cards']} x {card['name']}" if card["num_cards"] > 1 else str(card["name"])]
    if "free_bytes" in card:
        free, whole = (card[name] / 2**30 for name in ("free_bytes", "memory_bytes"))
        words.append(f"compute capability {card['compute_capability']}, {free:.1f} of {whole:.1f} GiB free")
    known = ("driver", "cuda", "torch", "triton", "nccl")
    words += [f"{name} {software[name]}" for name in known if software.get(name)]
    for line in (f"measure: {', '.join(words)}", *(f"note: {note}" for note in content["notes"])):
        click.echo(line, err=True)
