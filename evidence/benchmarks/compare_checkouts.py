"""Does any number differ between two checkouts?

    python -m evidence.benchmarks.compare_checkouts BEFORE AFTER [--quick]

    --tolerance 1e-12  only numbers that differ by more than that count
    --draws 0          both sides make as many draws for an interval, or none, where a change draws otherwise

Runs the same commands in both, each on its own sources with this Python, and compares what they print and write, every
number to its last digit. Prints a table and every difference; exit code 1: a number differs, or a command fails.
Texts that differ, and columns or keys that stand on one side only, are listed and do not fail.
"""

import argparse
import csv
import difflib
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

NUMBER = re.compile(r"(?<![A-Za-z_])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
RULER = re.compile(r"\| ?:?-{3,}:?(?: (?=\|))?")
"""A column of the line below the titles of a table, which some makers of tables write with blanks."""
IGNORED = "version"
NAMES = ("system", "name", "title", "label", "key")
"""Keys that identify the items of a list, so that another order of items makes no number differ."""


@dataclass(kw_only=True)
class Finding:
    """What the comparison of two texts found.

    Attributes:
        numbers: how many numbers stand on both sides.
        largest: largest relative difference of a number, 0 if all are the same.
        differing: a line for each number that differs.
        texts: a line for each text that differs in its words, or stands on one side only.
    """

    numbers: int = 0
    largest: float = 0.0
    differing: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, other: "Finding", where: str = "") -> None:
        """Add what another comparison found, with the name of its document before every line."""
        self.numbers += other.numbers
        self.largest = max(self.largest, other.largest)
        self.differing += [where + line for line in other.differing]
        self.texts += [where + line for line in other.texts]


def compare(before: str, after: str, form: str, tolerance: float = 0.0) -> Finding:
    """Compare two texts.

    Args:
        form: "csv", "json", "toml" or "prose".
        tolerance: largest relative difference that counts as none; `Finding.largest` has it all the same.
    """
    finding = Finding()
    if form == "prose":
        # Lines whose words are the same belong together.
        old, new = before.splitlines(), after.splitlines()
        # A page repeats lines, which the heuristic for long texts would leave unmatched.
        matcher = difflib.SequenceMatcher(None, [*map(masked, old)], [*map(masked, new)], autojunk=False)
        for kind, i1, i2, j1, j2 in matcher.get_opcodes():
            if kind == "equal":
                for number, (old_line, other) in enumerate(zip(old[i1:i2], new[j1:j2], strict=True), i1 + 1):
                    finding.add(compare_leaf(f"line {number}", old_line, other, tolerance))
            else:
                finding.texts.append(f"line {i1 + 1}: {' / '.join(old[i1:i2])!r} -> {' / '.join(new[j1:j2])!r}")
        return finding
    ours, theirs = (leaves(text, form) for text in (before, after))
    for where in (name for name in ours if name in theirs):
        finding.add(compare_leaf(where, ours[where], theirs[where], tolerance))
    finding.texts += [f"{where}: only before" for where in ours if where not in theirs]
    finding.texts += [f"{where}: only after" for where in theirs if where not in ours]
    return finding


def compare_leaf(where: str, before: str, after: str, tolerance: float = 0.0) -> Finding:
    """Compare two short texts: numbers by value, where the words around them are the same.

    Where the words differ and a text is a bare number, its number differs; else the texts differ.
    """
    words = masked(before), masked(after)
    if words[0] != words[1]:
        changes = [f"{where}: {before!r} -> {after!r}"]
        return Finding(largest=math.inf, differing=changes) if "#" in words else Finding(texts=changes)
    finding = Finding(numbers=len(numbers(before)))
    for old, new in zip(numbers(before), numbers(after), strict=True):
        if old != new:
            largest = max(abs(old), abs(new))
            relative = abs(old - new) / largest if math.isfinite(largest) else math.inf
            finding.largest = max(finding.largest, relative)
            if not relative <= tolerance:
                finding.differing.append(f"{where}: {old!r} -> {new!r}")
    if not finding.largest and NUMBER.findall(before) != NUMBER.findall(after):  # 2 and 2.0, say
        finding.texts.append(f"{where}: {before!r} -> {after!r}")
    return finding


def leaves(text: str, form: str) -> dict[str, str]:
    """Return every cell of a table by its row and column, or every value of a document by the keys that lead to it."""
    if form == "csv":
        rows = csv.DictReader(io.StringIO(text))
        cells = ((f"row {n}, {column}", cell or "") for n, row in enumerate(rows, 1) for column, cell in row.items())
        return {where: cell for where, cell in cells if not where.endswith(f", {IGNORED}")}
    # Numbers as they are written, no nulls.
    data = tomllib.loads(text, parse_float=str) if form == "toml" else json.loads(text, parse_float=str, parse_int=str)
    return dict(_leaves(data, ()))


