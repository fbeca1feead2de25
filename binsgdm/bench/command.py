"""The command line of `simnet measure` and `python -m binsgdm measure`; torch is imported when a command runs."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from binsgdm.bench.gpu.command import gpu
from binsgdm.errors import INSTALL_TORCH, BinsgdmError
from binsgdm.options import rare

if TYPE_CHECKING:
    from binsgdm.bench.ranks import Ranks
    from binsgdm.bench.record import Bench, Record
    from binsgdm.bench.timing import Progress

MISTAKE = 2
BAR_STEPS = 1000
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
_COMMON = (
    click.option(
        "-o", "--output", type=click.Path(path_type=Path), default="measurements.json", show_default=True,
        help="File for the measurements.",
    ),
    click.option("--force", is_flag=True, help="Replace an existing file."),
    click.option(
        "--device", type=click.Choice(["cpu", "cuda"]),
        help="Device of every rank.  [default: cuda if each rank has a GPU]",
    ),
    rare("--threads", type=click.IntRange(1, 4096), help="Threads of a rank.  [default: torch's]"),
    rare(
        "--ranks-per-node", type=click.IntRange(1, 4096), help="Ranks on each node.  [default: LOCAL_WORLD_SIZE]"
    ),
    click.option(
        "--nic-gbit-per-s", type=click.FloatRange(0, min_open=True), help="NIC bandwidth of a node, noted in the file."
    ),
    rare(
        "--nic-latency-ms", type=click.FloatRange(0, min_open=True),
        help="Latency, one way, that a shaper adds to a node's NIC, noted in the file.",
    ),
    rare("--network", default="", help="Description of the network, noted in the file."),
    rare(
        "--speed", "with_speed", is_flag=True,
        help="Time fixed pieces of work, too, now and then: they show how fast a shared machine is meanwhile.",
    ),
    rare(
        "--relative-error", type=click.FloatRange(0, 1, min_open=True), default=0.03, show_default=True,
        help="Repeat a measurement until the 95 % interval of its median is this narrow.",
    ),
    rare(
        "--max-repetitions", type=click.IntRange(8, 100_000), default=100, show_default=True,
        help="Largest number of repetitions of a measurement.",
    ),
    rare(
        "--max-seconds", type=click.FloatRange(0, min_open=True), show_default=True,
        help="Longest time of a measurement [s].",
    ),
)  # fmt: skip


@click.group(
    "measure",
    help="Time the parts of training, and keep every sample in a measurement file.\n\n"
    "Runs on one rank, or on all ranks that torchrun starts; the slowest rank counts, and rank 0 writes. Needs torch.",
    epilog="\b\nExample:\n  simnet measure kernels -o kernels.json\n"
    "  torchrun --nproc-per-node 2 -m binsgdm measure collectives -o collectives.json",
)
def measure() -> None:
    """Run `simnet measure`."""


measure.add_command(gpu)


def _command(
    name: str, *, about: str, example: str, max_seconds: float
) -> Callable[[Callable[..., Work]], click.Command]:
    """Return what makes a command of a function that takes the command's own options and returns its work."""

    def decorate(function: Callable[..., Work]) -> click.Command:
        def callback(**options: Any) -> None:
            run(function, options)

        for option in reversed(_COMMON):
            option(callback)
        callback.__click_params__ += getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        made = measure.command(
            name, help=about, short_help=about.partition("\n")[0], epilog=f"\b\nExample:\n  {example}"
        )(callback)
        for param in made.params:
            if param.name == "max_seconds":
                param.default = max_seconds
        return made

    return decorate


def run(function: Callable[..., Work], options: dict[str, Any]) -> None:
    """Measure, write the file, and say what was found."""
    try:
        from binsgdm.bench import ranks as joining
        from binsgdm.bench.record import Bench, Record, write_error
        from binsgdm.bench.speed import SpeedProbe
        from binsgdm.bench.timing import StopRule
    except ImportError as error:
        raise BinsgdmError(f"measure: needs torch and numpy ({error}): {INSTALL_TORCH}") from error
    start = time.perf_counter()
    output, force = options.pop("output"), options.pop("force")
    stop_rule = StopRule(**{name: options.pop(name) for name in ("relative_error", "max_repetitions", "max_seconds")})
    rate, latency_ms = options.pop("nic_gbit_per_s"), options.pop("nic_latency_ms")
    network, with_speed = options.pop("network"), options.pop("with_speed")
    layout = {name: options.pop(name) for name in ("device", "ranks_per_node", "threads")}
    work = function(**options)
    with joining.joined(**layout) as ranks:
        if refusal := ranks.from_rank_0(lambda: write_error(output, force=force)):
            _refuse(refusal, ranks)
        if ranks.rank == 0 and ranks.num_nodes > 1 and rate is None:
            # Now, since simnet validate would ask for it when the training is over.
            click.echo(f"note: {ranks.num_nodes} nodes: to predict these times, give --nic-gbit-per-s", err=True)
        nic = {"nic_bytes_per_s": rate and rate * BYTES_PER_S}
        record = Record(ranks, **nic, nic_latency_s=(latency_ms or 0) / 1e3, network=network)
        speed = SpeedProbe(ranks) if with_speed else None
        with _progress(is_shown=ranks.rank == 0) as progress:
            bench = Bench(record=record, ranks=ranks, stop_rule=stop_rule, progress=progress)
            work(replace(bench, probe=speed.sample) if speed else bench)
        if speed:
            speed.add_to(record)
        if refusal := ranks.from_rank_0(lambda: _written(record, output)):
            _refuse(refusal, ranks)
        if ranks.rank == 0:
            _report(record, stop_rule.relative_error, output, time.perf_counter() - start)


def _refuse(refusal: str, ranks: "Ranks") -> NoReturn:
    """Stop all ranks; rank 0 raises the reason, the others end without a word."""
    if ranks.rank:
        raise SystemExit(MISTAKE)
    raise BinsgdmError(refusal)


def _written(record: "Record", output: Path) -> str:
    """Write the file; return why it cannot be written, or an empty string."""
    try:
        record.write(output)
    except BinsgdmError as error:
        return str(error)
    return ""


def _report(record: "Record", wanted: float, output: Path, elapsed_s: float) -> None:
    """Print medians, and a line about the file."""
    click.echo(record.table())
    samples = sum(len(series["values"]) for series in record.series)
    missed = record.imprecise(wanted)
    more = (
        f"; {missed} did not reach {wanted:.0%}: allow more with --max-seconds, or use an idle machine"
        if missed
        else ""
    )
    click.echo(f"wrote {output}: {len(record.series)} series, {samples} samples in {elapsed_s:.1f} s{more}", err=True)


@contextmanager
def _progress(*, is_shown: bool) -> Iterator["Progress"]:
    """Show a bar on stderr, if a person sees it."""
    if not is_shown or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=BAR_STEPS, label="measuring", file=sys.stderr) as bar:
        yield lambda part: bar.update(max(0, round(part * BAR_STEPS) - bar.pos))


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

    names = choices.names() if "all" in systems else systems
    chosen = [choices.choice(text, "--system") for text in names]
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
