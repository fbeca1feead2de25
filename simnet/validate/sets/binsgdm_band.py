"""BinSGDM's two headline speedups: a band over the batch sizes that the publication leaves open."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from msgspec.structs import replace

from simnet import scenario as scenarios
from simnet.hardware import Calibration
from simnet.scenario import Scenario
from simnet.simulate import simulate
from simnet.validate import parts
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Alternative, Curve, Limit, Outcome, Prediction, alternative
from simnet.validate.sets import hkbu, hkbu_bsp

SOURCE = "Birder"
CLUSTER = "a100_8x8_10gbit"
CALIBRATION = "a100_tcp_estimate"
WORKLOADS = {"ResNet-50": "resnet50", "BERT-Base": "bert_base_squad"}
TASKS = {"ResNet-50": "ResNet-50 at 224x224", "BERT-Base": "BERT-Base on SQuAD, sequence 384"}
"""What is simulated; the publication's sentence with the headline names the model alone."""
PRECISIONS = {"tf32": "TF32", "amp": "mixed precision"}
BATCHES = range(16, 129)
SHOWN = (16, 24, 32, 48, 64, 96, 128)
OVERLAPPED = {"kind": "binsgdm"}
AFTER_BACKWARD = {"kind": "binsgdm", "bucketing": "fused", "overlap": False}
TARGET = Limit(worst=1e-9)

ABOUT = """\
Eight nodes of eight A100-80GB, 10 Gbit Ethernet: hierarchical 1-bit all-reduce against PyTorch DDP in fp32, both \
overlapped with backward in DDP's buckets. Batch size and precision are not published, so the prediction is a band: \
batch 16 to 128 a GPU, compute in TF32 and in mixed precision from published single-GPU throughput (ResNet-50: \
NVIDIA DeepLearningExamples; BERT-Base: fine-tuning on SQuAD at sequence 384, the task that the paper is reported \
to train, Lambda's benchmark). Published are throughputs at one batch a precision; time is taken in proportion to \
the batch. The network is 10 Gbit/s at the efficiency of HKBU's 8-GPU Ethernet rows; kernels of the codec are \
estimated by the bytes that they move. Nothing is fitted to the headlines. Met here means only *inside the band*: \
{widths}, so this set can refute the model but hardly confirm it."""
CAVEAT = "inside a wide band ({widths}), since batch and precision are not published: hardly a test"
MISSES = """\
{sentences} If the exchange starts only after backward, the batches that meet the headlines are smaller: {after}."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A headline in one precision: speedup by batch size."""

    row: Row
    precision: str
    speedups: tuple[tuple[int, float], ...]

    @property
    def low(self) -> float:
        """Smallest speedup."""
        return min(speedup for _, speedup in self.speedups)

    @property
    def high(self) -> float:
        """Largest speedup."""
        return max(speedup for _, speedup in self.speedups)

    @property
    def meeting_batch(self) -> int | None:
        """The batch size whose speedup comes nearest to the headline; None if no batch gets within 5 %."""
        batch, speedup = min(self.speedups, key=lambda point: abs(point[1] - self.row.value))
        return batch if abs(speedup / self.row.value - 1) < 0.05 else None


def run(rows: Measurements, *, alternatives: bool) -> Outcome:
    """Predict the band of each headline."""
    calibration = calibrated(rows)
    cases = _cases(rows, calibration, OVERLAPPED, BATCHES)
    after = _cases(rows, calibration, AFTER_BACKWARD, BATCHES)
    predictions = tuple(_prediction(row, cases) for row in headlines(rows))
    network = hkbu.NETWORKS[0]
    widths = " and ".join(f"{p.low:.1f}x to {p.high:.1f}x for {TASKS[p.row.model]}" for p in predictions)
    factors = " and ".join(f"{p.high / p.low:.0f}" for p in predictions if p.low and p.high)
    headline = " and ".join(f"{row.value:g}x" for row in headlines(rows))
    return Outcome(
        name="binsgdm_band",
        title="BinSGDM / Birder: headline speedups",
        unit="x",
        parameters=(hkbu_bsp.parameter(rows, network, hkbu_bsp.fit(rows, network)),),
        predictions=predictions,
        target=TARGET,
        bound=TARGET,
        about=ABOUT.format(widths=widths),
        misses=MISSES.format(
            sentences=" ".join(_sentence(row, cases) for row in headlines(rows)),
            after="; ".join(_batches(row, after) for row in headlines(rows)),
        ),
        alternatives=_alternatives(rows, cases, after) if alternatives else (),
        curves=tuple(_curve(case) for case in cases),
        caveat=CAVEAT.format(widths=widths),
        speedups=f"BinSGDM's headlines of {headline}: only a band, whose ends are a factor {factors} apart",
    )


