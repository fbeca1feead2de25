"""Compute rows put into workload files: what is replaced, and that everything else stays as it stands."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np

from simnet.calibration.card_folder import CardAbout, CardFacts, CardFolder
from simnet.calibration.compute_rows import MeasuredPass, measured_passes, with_rows
from simnet.calibration.measurement_file import Series
from tests.helpers.measurement_samples import measurements, setup
from tests.helpers.refusals import refused

FOLDER = CardFolder(
    path=Path("out/gpu"),
    about=CardAbout(
        what="simnet card", format=1, created="2026-01-02", device="cuda", card=CardFacts(name="NVIDIA A100")
    ),
    files={},
    label="A100-80GB",
)
FILE = '''# A workload with comments.
title = "made"
num_elements = 1000  # of all gradients

# The first row.
[[compute]]
gpu = "V100-32GB"    # another card
precision = "fp32"
batch = 32
samples_per_s = 50
optimizer = "sgd_momentum"
kind = "derived"
source = """
[[compute]]
is no head here"""

[[compute]]
gpu = "A100-80GB"
precision = "amp"
batch = 256
samples_per_s = 580
optimizer = "sgd_momentum"
kind = "derived"
source = "s"

# Published: stays.
[[compute]]
gpu = "A100-80GB"
precision = "tf32"
batch = 128
samples_per_s = 317
optimizer = "sgd_momentum"
kind = "published"
source = "p"

[intervals]
compute = [0.9, 1.1]
'''


def measured(precision: str, batch: int, seconds: float = 0.5) -> MeasuredPass:
    halves = np.full(3, seconds / 2)
    return MeasuredPass(model="made", precision=precision, batch=batch, forward_s=halves, backward_s=halves)


def test_of_two_layouts_the_faster_one_counts_and_is_named() -> None:
    labels = {"model": "made", "batch": 64, "dtype": "float32", "precision": "fp16"}
    series = tuple(
        Series(kind="model", name=name, setup=0, unit="s", labels=labels | layout, values=(seconds,) * 3)
        for layout, seconds in (({}, 0.5), ({"layout": "channels_last"}, 0.25))
        for name in ("forward", "backward")
    )
    whole = measurements(series, (setup(1, 1, None),))
    (found,) = measured_passes(replace(FOLDER, files={"models": (Path("models.json"), whole)}))
    assert (found.precision, found.batch, found.compute_s, found.layout) == ("amp", 64, 0.5, "channels_last")
    (row,) = [row for row in tomllib.loads(with_rows(FILE, [found], FOLDER, "made.toml"))["compute"]
              if row["kind"] == "measured"]  # fmt: skip
    assert row["source"].endswith(", channels_last")


def test_derived_rows_of_the_card_and_precision_are_replaced_and_all_else_stays() -> None:
    changed = with_rows(FILE, [measured("fp32", 64), measured("amp", 64), measured("tf32", 64)], FOLDER, "made.toml")
    old, new = tomllib.loads(FILE), tomllib.loads(changed)
    rows = [(row["gpu"], row["precision"], row["kind"]) for row in new["compute"]]
    assert rows == [
        ("V100-32GB", "fp32", "derived"),
        # The precision of the card's first old row stays the first, and fp32 is the last.
        ("A100-80GB", "amp", "measured"),
        ("A100-80GB", "tf32", "measured"),
        ("A100-80GB", "fp32", "measured"),
        ("A100-80GB", "tf32", "published"),
    ]
    row = new["compute"][1]
    assert (row["batch"], row["samples_per_s"], row["includes_optimizer"]) == (64, 128.0, False)
    assert row["optimizer"] == "sgd_momentum"
    assert "2026-01-02" in row["source"]
    assert {key: value for key, value in new.items() if key != "compute"} == {
        key: value for key, value in old.items() if key != "compute"
    }
    once = with_rows(FILE, [measured("amp", 64)], FOLDER, "made.toml")
    assert with_rows(once, [measured("amp", 64)], FOLDER, "made.toml") == once
    faster = with_rows(once, [measured("amp", 64, 0.25)], FOLDER, "made.toml")
    assert faster == once.replace("128.0", "256.0"), "a second measurement replaces the first"
    kept = [line for line in FILE.splitlines() if line.startswith("#") or "# " in line]
    assert [line for line in changed.splitlines() if line.startswith("#") or "# " in line] == kept


def test_a_file_whose_rows_have_no_place_is_refused() -> None:
    row = '{gpu = "g", precision = "p", batch = 1, step = "1 s", optimizer = "adam", source = "s"}'
    for text, message in (
        ('title = "x"\nnum_elements = 5\n', "compute: has no rows to add to"),
        (f"num_elements = 5\ncompute = [{row}]\n", "compute: the rows cannot be changed in place"),
    ):
        with refused(message):
            with_rows(text, [measured("amp", 64)], FOLDER, "made.toml")
