"""Logs of trainings: tables with named columns, TensorBoard's events, which system each is of, and what is refused."""

import sys
from pathlib import Path

import pytest

from simnet.analysis.convergence import median_values
from simnet.analysis.training_logs import LoggedCurve, load_logs, names_a_log, read_curves
from simnet.strategies import PowerSGD
from tests.helpers.needs import needs
from tests.helpers.refusals import refused
from tests.helpers.time_to_target_samples import scenario, write_trainings

EVENTS = Path(__file__).parents[3] / "golden" / "training_logs" / "adam" / "events.out.tfevents.tensorboard"


MANY = "system,seed,step,loss\n,0,10,4\n,1,10,5\n,0,20,3\n,1,20,4\n,0,30,2\n"
LONG = "system,seed,step,loss\nall_reduce,3,10,4\nqsgd:bits=4,3,10,5\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("many.csv", MANY), ("long.csv", LONG), ("one.csv", "step,loss\n10,4\n"), ("a=b.csv", LONG)):
        Path(name).write_text(text)


def curves(data: str | bytes, name: str = "f.csv", metric: str | None = None) -> tuple[LoggedCurve, ...]:
    Path(name).write_bytes(data.encode() if isinstance(data, str) else data)
    return read_curves(Path(name), metric)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("f.csv", "step,loss\n1,2.5\n2,2\n"),
        ("f.csv", '\ufeff"step", "loss"\r\n"1.0","2.5"\r\n\r\n"2","2"\r\n'),
        ("f.csv", "step,lr,loss\n0,0.1,9\n1,0.1,2.5\n2,0.1,2\n3,0.1,\n"),  # what was logged before training, and beside
        ("f.jsonl", '{"step": 1, "loss": 2.5}\n\n{"step": 2, "loss": 2}\n{"step": 3, "loss": null}\n'),
    ],
)
def test_tables_with_named_columns_are_read(name: str, data: str) -> None:
    (curve,) = curves(data, name)
    assert (curve.positions, curve.values) == ((1, 2), (2.5, 2.0))


def test_columns_may_name_system_seed_and_ranks() -> None:
    text = "system,seed,ranks,samples,eval/loss\nadam,0,8,64,3\nadam,1,8,64,4\nqsgd,0,8,64,5\nadam,0,8,128,2\n"
    logged = curves(text, metric="eval/loss")
    assert [(curve.system, curve.seed, curve.ranks) for curve in logged] == [
        ("adam", 0, 8),
        ("adam", 1, 8),
        ("qsgd", 0, 8),
    ]
    assert (logged[0].positions, logged[0].values, logged[0].counted) == ((64, 128), (3.0, 2.0), "samples")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f.csv: no row; name columns in its head, such as step,loss"),
        ("step,loss\n", "f.csv: no row"),
        (b"step,loss\n1,\xff\n", "f.csv: not UTF-8 text (byte 12)"),
        ("Wall time,Step,Value\n1.5,1,2\n", "f.csv: columns 'Wall time', 'Step', 'Value': none is 'step' or 'samples'"),
        ("step,λ,lr\n1,2,3\n", "f.csv: no column 'loss'; name one with --metric: 'step', 'λ', 'lr'"),
        ("step,loss,loss\n1,2,3\n", "f.csv: two columns of one name; rename one"),
        ("step,loss\n1\n", "f.csv:2: 1 cells: the head has 2 columns"),
        ("step,loss\n1,x\n", "f.csv:2: 'loss': 'x': must be a number"),
        ("step,loss\n1,٣\n", "must be a number"),
        ("step,loss\n1,1_0\n", "must be a number"),
        ("step,loss\n1.5,1\n", "f.csv:2: 'step': '1.5': must be a whole number"),
        ("step,loss\nnan,1\n", "f.csv:2: 'step': 'nan': must be a whole number"),
        ("step,loss\n-1,1\n", "f.csv:2: 'step': '-1': must be a whole number"),
        ("step,loss\n,1\n2,1\n", "f.csv:2: 'step': missing in a row with a loss"),
        ("step,loss\n1,2\n1,1\n", "f.csv:3: step 1 after 1: must increase; write each training with a seed"),
        ("step,loss\n10,2\n30,1\n20,1\n40,1\n", "f.csv:4: step 20 after 30: must increase; write each training"),
        ("step,loss\n0,3\n10,2\n20,1\n0,3\n10,2\n20,1\n", "f.csv:5: step 0 after 20: must increase"),
        (
            "step,loss\n100,3\n90,2\n80,1\n",
            "must increase; write each training with a seed ",
        ),
        ("samples,loss\n1e16,2\n", "f.csv:2: samples 10000000000000000: must be at most 1000000000000000"),
        ("step,loss\n1,2\n2,nan\n3,1\n", "f.csv:3: 'loss' is nan and later a number"),
        ("step,loss\n1,nan\n2,inf\n", "f.csv: 'loss': no number after step 0"),
        ("step,loss\n1,1e300\n", "f.csv:2: 1e+300: must be at most 1e+100"),
        ("step,loss,seed\n1,2,a\n", "f.csv:2: seed: 'a': must be a number"),
        ("step,loss,ranks\n1,2,0\n", "f.csv:2: ranks: '0': must be a whole number from 1 on"),
        ('step,loss\n1,"' + "9" * 200_000, "f.csv:2: no CSV"),
    ],
)
def test_a_table_that_does_not_hold_together_is_refused_in_a_sentence(text: str | bytes, said: str) -> None:
    with refused(said):
        curves(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]\n", "f.jsonl:1: [1, 2]: must be an object, one a step"),
        ('{"step": 1, "loss": true}\n', "f.jsonl:1: 'loss': True: must be a number"),
        ('{"step": 1, "loss": [1]}\n', "must be a number"),
        ('{"step": 1}\n{"step": 2', "f.jsonl:2: "),
    ],
)
def test_lines_that_are_no_steps_are_refused_in_a_sentence(text: str, said: str) -> None:
    with refused(said):
        curves(text, "f.jsonl")