def headlines(rows: Measurements) -> tuple[Row, ...]:
    """Return the two published speedups."""
    return rows.select(SOURCE, metric="speedup")


def calibrated(rows: Measurements) -> Calibration:
    """Return the shipped estimate for A100 nodes over TCP, with the Ethernet efficiency of HKBU's 8-GPU rows."""
    return parts.with_efficiency(parts.calibration(CALIBRATION), "inter_node", hkbu_bsp.fit(rows, hkbu.NETWORKS[0]))


def _cases(
    rows: Measurements, calibration: Calibration, strategy: Mapping[str, object], batches: range
) -> tuple[Case, ...]:
    return tuple(
        Case(
            row=row,
            precision=precision,
            speedups=tuple((batch, _speedup(row, precision, batch, calibration, strategy)) for batch in batches),
        )
        for row in headlines(rows)
        for precision in PRECISIONS
    )


def _speedup(row: Row, precision: str, batch: int, calibration: Calibration, strategy: Mapping[str, object]) -> float:
    base = _scenario(WORKLOADS[row.model], precision, str(strategy))
    scenario = replace(base, calibration=calibration, workload=replace(base.workload, batch_per_rank=batch))
    speedup = simulate(scenario).speedup
    assert speedup is not None
    return speedup


@cache
def _scenario(workload: str, precision: str, strategy: str) -> Scenario:
    chosen = OVERLAPPED if strategy == str(OVERLAPPED) else AFTER_BACKWARD
    return scenarios.build(
        {
            "cluster": CLUSTER,
            "workload": {"use": workload, "precision": precision},
            "calibration": CALIBRATION,
            "strategy": chosen,
            "baseline": "all_reduce",
        }
    )


def _prediction(row: Row, cases: tuple[Case, ...]) -> Prediction:
    mine = [case for case in cases if case.row == row]
    low, high = min(case.low for case in mine), max(case.high for case in mine)
    return Prediction(
        series="batch 16 to 128, both precisions",
        label=f"{TASKS[row.model]}, {row.gpus} A100, 10 Gbit/s",
        row=row,
        predicted=min(max(row.value, low), high),
        measured=row.value,
        low=low,
        high=high,
    )


def _sentence(row: Row, cases: tuple[Case, ...]) -> str:
    mine = [case for case in cases if case.row == row]
    bands = (f"{case.low:.1f} to {case.high:.1f} in {PRECISIONS[case.precision]}" for case in mine)
    return (
        f"{TASKS[row.model]}: {' and '.join(bands)}; {row.value:g}x is met at {_batches(row, cases).partition(' ')[2]}."
    )


def _batches(row: Row, cases: tuple[Case, ...]) -> str:
    found = (
        f"batch {case.meeting_batch} in {PRECISIONS[case.precision]}"
        if case.meeting_batch
        else f"no batch up to {BATCHES[-1]} in {PRECISIONS[case.precision]}"
        for case in cases
        if case.row == row
    )
    return f"{row.model} {' and '.join(found)}"


def _alternatives(rows: Measurements, overlapped: tuple[Case, ...], after: tuple[Case, ...]) -> tuple[Alternative, ...]:
    """Return what one precision, or an exchange after backward, leaves of the band."""
    variants = {f"{name} only": tuple(c for c in overlapped if c.precision == key) for key, name in PRECISIONS.items()}
    variants["exchange after backward"] = after
    return tuple(
        alternative(variant, "the same rows", tuple(_prediction(row, cases) for row in headlines(rows)))
        for variant, cases in variants.items()
    )


def _curve(case: Case) -> Curve:
    return Curve(
        panel=f"{TASKS[case.row.model]}\npublished {case.row.value:g}x",
        label=PRECISIONS[case.precision],
        points=tuple((float(batch), speedup) for batch, speedup in case.speedups if batch in SHOWN),
        level=case.row.value,
    )
