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
    from simnet.calibration.card_calibration import CardFit, CardWorkloads
    from simnet.calibration.card_folder import CardFolder
    from simnet.report.table import Page

CALIBRATIONS, WORKLOADS, CLUSTERS, EVIDENCE = map(
    PurePosixPath, ("scenarios/calibrations", "scenarios/workloads", "scenarios/clusters", "docs/evidence")
)

command = adopted("binsgdm.bench.command", "measure")
assert isinstance(command, click.Group)
command.commands["gpu"].params.append(
    options.Mode(
        ["--card"],
        of="measure.card",
        metavar="DIRECTORY",
        help="Make a calibration and compute rows of what is in DIRECTORY: simnet measure gpu --card --help.",
    )
)


@options.command(
    "card",
    help="Make of the measurements in DIRECTORY, by simnet measure gpu, a calibration of the card, compute rows of the "
    "measured workloads, and an archive of all samples.\n\n"
    "Kernels, copies and backward during communication are fitted as by simnet calibrate. One card shows nothing of "
    "the network: --base takes that, and all else that was not measured, from another calibration with its intervals. "
    "What was not measured or not fitted is named.",
    epilog="\b\nExample:\n  simnet measure gpu --card out/gpu --base a100_tcp_estimate -o out/gpu-card",
)
@click.argument("measured", type=options.INPUT_PATH, metavar="DIRECTORY")
@options.directory("Write scenarios/ and docs/evidence/ of the card into this directory.")
@click.option(
    "--into",
    type=options.OUTPUT_PATH,
    metavar="CHECKOUT",
    help="Put them into a checkout of simnet.",
)
@click.option("--base", metavar="NAME", help="Calibration for what was not measured.  [default: neutral values]")
@click.option("--force", is_flag=True, help="Replace what --into finds of this card.")
@click.option("--accept-cpu", is_flag=True, help="Take the measurements of a CPU, to try the command.")
@options.BOOTSTRAP_DRAWS
def card(  # noqa: PLR0913, PLR0917 - one argument an option
    measured: Path, output: Path | None, into: Path | None, base: str | None, force: bool, accept_cpu: bool, draws: int
) -> None:  # fmt: skip
    """Run `simnet measure gpu --card`."""
    from simnet.calibration import card_calibration, card_folder
    from simnet.core.files import data_path, watch_inputs

    _check_options(output, into, force=force)
    folder = card_folder.read(measured, accepts_cpu=accept_cpu)
    if into is not None:
        _check_checkout(into, folder)
    fitted = card_calibration.fit(folder, draws)
    rows = card_calibration.workloads(folder, into / WORKLOADS if into is not None else data_path("workloads"))
    made = {EVIDENCE / f"gpu-{folder.stem}.zip": card_folder.archive(folder)}
    if fitted.parts:
        made[CALIBRATIONS / f"{folder.stem}.toml"] = card_calibration.text(folder, fitted, base).encode()
    if into is not None:
        _check_new(into, [*made], force=force)
    made |= {WORKLOADS / f"{name}.toml": text.encode() for name, text in rows.texts.items()}
    say(_summary(folder, fitted, rows))
    for name in folder.failed_checks:
        tell(
            f"note: the check {name!r} failed on this card; its times belong into no calibration before it is repaired"
        )
    if output is not None:
        _write(output, made)
    if into is not None:
        with watch_inputs():  # the workloads that were read are the files that get rows
            _write(into, made)
        _tell_of_results(into, folder.label)


def _summary(folder: "CardFolder", fitted: "CardFit", rows: "CardWorkloads") -> "Page":
    """Return what was measured and fitted, and what was not."""
    from simnet.calibration.card_folder import PARTS, versions_text
    from simnet.report.table import Page
    from simnet.report.text import hanging, printable

    table = fitted.table
    keys = ("memory_bandwidth", "kernel_launch", "backward_slowdown")
    values = [f"{key} {table[key]}" for key in keys if key in table]
    kernels = table.get("kernels")
    values += [f"{len(kernels)} kernels"] if isinstance(kernels, dict) else []
    lines = {
        "fitted: ": [", ".join(values)],
        "fitted poorly, by mean error: ": [", ".join(fitted.poor)],
        "compute rows: ": [", ".join(sorted(rows.texts))],
        "no shipped workload: ": [", ".join(rows.unknown)],
        "not measured: ": [f"{PARTS[part]}{why and f' ({why})'}" for part, why in folder.missing().items()],
        "not fitted: ": fitted.left_out,
    }
    texts = (line for start, said in lines.items() for text in said if text for line in hanging(start, printable(text)))
    return Page([f"{folder.label}, {versions_text(folder)}", "", *texts])


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
    if not (into / WORKLOADS).exists():
        raise SimnetError(f"{into}: {str(WORKLOADS)!r}: is missing; name a checkout of simnet with --into, or use -o")
    if not folder.is_card:
        raise SimnetError(f"--into: {folder.path}: was measured on a CPU, and a checkout holds cards alone; use -o")


def _check_new(into: Path, paths: list[PurePosixPath], *, force: bool) -> None:
    there = [path for path in paths if (into / path).exists()]
    if there and not force:
        raise SimnetError(f"{into / there[0]}: is there; add --force to replace what is there of this card")


def _write(folder: Path, made: Mapping[PurePosixPath, bytes]) -> None:
    """Write all files, after a look at whether each can be written."""
    from simnet.core.files import write_file

    for path in made:
        check_writable(folder / path, inside=folder)
    for path, content in made.items():
        write_file(folder / path, content, inside=folder)
    for path in made:
        tell(f"wrote {folder / path}")
