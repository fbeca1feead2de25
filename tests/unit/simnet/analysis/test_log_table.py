"""Loss curves in tables: long ones, charts and histories of W&B, and what does not hold together."""

from pathlib import Path

import pytest

from simnet.analysis import log_rows as rows
from simnet.analysis import log_table as table
from tests.helpers.refusals import refused

FILE = Path("f.csv")


def curves(text: str, metric: str | None = None) -> tuple:
    found = rows.from_json(text.encode(), FILE) if text.startswith(("[", "{")) else rows.from_csv(text, FILE)
    return table.curves_in(found, metric)


@pytest.mark.parametrize(
    "text",
    [
        "Step;Loss\n1;2.5\n\n2;2\n",
        "step\tloss\n1\t2.5\n2\t2\n",
        '"step","loss"\r\n"1.0","2.5"\r\n"2","2"\r\n',
        "step,loss\n0,9\n1,2.5\n2,2\n",  # what was logged before training
        "step,validation perplexity,epoch\n1,2.5,1\n2,2,1\n",  # the only other column
        "Wall time,Step,Value\n1.5e9,1,2.5\n1.5e9,2,2\n",  # of TensorBoard
        '[{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2, "lr": 0.1}, {"step": 3, "lr": 0.1, "loss": null}]',
        '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2}\n',
        '{"log_history": [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2}, {"step": 2, "eval_loss": 2}]}',
        '{"columns": ["step", "loss"], "data": [[1, 2.5], [2, 2]]}',
    ],
)
def test_tables_of_several_programs_are_read(text: str) -> None:
    (curve,) = curves(text)
    assert (curve.positions, curve.values) == ((1, 2), (2.5, 2.0))


def test_columns_may_name_system_seed_and_ranks() -> None:
    text = "system,seed,ranks,samples,loss\nadam,0,8,64,3\nadam,1,8,64,4\nqsgd,0,8,64,5\nadam,0,8,128,2\n"
    found = curves(text)
    assert [(one.system, one.seed, one.ranks) for one in found] == [("adam", 0, 8), ("adam", 1, 8), ("qsgd", 0, 8)]
    assert (found[0].positions, found[0].values, found[0].counted) == ((64, 128), (3.0, 2.0), "samples")


def test_a_chart_that_wb_exports_has_a_column_a_run() -> None:
    text = (
        '"Step","a - b - eval/loss","a - b - eval/loss__MIN","a - b - eval/loss__MAX","c - eval/loss",'
        '"c - eval/loss__MIN","c - eval/loss__MAX"\n"10","3","3","3","","",""\n"20","2","2","2","2.5","2.5","2.5"\n'
    )
    first, second = curves(text)
    assert (first.run, first.metric, first.positions) == ("a - b", "eval/loss", (10, 20))
    assert (second.run, second.positions, second.values) == ("c", (20,), (2.5,))
    assert [one.run for one in curves(text, "eval/loss")] == ["a - b", "c"]


def test_a_history_of_wb_takes_the_trainers_step_before_the_count_of_logs() -> None:
    text = "_step,_runtime,_timestamp,train/global_step,eval/loss\n0,1,2,500,3\n1,2,3,,\n2,3,4,1000,2\n"
    (curve,) = curves(text, "eval/loss")
    assert (curve.positions, curve.notes) == ((500, 1000), ())
    (counted,) = curves("_step,_runtime,loss\n1,2,3\n")
    assert "'_step', which counts calls of wandb.log" in counted.notes[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f.csv: is empty; its first line must name columns"),
        ("step,loss\n", "f.csv: no row"),
        ("a,b\n1,2\n", "f.csv: columns 'a', 'b': none of steps; needs 'step' or 'samples', and 'loss'"),
        ("step\n1\n", "f.csv: columns 'step': none of losses"),
        ("step,a,b\n1,2,3\n", "f.csv: several columns may be the loss: choose one with --metric: 'a', 'b'"),
        ("step,损失,λ\n1,2,3\n", "choose one with --metric: '损失', 'λ'"),
        ("step,loss,Loss\n1,2,3\n2,1,2\n", "--metric"),
        ("step,loss,loss\n1,2,3\n", "f.csv: column 'loss': is there twice"),
        ("step,loss\n1\n", "f.csv:2: 1 cells: the head has 2 columns"),
        ("step,loss\n1,x\n", "f.csv:2: 'loss': 'x': must be a number"),
        ("step,loss\n1,٣\n", "must be a number"),
        ("step,loss\n1,1_0\n", "must be a number"),
        ("step,loss\nx,1\n", "f.csv:2: 'step': 'x': must be a number"),
        ("step,loss\n1.5,1\n", "f.csv:2: 'step': '1.5': must be a whole number"),
        ("step,loss\nnan,1\n", "f.csv:2: 'step': 'nan': must be a whole number"),
        ("step,loss\n-1,1\n", "f.csv:2: 'step': '-1': must be a whole number"),
        ("step,loss\n,1\n", "f.csv:2: 'step': missing in a row with a loss"),
        ("step,loss\n1,2\n1,1\n", "f.csv:3: step 1 is there twice, with 2 and 1: must be once"),
        ("step,loss\n2,2\n1,1\n", "f.csv:3: 1 steps after 2: must increase"),
        ("step,loss\n1,2\n2,nan\n3,1\n", "f.csv:3: 'loss' is nan and later a number"),
        ("step,loss\n1,nan\n2,nan\n", "f.csv: 'loss': no number after step 0"),
        ("step,loss\n1,\n", "f.csv: 'loss': no number after step 0"),
        ("step,loss\n1,1e300\n", "f.csv:2: 1e+300: must be at most 1e+100"),
        ("step,loss,seed\n1,2,a\n", "f.csv:2: seed: 'a': must be a number"),
        ("step,loss,ranks\n1,2,0\n", "f.csv:2: ranks: '0': must be a whole number from 1 on"),
        ('step,loss\n1,"' + "9" * 200_000, "f.csv:2: no CSV"),
        ("[]", "f.csv: no row"),
        ("[1, 2]", "f.csv: no table"),
        ('{"log_history": 3}', "f.csv: no table"),
        ('[{"step": 1, "loss": true}]', "f.csv: row 1: 'loss': True: must be a number"),
        ('[{"step": 1, "loss": [1]}]', "must be a number"),
        ('{"step": 1}\n{"step": 2', "f.csv:2: "),
        ('[{"step": 1', "f.csv: "),
    ],
)
def test_a_table_that_does_not_hold_together_is_refused_in_a_sentence(text: str, said: str) -> None:
    with refused(said):
        curves(text)
    with refused("no column 'x'; name one with --metric: 'loss'"):
        curves("step,loss\n1,2\n", "x")


