"""Convergence from logs: which system a log is of, its seed, and its steps."""

from pathlib import Path

import pytest

from simnet.analysis.convergence import median_values
from simnet.analysis.logged_trainings import load_logs, names_a_log
from simnet.strategies import PowerSGD
from tests.helpers.refusals import refused
from tests.helpers.time_to_target_samples import scenario, write_trainings

MANY = "system,seed,step,loss\n,0,10,4\n,1,10,5\n,0,20,3\n,1,20,4\n,0,30,2\n"
LONG = "system,seed,step,loss\nall_reduce,3,10,4\nqsgd:bits=4,3,10,5\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("many.csv", MANY), ("long.csv", LONG), ("one.csv", "step,loss\n10,4\n"), ("a=b.csv", LONG)):
        Path(name).write_text(text)
    Path("runs/lr=0.1").mkdir(parents=True)


def test_one_log_of_one_training_is_of_ddp() -> None:
    found = load_logs(["one.csv"], scenario())
    (curve,) = found.convergence.curves
    assert (curve.system, curve.ranks, curve.seed, curve.steps, curve.values) == ("all_reduce", 4, 0, (10,), (4.0,))
    assert "taken as DDP" in " ".join(found.notes)
    assert "taken as 4 (--ranks)" in " ".join(found.notes)
    assert load_logs(["one.csv"], scenario(), ranks=8).convergence.rank_counts == (8,)


def test_a_system_in_front_names_all_seeds_of_a_log() -> None:
    found = load_logs(["all_reduce=many.csv", "power_sgd:matrix_rank=2=one.csv"], scenario()).convergence
    assert [(one.system, one.seed, one.steps) for one in found.curves] == [
        ("all_reduce", 0, (10, 20, 30)),
        ("all_reduce", 1, (10, 20)),
        ("power_sgd:matrix_rank=2", 0, (10,)),
    ]
    assert found.systems["power_sgd:matrix_rank=2"].strategy == PowerSGD(matrix_rank=2)
    assert [row[0] for row in median_values(found.of("all_reduce", 4))] == [10, 20]


def test_a_log_of_ddp_is_one_without_compression() -> None:
    found = load_logs(["DDP=one.csv", "qsgd=many.csv"], scenario()).convergence
    assert list(found.systems) == ["all_reduce", "qsgd"]


def test_samples_become_steps_by_the_batch_of_all_ranks() -> None:
    Path("s.csv").write_text("samples,loss\n2,5\n4,4\n6,3\n8,2\n")
    found = load_logs(["s.csv"], scenario())  # 4 ranks with a sample each
    assert (found.convergence.curves[0].steps, found.convergence.curves[0].values) == ((1, 2), (4.0, 2.0))
    assert "steps are samples / 4" in " ".join(found.notes)


def test_1_bit_adam_without_dense_steps_is_remarked() -> None:
    for options, is_said in (("", True), (":dense_steps=5", False)):
        notes = load_logs([f"one_bit_adam{options}=one.csv", "all_reduce=one.csv"], scenario()).notes
        assert ("one_bit_adam: no dense steps" in " ".join(notes)) is is_said


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("one.csv ./one.csv", "one.csv: one of 2 trainings, without a system: name it in front, such as all_reduce="),
        ("all_reduce=one.csv all_reduce=one.csv", "all_reduce=one.csv: named twice"),
        ("qsgd=one.csv", "qsgd=one.csv: qsgd: none without compression"),
        ("qsdg=one.csv", "'qsdg': unknown strategy. Did you mean 'qsgd'?"),
        ("qsgd:bits=77=one.csv all_reduce=one.csv", "bits: 77: must be"),
        ("long.csv all_reduce=long.csv", "all_reduce: seed 3 on 4 ranks: two trainings"),
        ("all_reduce=none.csv", "none.csv: no such file"),
        ("all_reduce=one.csv qsgd=runs/lr=0.1", "runs/lr=0.1: no event file of TensorBoard in it"),
    ],
)
def test_logs_that_do_not_go_together_are_refused(texts: str, said: str) -> None:
    with refused(said):
        load_logs(texts.split(), scenario())


def test_a_convergence_file_and_a_shipped_name_are_no_logs() -> None:
    write_trainings(Path("t.json"))
    Path("curve").touch()
    logs = ["one.csv", "runs/lr=0.1", "qsgd=t.json", "none.jsonl", "curve", "events.out.tfevents.1"]
    assert [text for text in logs if not names_a_log(text)] == []
    assert [text for text in ("t.json", "none.json", "t.toml", "characters", "nothing") if names_a_log(text)] == []