@pytest.mark.parametrize("name", ["f.parquet", "trainer_state.json", "f.csv.gz", "f"])
def test_all_else_is_refused_with_what_is_read(name: str) -> None:
    rule = "of logs are read CSV (.csv) and JSON lines (.jsonl) with 'step' or 'samples' and 'loss', and TensorBoard's"
    with refused(start=f"{name}: not read; {rule}"):
        curves("step,loss\n1,2\n", name)


def test_of_a_training_that_was_resumed_the_later_life_counts_and_a_note_says_so() -> None:
    losses = enumerate([0, 10, 20, 30, 40, 20, 30, 40, 50, 40, 50, 60])
    (curve,) = curves("step,loss\n" + "\n".join(f"{step},{5 + number}" for number, step in losses))
    assert curve.positions == (10, 20, 30, 40, 50, 60)
    assert curve.values == (6, 10, 11, 14, 15, 16)
    assert curve.notes == ("f.csv: values of steps that were logged again later are left out: 5",)


class TestEvents:
    @pytest.mark.parametrize("path", [EVENTS, EVENTS.parent])
    def test_a_file_and_the_folder_of_a_run_are_one_curve(self, path: Path) -> None:
        needs("tensorboard")
        for metric, first, every in (("loss", 10, 10), ("eval/loss", 50, 50)):
            (curve,) = read_curves(path, metric)
            level = 4.0 if metric == "loss" else 4.5
            assert curve.positions == tuple(range(first, 201, every))
            assert curve.values == pytest.approx([level - step / 100 for step in curve.positions], abs=1e-6)

    def test_a_resumed_run_and_scalars_that_are_tensors_are_read(self) -> None:
        needs("tensorboard")
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from tensorboard.util.tensor_util import make_tensor_proto

        scalars = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
        for suffix, first, losses in ((".1", 1, (4.0, 3.0, 9.0)), (".2", 3, (2.0, 1.0))):
            writer = EventFileWriter("run", filename_suffix=suffix)
            for step, loss in enumerate(losses, start=first):
                tensor = make_tensor_proto(loss, dtype="float32")
                value = Summary.Value(tag="loss", tensor=tensor, metadata=scalars)
                writer.add_event(Event(step=step, wall_time=10.0 * first + step, summary=Summary(value=[value])))
            writer.close()
        (curve,) = read_curves(Path("run"), None)
        assert (curve.positions, curve.values) == ((1, 2, 3, 4), (4.0, 3.0, 2.0, 1.0))
        assert curve.notes == ("run: values of steps that were logged again later are left out: 1",)

    def test_what_is_no_event_file_and_a_tag_that_is_not_there_are_refused(self) -> None:
        needs("tensorboard")
        with refused("no tag 'x'; name one with --metric: 'loss'"):
            read_curves(EVENTS, "x")
        with refused("no tag 'loss'; name one with --metric: none; log it with SummaryWriter.add_scalar"):
            curves("step,loss\n1,2\n", "events.out.tfevents.1")
        with refused("cannot be read: no such file"):
            read_curves(Path("events.out.tfevents.none"), None)
        Path("runs/a").mkdir(parents=True)
        with refused("runs: no event file of TensorBoard in it; name the folder of one run"):
            read_curves(Path("runs"), None)

    def test_without_tensorboard_a_sentence_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("tensorboard", "tensorboard.backend.event_processing.event_accumulator"):
            monkeypatch.setitem(sys.modules, name, None)
        rule = "it reads event files; in the checkout: pip install '.[tensorboard]'; or save the curve as CSV"
        with refused(f"tensorboard is missing: {rule}", start=EVENTS):
            read_curves(EVENTS, None)


