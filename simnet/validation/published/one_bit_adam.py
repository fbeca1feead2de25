"""The rows of 1-bit Adam's publication, and the workload of both of its clusters."""

from dataclasses import dataclass

from msgspec import structs

from simnet.cluster.hardware import Calibration
from simnet.core.units import Duration
from simnet.engine.result import StrategyResult
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import AnyStrategy, DenseAllReduce, OneBitAdam
from simnet.validation import outcome, published_rows, shipped_parts
from simnet.validation.outcome import Parameter
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import PublishedNetwork, cached
from simnet.workload.workload import Workload

SOURCE = "1-bit Adam"
TABLE = "Table 1, grad_accum="
FIGURE = "Fig 5(a) batch=16/GPU"
ALL_REDUCE = "backward_allreduce"
BATCH = 16
NUM_ELEMENTS = 336_226_108
"""Parameters of BERT-Large for pre-training, as in scenarios/workloads/gradients/bert_large.json."""
GPUS_IN_TABLE_AND_FIGURE = 64
"""GPUs at which both Table 1 and Fig 5a give a dense step, with 16 samples a GPU and no accumulation."""
COMPRESSED = OneBitAdam(finite_check=False)


ETHERNET = PublishedNetwork(
    label="Ethernet", column="Eth40 (4.1 Gbps eff)", part="one_bit_adam_ethernet", nominal_gbit_per_s=40
)
INFINIBAND = PublishedNetwork(
    label="InfiniBand", column="IB100", part="one_bit_adam_infiniband", nominal_gbit_per_s=100
)
NETWORKS = (ETHERNET, INFINIBAND)


@dataclass(frozen=True, kw_only=True)
class ComputeTimes:
    """Means of Table 1 for one micro-batch of 16 samples on a V100 [s], and their rows."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    rows: tuple[PublishedRow, ...]

    @property
    def total_s(self) -> float:
        """Forward, backward and optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s


def table_rows(network: PublishedNetwork, metric: str, **wanted: object) -> tuple[PublishedRow, ...]:
    """Return rows of Table 1 [ms]."""
    found = published_rows.load().select(SOURCE, network=network.column, metric=metric, **wanted)
    return tuple(row for row in found if row.location.startswith(TABLE))


def figure_rows(network: PublishedNetwork, method: str) -> tuple[PublishedRow, ...]:
    """Return the rows of Fig 5a [samples/s] of "Adam" or "1-bit Adam"."""
    return published_rows.load().select(SOURCE, location=FIGURE, network=network.column, method=method)


def figure_s(row: PublishedRow) -> float:
    """Return the time of an iteration from a throughput of Fig 5a [s]."""
    return row.gpus * BATCH / row.value


def table_s(row: PublishedRow) -> float:
    """Return the time of a row of Table 1 [s]."""
    return row.value / 1e3


def accumulation(row: PublishedRow) -> int:
    """Return the number of micro-batches per iteration of a row of Table 1."""
    return int(row.location.removeprefix(TABLE).split()[0])


@cached
def compute_times(network: PublishedNetwork) -> ComputeTimes:
    """Return the mean compute of the rows of Table 1 with 16 samples a GPU and no accumulation.

    The metric "backward_else" is backward without its all-reduce.
    """
    found = {
        metric: tuple(row for row in table_rows(network, metric, batch_per_gpu=str(BATCH)) if accumulation(row) == 1)
        for metric in ("forward", "backward_else", "step")
    }
    means = {metric: sum(row.value for row in these) / len(these) / 1e3 for metric, these in found.items()}
    return ComputeTimes(
        forward_s=means["forward"],
        backward_s=means["backward_else"],
        optimizer_s=means["step"],
        rows=tuple(row for these in found.values() for row in these),
    )


def compute_parameter(network: PublishedNetwork) -> Parameter:
    """Return the compute time of a micro-batch, the mean of Table 1, as a parameter."""
    found = compute_times(network)
    key = f"forward + backward + step, {network.label}"
    return outcome.compute_parameter(key, found.total_s, "mean", found.rows)


def dense(algorithm: str) -> DenseAllReduce:
    """Return Adam's exchange: one fused all-reduce after backward, as Table 1 times it."""
    return DenseAllReduce(algorithm=algorithm, bucketing="fused", overlap=False)


def simulate_iteration(
    network: PublishedNetwork, calibration: Calibration, num_nodes: int, strategy: AnyStrategy, accumulated: int = 1
) -> StrategyResult:
    """Simulate an iteration of BERT-Large in fp16."""
    scenario = _scenario(network, num_nodes, strategy, accumulated)
    return simulate(structs.replace(scenario, calibration=calibration)).result


@cached
def _scenario(network: PublishedNetwork, num_nodes: int, strategy: AnyStrategy, accumulated: int) -> Scenario:
    found = compute_times(network)
    workload = Workload(
        num_elements=NUM_ELEMENTS,
        dtype="fp16",
        forward_s=Duration(found.forward_s),
        backward_s=Duration(found.backward_s),
        optimizer_s=Duration(found.optimizer_s),
        batch_per_rank=BATCH,
    )
    return Scenario(
        cluster=shipped_parts.cluster(network.part, num_nodes),
        workload=workload,
        strategy=strategy,
        run=RunSettings(grad_accumulation=accumulated),
    )


def unfitted(network: PublishedNetwork) -> Calibration:
    """Return the network's calibration without any fitted value."""
    return shipped_parts.unfitted(network.part, kernels={}, poll_s=Duration(0), all_to_all_efficiency=1.0)


def row_in_table_and_figure(network: PublishedNetwork) -> PublishedRow:
    """Return the dense point of Fig 5a whose setup is also in Table 1."""
    return next(row for row in figure_rows(network, "Adam") if row.gpus == GPUS_IN_TABLE_AND_FIGURE)


def table_sum_s(network: PublishedNetwork, accumulated: int) -> float:
    """Return the sum of the parts of a dense step of 64 GPUs in Table 1, with 16 samples a micro-batch [s]."""
    return _sum_s(network, accumulated, ("forward", ALL_REDUCE, "backward_else", "step"))


def compute_sum_s(network: PublishedNetwork, accumulated: int) -> float:
    """Return the same sum without the all-reduce [s]."""
    return _sum_s(network, accumulated, ("forward", "backward_else", "step"))


def _sum_s(network: PublishedNetwork, accumulated: int, metrics: tuple[str, ...]) -> float:
    found = (
        row
        for metric in metrics
        for row in table_rows(network, metric, gpus=GPUS_IN_TABLE_AND_FIGURE, batch_per_gpu=str(BATCH))
    )
    return sum(row.value for row in found if accumulation(row) == accumulated) / 1e3
