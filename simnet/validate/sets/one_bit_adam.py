"""The 1-bit Adam clusters: what their rows say, and the workload that both networks train."""

from dataclasses import dataclass

from simnet.hardware import Calibration
from simnet.result import StrategyResult
from simnet.scenario import Run, Scenario
from simnet.simulate import simulate
from simnet.strategies import AllReduce, AnyStrategy
from simnet.units import Duration
from simnet.validate import parts
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Parameter
from simnet.workload.workload import Workload

SOURCE = "1-bit Adam"
TABLE = "Table 1, grad_accum="
FIGURE = "Fig 5(a) batch=16/GPU"
BATCH = 16
NUM_ELEMENTS = 336_226_108
"""Parameters of BERT-Large for pre-training, as in scenarios/workloads/gradients/bert_large.json."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """One of the two networks: its name in the rows and in the shipped parts, and its NIC."""

    label: str
    column: str
    part: str
    nominal_gbit_per_s: float


ETHERNET = Network(label="Ethernet", column="Eth40 (4.1 Gbps eff)", part="one_bit_adam_ethernet", nominal_gbit_per_s=40)
INFINIBAND = Network(label="InfiniBand", column="IB100", part="one_bit_adam_infiniband", nominal_gbit_per_s=100)
NETWORKS = (ETHERNET, INFINIBAND)


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Seconds of one micro-batch of 16 samples on a V100 of a network, and the rows of Table 1 behind these means."""

    network: Network
    forward_s: float
    backward_s: float
    optimizer_s: float
    rows: tuple[Row, ...]

    @property
    def total_s(self) -> float:
        """Forward, backward and optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s


def table_rows(rows: Measurements, network: Network, metric: str, **wanted: object) -> tuple[Row, ...]:
    """Return rows of Table 1 [ms]."""
    found = rows.select(SOURCE, network=network.column, metric=metric, **wanted)
    return tuple(row for row in found if row.location.startswith(TABLE))


def accumulation(row: Row) -> int:
    """Return the micro-batches of one iteration of a row of Table 1."""
    return int(row.location.removeprefix(TABLE).split()[0])


def compute(rows: Measurements, network: Network) -> Compute:
    """Return the mean compute of the rows of Table 1 with 16 samples a GPU and no accumulation."""
    found = {
        metric: tuple(
            row for row in table_rows(rows, network, metric, batch_per_gpu=str(BATCH)) if accumulation(row) == 1
        )
        for metric in ("forward", "backward_else", "step")
    }
    means = {metric: sum(row.value for row in these) / len(these) / 1e3 for metric, these in found.items()}
    return Compute(
        network=network,
        forward_s=means["forward"],
        backward_s=means["backward_else"],
        optimizer_s=means["step"],
        rows=tuple(row for these in found.values() for row in these),
    )


def compute_parameter(found: Compute) -> Parameter:
    """Return the compute time as a parameter."""
    return Parameter(
        part="workload",
        key=f"forward + backward + step, {found.network.label}",
        value=found.total_s,
        text=f"{1e3 * found.total_s:.1f} ms",
        how="mean",
        rows=found.rows,
    )


def figure_rows(rows: Measurements, network: Network, method: str) -> tuple[Row, ...]:
    """Return the rows of Fig 5a [samples/s] of "Adam" or "1-bit Adam"."""
    return rows.select(SOURCE, location=FIGURE, network=network.column, method=method)


def simulated(
    calibration: Calibration,
    found: Compute,
    *,
    nodes: int,
    strategy: AnyStrategy,
    run: Run | None = None,
) -> StrategyResult:
    """Simulate an iteration of BERT-Large in fp16 on so many nodes."""
    workload = Workload(
        num_elements=NUM_ELEMENTS,
        dtype="fp16",
        forward_s=Duration(found.forward_s),
        backward_s=Duration(found.backward_s),
        optimizer_s=Duration(found.optimizer_s),
        batch_per_rank=BATCH,
    )
    scenario = Scenario(
        cluster=parts.cluster(found.network.part, nodes),
        workload=workload,
        calibration=calibration,
        strategy=strategy,
        run=run or Run(),
    )
    return simulate(scenario).result


def dense(algorithm: str) -> AllReduce:
    """Return Adam's exchange: one fused all-reduce after backward, as Table 1 times it apart from backward."""
    return AllReduce(algorithm=algorithm, bucketing="fused", overlap=False)
