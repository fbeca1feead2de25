"""`simnet measure`: the commands of `binsgdm.bench`; and what becomes of the measurements of a GPU."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from simnet.cli import options
from simnet.cli.binsgdm_commands import adopted
from simnet.cli.output import check_writable
from simnet.cli.terminal import say, tell
from simnet.core.errors import SimnetError

if TYPE_CHECKING:
    from simnet.calibration.card_folder import CardFolder

INDEX = PurePosixPath("docs/README.md")
CARDS = PurePosixPath("docs/evidence/gpu.md")
WORKLOADS, CLUSTERS = PurePosixPath("scenarios/workloads"), PurePosixPath("scenarios/clusters")

command = adopted("binsgdm.bench.command", "measure")
assert isinstance(command, click.Group)
command.commands["gpu"].params.append(
    options.Mode(
        ["--card"],
        of="measure.card",
        metavar="DIRECTORY",
        help="Make a calibration, compute rows and a page of what is in DIRECTORY: simnet measure gpu --card --help.",
    )
)


@options.command(
    "card",
    help="Make of the measurements in DIRECTORY, by simnet measure gpu, a calibration of the card, compute rows of the "
    "measured workloads, and a page with figures that compares the shipped estimates with what was measured.\n\n"
    "Kernels, copies and backward during communication are fitted as by simnet calibrate. One card shows nothing of "
    "the network: --base takes that, and all else that was not measured, from another calibration with its intervals. "
    "A part that was not measured is named on the page.",
    epilog="\b\nExample:\n  simnet measure gpu --card out/gpu --base a100_tcp_estimate -o out/gpu-card",
)
@click.argument("folder", type=options.INPUT_PATH, metavar="DIRECTORY")
@options.directory("Write scenarios/ and docs/evidence/ of the card into this directory.")
@click.option(
    "--into",
    type=options.OUTPUT_PATH,
    metavar="CHECKOUT",
    help="Put them into a checkout of simnet, and name the page in its docs/README.md and docs/evidence/gpu.md.",
)
@click.option("--base", metavar="NAME", help="Calibration for what was not measured.  [default: neutral values]")
@click.option("--force", is_flag=True, help="Replace what --into finds of this card.")
@click.option("--accept-cpu", is_flag=True, help="Take the measurements of a CPU, to try the command.")
@options.BOOTSTRAP_DRAWS
def card(  # noqa: PLR0913, PLR0917 - one argument an option
    folder: Path, output: Path | None, into: Path | None, base: str | None, force: bool, accept_cpu: bool, draws: int
) -> None:  # fmt: skip
    """Run `simnet measure gpu --card`."""
    from simnet.calibration import card_folder
    from simnet.core.files import watch_inputs
    from simnet.report import card_page
    from simnet.validation import card_estimates

    _check_options(output, into, force=force)
    given = card_folder.read(folder, accepts_cpu=accept_cpu)
    if into is not None:
        _check_checkout(into, given)
    workloads = into / WORKLOADS if into is not None else None
    found = card_estimates.evaluate(given, base=base, draws=draws, workloads=workloads)
    made = card_page.files_of(found)
    if into is not None:
        _check_new(into, [path for path in made if path.parts[1] != "workloads"], force=force)
    indexed = _indexed(into, found.folder, card_page.page_name(found)) if into is not None else {}
    say(card_page.summary(found))
    for name in given.failed_checks:
        tell(
            f"note: the check {name!r} failed on this card; its times belong into no calibration before it is repaired"
        )
    if output is not None:
        _write(output, made)
    if into is not None:
        with watch_inputs():  # the workloads that were read are the files that get rows
            _write(into, {**made, **indexed})
        if INDEX not in indexed:
            tell(f"add to {into / INDEX}: {card_page.index_line(given)}")
        _tell_of_results(into, given.label)


def _tell_of_results(into: Path, label: str) -> None:
    """Say what follows where shipped clusters have the card, since their results now rest on what was measured."""
    from simnet.core.files import read_file

    clusters = sorted(path.stem for path in (into / CLUSTERS).glob("*.toml") if read_file(path).get("gpu") == label)
    if clusters:
        tell(
            f"note: results on {', '.join(clusters)} now rest on the measured rows; renew what pages show of them with "
            "python docs/shown.py --write and simnet validate --published -o docs/evidence"
        )


def _check_options(output: Path | None, into: Path | None, *, force: bool) -> None:
    if output is None and into is None:
        raise SimnetError("card: -o: missing; name a directory for the files, or a checkout with --into")
    if force and into is None:
        raise SimnetError("--force: has no effect without --into; drop it")
    for option, path in (("-o", output), ("--into", into)):
        if path is not None and path.exists() and not path.is_dir():
            raise SimnetError(f"{path}: is a file; name a directory with {option}")


def _check_checkout(into: Path, folder: "CardFolder") -> None:
    """Refuse a folder that is no checkout, and measurements that do not belong into one."""
    for path in (INDEX, WORKLOADS):
        if not (into / path).exists():
            raise SimnetError(f"{into}: {str(path)!r}: is missing; name a checkout of simnet with --into, or use -o")
    if not folder.is_card:
        raise SimnetError(f"--into: {folder.path}: was measured on a CPU, and a checkout holds cards alone; use -o")


def _check_new(into: Path, paths: list[PurePosixPath], *, force: bool) -> None:
    there = [path for path in paths if (into / path).exists()]
    if there and not force:
        raise SimnetError(f"{into / there[0]}: is there; add --force to replace what is there of this card")


def _indexed(into: Path, folder: "CardFolder", page: str) -> dict[PurePosixPath, bytes]:
    """Return the index of the docs, if the page can be named there, and the page of all cards."""
    from simnet.core.files import read_text
    from simnet.report import card_page

    index = card_page.with_page(read_text(into / INDEX), folder)
    cards = card_page.cards_page(card_page.measured_cards((into / CARDS).parent) | {page: folder.label})
    return {CARDS: cards.encode(), **({INDEX: index.encode()} if index else {})}


def _write(folder: Path, made: Mapping[PurePosixPath, bytes]) -> None:
    """Write all files, after a look at whether each can be written."""
    from simnet.core.files import write_file

    for path in made:
        check_writable(folder / path, inside=folder)
    for path, content in made.items():
        write_file(folder / path, content, inside=folder)
    for path in made:
        if path.suffix in {".toml", ".md"}:
            tell(f"wrote {folder / path}")