def test_one_log_of_one_training_is_of_ddp() -> None:
    trainings, notes = load_logs(["one.csv"], scenario())
    (curve,) = trainings.curves
    assert (curve.system, curve.ranks, curve.seed, curve.steps, curve.values) == ("all_reduce", 4, 0, (10,), (4.0,))
    assert "taken as DDP" in " ".join(notes)
    assert "taken as 4 (--ranks)" in " ".join(notes)
    assert load_logs(["one.csv"], scenario(), ranks=8)[0].rank_counts == (8,)


def test_a_system_in_front_names_all_seeds_of_a_log() -> None:
    trainings, _ = load_logs(["all_reduce=many.csv", "power_sgd:matrix_rank=2=one.csv"], scenario())
    assert [(curve.system, curve.seed, curve.steps) for curve in trainings.curves] == [
        ("all_reduce", 0, (10, 20, 30)),
        ("all_reduce", 1, (10, 20)),
        ("power_sgd:matrix_rank=2", 0, (10,)),
    ]
    assert trainings.systems["power_sgd:matrix_rank=2"].strategy == PowerSGD(matrix_rank=2)
    assert [row[0] for row in median_values(trainings.of("all_reduce", 4))] == [10, 20]


def test_a_log_of_ddp_is_one_without_compression() -> None:
    trainings, _ = load_logs(["DDP=one.csv", "qsgd=many.csv"], scenario())
    assert list(trainings.systems) == ["all_reduce", "qsgd"]


def test_samples_become_steps_by_the_batch_of_all_ranks() -> None:
    Path("s.csv").write_text("samples,loss\n2,5\n4,4\n6,3\n8,2\n")
    trainings, notes = load_logs(["s.csv"], scenario())  # 4 ranks with a sample each
    assert (trainings.curves[0].steps, trainings.curves[0].values) == ((1, 2), (4.0, 2.0))
    assert "steps are samples / 4" in " ".join(notes)


def test_1_bit_adam_without_dense_steps_is_remarked() -> None:
    for options, is_said in (("", True), (":dense_steps=5", False)):
        _, notes = load_logs([f"one_bit_adam{options}=one.csv", "all_reduce=one.csv"], scenario())
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
    Path("runs/lr=0.1").mkdir(parents=True)
    with refused(said):
        load_logs(texts.split(), scenario())


def test_a_convergence_file_and_a_shipped_name_are_no_logs() -> None:
    write_trainings(Path("t.json"))
    Path("curve").touch()
    Path("runs/lr=0.1").mkdir(parents=True)
    logs = ["one.csv", "runs/lr=0.1", "qsgd=t.json", "none.jsonl", "curve", "events.out.tfevents.1"]
    assert [text for text in logs if not names_a_log(text)] == []
    assert [text for text in ("t.json", "none.json", "t.toml", "characters", "nothing") if names_a_log(text)] == []
