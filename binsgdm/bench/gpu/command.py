"""The command `simnet measure gpu`; torch is imported when it runs."""

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from binsgdm.bench.gpu.parts import BUDGET_S, PARTS
from binsgdm.errors import INSTALL_TORCH, BinsgdmError

FAILED, INTERRUPTED = 1, 130
PARTS_TEXT = "Parts: " + "; ".join(f"{part.name} ({part.about})" for part in PARTS) + "."


class _Folder(click.Path):
    """A folder to write to; empty text is refused, since `pathlib` would take it for the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("'': is empty: name a folder.", param, ctx)
        return super().convert(value, param, ctx)


@click.command(
    "gpu",
    help="Measure one card, or all cards of a node, part by part, each into a file of its own.\n\n"
    "A part whose file is there is not measured again, so a run that was ended goes on where it was. A part that fails "
    "does not stop the others; the exit code is then 1. Clocks, power limits and other settings are only read.\n\n"
    + PARTS_TEXT,
    short_help="Measure one card, or all cards of a node, part by part.",
    epilog="\b\nExample:\n  simnet measure gpu -o out/gpu\n  simnet measure gpu --only kernels -o out/gpu",
)
@click.option("-o", "--output", type=_Folder(path_type=Path), required=True, help="Folder for the files.")
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
def gpu(output: Path, **options: Any) -> None:
    """Measure a card."""
    try:
        is_good = _run(output, **options)
    except KeyboardInterrupt:
        click.echo("\nmeasure: interrupted; the parts that are done stay: the same command goes on", err=True)
        sys.exit(INTERRUPTED)
    if not is_good:
        sys.exit(FAILED)


def _run(output: Path, *, device: str, quick: bool, only: tuple[str, ...], force: bool, **options: Any) -> bool:
    """Look at the card, run the parts, and say what was found; return whether all is good."""
    start = time.monotonic()
    _check(output)
    if math.isnan(options["budget"]):  # it lies in every range
        raise BinsgdmError("--budget nan: must be a number of seconds from 1 on")
    if force and only:
        raise BinsgdmError("--force --only: one measures all parts again, the other some of them: give one of the two")
    try:
        from binsgdm.bench import record as _  # noqa: F401 - torch is there
        from binsgdm.bench.gpu import preflight
        from binsgdm.bench.gpu.run import CardFile, PartLines, PartRunner, read_card
    except ImportError as error:
        raise BinsgdmError(f"measure: needs torch and numpy ({error}): {INSTALL_TORCH}") from error
    found = preflight.of_card() if device == "cuda" else preflight.of_cpu()
    card = CardFile(output, found, device=device, quick=quick)
    former = None if force else read_card(output)
    if former is not None:
        card.go_on_from(former)
    output.mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if part.name in only or not only]
    _introduce(found.card, found.software, card.content["notes"])
    runner = PartRunner(
        folder=output,
        card_file=card,
        device=device,
        quick=quick,
        budget_s=options["budget"],
        num_ranks=options["ranks"] or max(1, found.card["num_cards"]),
        is_shared=found.is_shared,
        spent_s=time.monotonic() - start,
        again=frozenset(only),
        starts_anew=force,
        display=PartLines(),
    )
    is_good = runner.run_all(parts)
    click.echo(f"wrote {output} in {time.monotonic() - start:.0f} s", err=True)
    return is_good


def _check(output: Path) -> None:
    """Raise where files cannot be written, or ranks would be started by ranks."""
    if os.environ.get("WORLD_SIZE", "1") not in {"", "0", "1"}:
        raise BinsgdmError(
            "measure gpu: WORLD_SIZE: is set: this command starts its own ranks: run it without torchrun"
        )
    if output.exists() and not output.is_dir():
        raise BinsgdmError(f"{output}: is no folder: name a folder with -o")
    home = next(one for one in (output, *output.absolute().parents) if one.exists())
    if not home.is_dir():
        raise BinsgdmError(f"{output}: {home}: is no folder: name another with -o")
    if not os.access(home, os.W_OK | os.X_OK):
        raise BinsgdmError(f"{output}: cannot be written: name another folder with -o")


def _introduce(card: dict[str, Any], software: dict[str, str], notes: Sequence[str]) -> None:
    words = [f"{card['num_cards']} x {card['name']}" if card["num_cards"] > 1 else str(card["name"])]
    if "free_bytes" in card:
        free, whole = (card[name] / 2**30 for name in ("free_bytes", "memory_bytes"))
        words.append(f"compute capability {card['compute_capability']}, {free:.1f} of {whole:.1f} GiB free")
    known = ("driver", "cuda", "torch", "triton", "nccl")
    words += [f"{name} {software[name]}" for name in known if software.get(name)]
    click.echo("measure: " + ", ".join(words), err=True)
    for note in notes:
        click.echo(f"note: {note}", err=True)
