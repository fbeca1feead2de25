"""BinSGDM's two headline speedups: a band over the batch sizes that the publication leaves open."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from simnet.cluster.hardware import Calibration
from simnet.engine import scenario as scenarios
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.validation import published_rows, shipped_parts
from simnet.validation.outcome import Alternative, FigureLine, Limit, Outcome, Prediction
from simnet.validation.published import hkbu
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import cached, with_value

WORKLOADS = {"ResNet-50": "resnet50", "BERT-Base": "bert_base_squad"}
TASKS = {"ResNet-50": "ResNet-50 at 224x224", "BERT-Base": "BERT-Base on SQuAD, sequence 384"}
"""The simulated task; the publication names only the model with the headline."""
PRECISIONS = {"tf32": "TF32", "amp": "mixed precision"}
BATCHES = range(16, 129)
SHOWN = (16, 24, 32, 48, 64, 96, 128)
STRATEGIES: Mapping[str, Mapping[str, object]] = {
    "overlapped": {"kind": "binsgdm", "rounding": "random"},
    "after backward": {"kind": "binsgdm", "rounding": "random", "bucketing": "fused", "overlap": False},
}
TARGET = Limit(worst=1e-9)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A headline in one precision: speedup by batch size."""

    row: PublishedRow
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
    def met_at(self) -> str:
        """The batch size with the speedup nearest to the headline, if within 5 %, and the precision."""
        batch, speedup = min(self.speedups, key=lambda point: abs(point[1] - self.row.value))
        is_near = abs(speedup / self.row.value - 1) < 0.05
        return f"{f'batch {batch}' if is_near else f'no batch up to {BATCHES[-1]}'} in {PRECISIONS[self.precision]}"


def evaluate() -> Outcome:
    """Predict the band of each headline."""
    overlapped = cases("overlapped")
    predictions = _predictions(overlapped)
    return Outcome(
        title="BinSGDM / Birder: headline speedups",
        unit="x",
        target=TARGET,
        bound=TARGET,
        parameters=hkbu.bsp(hkbu.ETHERNET).parameters,
        predictions=predictions,
        facts={"tasks": TASKS, "precisions": PRECISIONS, "overlapped": overlapped, "cases": cases},
        make_alternatives=_alternatives,
        curves=tuple(
            FigureLine(
                panel=f"{TASKS[case.row.model]}\npublished {case.row.value:g}x",
                label=PRECISIONS[case.precision],
                points=tuple((float(batch), speedup) for batch, speedup in case.speedups if batch in SHOWN),
                level=case.row.value,
            )
            for case in overlapped
        ),
    )


@cached
def cases(when: str) -> tuple[Case, ...]:
    """Return both headlines in both precisions, with the exchange "overlapped" or "after backward"."""
    return tuple(
        Case(row=row, precision=precision, speedups=tuple(_speedups(_scenario(WORKLOADS[row.model], precision, when))))
        for row in published_rows.load().select("Birder", metric="speedup")
        for precision in PRECISIONS
    )


def calibrated() -> Calibration:
    """Return the shipped estimate for A100 nodes over TCP, with the Ethernet efficiency of HKBU's 8-GPU rows."""
    key = "inter_node.efficiency"
    return with_value(shipped_parts.calibration("a100_tcp_estimate"), key, hkbu.bsp(hkbu.ETHERNET).value(key))


def _scenario(workload: str, precision: str, when: str) -> Scenario:
    parts = {
        "cluster": "a100_8x8_10gbit",
        "workload": {"use": workload, "precision": precision},
        "strategy": STRATEGIES[when],
        "baseline": "all_reduce",
    }
    return replace(scenarios.build(parts), calibration=calibrated())


def _speedups(base: Scenario) -> Iterator[tuple[int, float]]:
    for batch in BATCHES:
        speedup = simulate(replace(base, workload=replace(base.workload, batch_per_rank=batch))).speedup
        assert speedup is not None
        yield batch, speedup


def _predictions(of_cases: tuple[Case, ...]) -> tuple[Prediction, ...]:
    """Return the band of each headline over these cases."""
    rows = dict.fromkeys(case.row for case in of_cases)
    return tuple(_prediction(row, [case for case in of_cases if case.row == row]) for row in rows)


def _prediction(row: PublishedRow, of_headline: list[Case]) -> Prediction:
    # The predicted value is the point of the band nearest to the headline: no error within the band.
    low, high = min(case.low for case in of_headline), max(case.high for case in of_headline)
    return Prediction(
        series="batch 16 to 128, both precisions",
        label=f"{TASKS[row.model]}, {row.gpus} A100, 10 Gbit/s",
        row=row,
        predicted=min(max(row.value, low), high),
        measured=row.value,
        band=(low, high),
    )


def _alternatives() -> Iterator[Alternative]:
    """Yield the band of each precision alone, and that of an exchange after backward."""
    on = "the same rows"
    for key, name in PRECISIONS.items():
        some = tuple(case for case in cases("overlapped") if case.precision == key)
        yield Alternative(f"{name} only", on, _predictions(some))
    yield Alternative("exchange after backward", on, _predictions(cases("after backward")))