def logged(steps: list[int], first: float = 5.0, clocks: list[float] | None = None) -> str:
    """Return a log whose losses tell the order in which they were logged."""
    head = "Wall time,Step,Value" if clocks else "Step,Value"
    rows = [f"{step},{first + 0.01 * number:.2f}" for number, step in enumerate(steps)]
    return "\n".join([head, *([f"{at},{row}" for at, row in zip(clocks, rows, strict=True)] if clocks else rows)])


ONCE, AGAIN = [0, 10, 20, 30, 40], [20, 30, 40, 50]


def test_of_a_training_that_was_resumed_the_later_life_counts_and_a_note_says_so() -> None:
    (curve,) = curves(logged([*ONCE, *AGAIN]))
    assert curve.positions == (10, 20, 30, 40, 50)
    assert curve.values == pytest.approx((5.01, 5.05, 5.06, 5.07, 5.08))
    assert curve.notes == (
        "f.csv: begins again at step 20: 3 values from there on, of before it was resumed, are left out",
    )
    (thrice,) = curves(logged([*ONCE, *AGAIN, 30, 40, 50, 60]))
    assert (thrice.positions, len(thrice.notes)) == ((10, 20, 30, 40, 50, 60), 2)
    (crashed,) = curves(logged([*ONCE, *AGAIN]).replace("40,5.04", "40,nan"))
    assert crashed.values[3] == pytest.approx(5.07)


def test_rows_that_were_sorted_by_step_are_told_apart_by_their_clock() -> None:
    steps, clocks = [*ONCE, *AGAIN], [float(number) for number in range(9)]
    lines = logged(steps, clocks=clocks).splitlines()
    by_step = "\n".join([lines[0], *sorted(lines[1:], key=lambda line: int(line.split(",")[1]))])
    assert curves(by_step)[0].values == curves("\n".join(lines))[0].values


def test_sorted_rows_without_a_clock_are_refused_with_what_to_drop() -> None:
    with refused("step 20 is there twice, with 5.02 and 5.05", " drop the rows of the first life from step 20 on"):
        curves("step,loss\n0,5\n10,5.01\n20,5.02\n20,5.05\n30,5.03\n30,5.06\n")
    (curve,) = curves("step,loss\n10,5.01\n20,5.02\n20,5.02\n30,5.03\n")
    assert (curve.positions, len(curve.notes)) == ((10, 20, 30), 1)


@pytest.mark.parametrize("steps", [[*ONCE, *ONCE], [10, 30, 20, 40], [100, 90, 80]])
def test_rows_of_two_trainings_and_shuffled_ones_are_refused_as_before(steps: list[int]) -> None:
    with refused("must increase; write each training with a seed ", " sort the rows"):
        curves(logged(steps))


def test_clocks_are_numbers_or_iso_8601_and_one_that_starts_anew_does_not_reorder_rows() -> None:
    steps, clocks = [10, 20, 30, 40, 30, 40, 50], [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0]
    assert curves(logged(steps, clocks=clocks))[0].values == curves(logged(steps))[0].values
    rows = ["10,5,2026-01-02T10:00", "20,4,2026-01-02T10:01", "20,2,2026-01-02T11:00", "30,3,2026-01-02T10:02"]
    (curve,) = curves("\n".join(["step,loss,timestamp", *rows, "30,1,2026-01-02T11:01"]))
    assert (curve.positions, curve.values) == ((10, 20, 30), (5.0, 2.0, 1.0))