def _leaves(data: object, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key != IGNORED:
                yield from _leaves(value, (*path, str(key)))
    elif isinstance(data, list):
        for label, item in zip(_labels(data), data, strict=True):
            yield from _leaves(item, (*path, label))
    elif data is not None:
        yield ".".join(path), str(data)


def _labels(items: list[object]) -> list[str]:
    """Return a label of each item of a list: a name that each has and no two share, else the index."""
    for key in NAMES:
        labels = [str(item.get(key)) if isinstance(item, dict) else "" for item in items]
        if all(labels) and len(set(labels)) == len(items):
            return labels
    return [str(index) for index in range(len(items))]


def numbers(text: str) -> list[float]:
    """Return the numbers in a text.

    Example:
        >>> numbers("1,606 GB, 5.53x, 1e-3")
        [1606.0, 5.53, 0.001]
    """
    return [float(digits.replace(",", "")) for digits in NUMBER.findall(text)]


def masked(text: str) -> str:
    """Return a text without its numbers, and without the widths that they give a table.

    Example:
        >>> masked("| 5.53x |  12 |")
        '| #x | # |'
    """
    return RULER.sub("|---", " ".join(NUMBER.sub("#", text).split()))


SHOWN = 12
"""Differences of one command that are listed."""
WIDTH = 400
"""Letters of a difference that are shown."""
SIMNET = ("-m", "simnet")
CROSSOVER = ("--over", "cluster.inter_node.bandwidth", "--from", "1 Gbit/s", "--to", "400 Gbit/s")
INTERVALS = ("--set", 'calibration.intervals={"inter_node.efficiency" = [0.9, 1.1], "codec_efficiency" = [0.7, 1.2]}')
DRAWING = {"simulate", "sweep", "crossover", "advise", "race"}
"""Commands that take --draws."""
FORMS = {".json": "json", ".csv": "csv", ".toml": "toml", ".md": "prose"}


FORMER = {"evidence.lab": ("simnet", "lab"), "evidence.studies": ("studies",)}
"""What these were in checkouts that have no evidence/."""


class Job(NamedTuple):
    """A Python command that is run in both checkouts; `{out}` stands for a folder."""

    title: str
    form: str
    arguments: tuple[str, ...]


def is_former(checkout: Path) -> bool:
    """Return whether a checkout is of the time before evidence/."""
    return not (checkout / "evidence").is_dir()


def quick_jobs(checkout: Path) -> Iterator[Job]:
    """Yield the jobs of a few seconds: every shipped experiment and its sweep, and one search."""
    for path in sorted((checkout / "scenarios" / "experiments").glob("*.toml")):
        yield simnet(f"simulate {path.stem}", "csv", "simulate", path.stem)
        if "[sweep]" in path.read_text(encoding="utf-8"):
            yield simnet(f"sweep {path.stem}", "csv", "sweep", path.stem, "--jobs", "1")
    for name in ("bert_base_10gbit", "resnet50_10gbit"):
        yield simnet(f"crossover {name}", "json", "crossover", name, *CROSSOVER)
    exact = ("--set", "cluster.num_nodes=2", "--set", "run.fidelity=exact")
    yield simnet("simulate exact", "json", "simulate", "bert_base_10gbit", *exact)
    yield simnet("simulate --draws 20", "json", "simulate", "bert_base_10gbit", *INTERVALS, "--draws", "20")
    yield simnet("simulate --trace", "json", "simulate", "bert_base_10gbit", "--trace", "{out}/trace.json")


def long_jobs(checkout: Path) -> Iterator[Job]:
    """Yield the jobs of half a minute: publications, campaigns, advice, the training pages."""
    for name in ("bert_base_10gbit", "infiniband"):
        yield simnet(f"advise {name}", "json", "advise", name)
    for name in ("characters", "digits"):
        # The former name of time-to-target, which older checkouts know as well.
        yield simnet(f"race {name}", "json", "race", "bert_base_10gbit", name, "--steps", "100000", "--same-task")
    golden = checkout / "tests" / "golden"
    logs = sorted(map(str, (checkout / "scenarios" / "published" / "nccl-tests").glob("*_v4_[248]gpus.log")))
    trace = str(golden / "calibrate" / "kineto_gloo_2_ranks.json.gz")
    yield simnet("calibrate nccl-tests", "prose", "calibrate", *logs, "--accept-poor-fit", "-o", "{out}/made.toml")
    yield simnet("calibrate trace", "prose", "calibrate", trace, "--batch", "8", "--workload", "{out}/made.toml")
    results = golden if is_former(checkout) else checkout / "evidence" / "results"
    for campaign in sorted(results.glob("lab_*/campaign.toml")):
        words = ("-m", "evidence.lab", "report", str(campaign.parent), "--draws", "20", "-o", "{out}")
        yield Job(f"lab report {campaign.parent.name}", "prose", words)
    yield simnet("validate --published", "json", "validate", "--published", "-o", "{out}")
    yield Job("training pages", "prose", ("-m", "evidence.studies", "tables"))


def simnet(title: str, form: str, *arguments: str) -> Job:
    """Return a job of the command line; a form that is no prose is asked for."""
    return Job(title, form, (*SIMNET, *arguments, *(("--format", form) if form != "prose" else ())))


def run(job: Job, checkout: Path, data: Path) -> dict[str, tuple[str, str]] | str:
    """Run a command in a checkout, on the files of `data` if it reads any; texts name both folders CHECKOUT.

    Returns:
        By name, the form and the text of what it printed and wrote; or how it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        out.mkdir()
        words = [word.replace("{out}", str(out)) for word in job.arguments]
        if is_former(checkout) and words[1] in FORMER:
            words[1:2] = FORMER[words[1]]
        # Neither checkout is written to, and tables break at the same width on both sides.
        environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        # 1 is that of a validation that misses its limits, whose numbers are compared all the same.
        if done.returncode not in (0, 1) or "Traceback" in done.stderr:
            return f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        documents = {"printed": (job.form, done.stdout), "exit code": ("prose", str(done.returncode))}
        for path in sorted(out.rglob("*")):
            if path.suffix in FORMS:
                documents[str(path.relative_to(out))] = FORMS[path.suffix], path.read_text(encoding="utf-8")
    for name, (form, text) in documents.items():
        without_paths = text.replace(str(out), "OUT").replace(str(checkout), "CHECKOUT").replace(str(data), "CHECKOUT")
        documents[name] = form, without_paths
    return documents


def drawing(job: Job, draws: int | None) -> Job:
    """Return a job whose intervals are of so many draws, if it has any and does not say how many itself."""
    command = job.arguments[len(SIMNET)] if job.arguments[: len(SIMNET)] == SIMNET else ""
    if draws is None or command not in DRAWING or "--draws" in job.arguments:
        return job
    return job._replace(arguments=(*job.arguments, "--draws", str(draws)))


def compare_job(job: Job, before: Path, after: Path, tolerance: float = 0.0) -> dict[str, Finding]:
    """Run a job in both checkouts, and compare all that it gives: what it printed, and the files of each ending."""
    old, new = run(job, before, before), run(job, after, before)
    if isinstance(old, str) or isinstance(new, str):
        failures = [
            f"{side}: {failure}" for side, failure in (("before", old), ("after", new)) if isinstance(failure, str)
        ]
        return {job.title: Finding(largest=float("inf"), differing=failures)}
    findings = {job.title: Finding()}
    for name in sorted(old.keys() & new.keys()):
        kind = f": {Path(name).suffix} files" if Path(name).suffix else ""
        group = findings.setdefault(f"{job.title}{kind}", Finding())
        group.add(compare(old[name][1], new[name][1], old[name][0], tolerance), f"{name}: ")
    findings[job.title].texts += [f"{name}: written by one side only" for name in sorted(old.keys() ^ new.keys())]
    return findings


def details(title: str, finding: Finding) -> list[str]:
    """Return the differences of a command, those of numbers first."""
    lines = [f"{title}: NUMBER {line}" for line in finding.differing[:SHOWN]]
    lines += [f"{title}: text {line}" for line in finding.texts[:SHOWN]]
    hidden = max(len(finding.differing) - SHOWN, 0) + max(len(finding.texts) - SHOWN, 0)
    lines += [f"{title}: and {hidden} more"] if hidden else []
    return [line if len(line) <= WIDTH else f"{line[:WIDTH]}..." for line in lines]


def main() -> int:
    """Print the table and the differences; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--quick", action="store_true", help="experiments, sweeps and searches only")
    parser.add_argument("--only", metavar="TEXT", default="", help="only commands whose title has this text")
    parser.add_argument("--jobs", type=int, default=1, help="commands at once")
    parser.add_argument("--tolerance", type=float, default=0.0, help="largest relative difference that counts as none")
    parser.add_argument("--draws", type=int, help="draws for every interval, on both sides")
    options = parser.parse_args()
    before, after = options.before.resolve(), options.after.resolve()
    # Python would run the simnet that is installed, on both sides, and nothing would differ.
    if missing := [path for path in (before, after) if not (path / "simnet" / "__main__.py").is_file()]:
        parser.error(f"{missing[0]}: is no checkout: must be a folder that holds simnet; name one")
    jobs = [*quick_jobs(before), *(() if options.quick else long_jobs(before))]
    jobs = [drawing(job, options.draws) for job in jobs if options.only in job.title]
    print("| command | numbers compared | largest relative difference | numbers that differ | texts that differ |")
    print("|---|---|---|---|---|")
    total, lines = Finding(), list[str]()

    def show(title: str, finding: Finding) -> None:
        cells = (
            title,
            f"{finding.numbers:,}",
            f"{finding.largest:.2g}",
            str(len(finding.differing)),
            str(len(finding.texts)),
        )
        print(f"| {' | '.join(cells)} |", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        for findings in pool.map(lambda job: compare_job(job, before, after, options.tolerance), jobs):
            for title, finding in findings.items():
                show(title, finding)
                total.add(finding)
                lines += details(title, finding)
    show("all", total)
    print("", *lines, sep="\n")
    return 1 if total.differing else 0


if __name__ == "__main__":
    sys.exit(main())
