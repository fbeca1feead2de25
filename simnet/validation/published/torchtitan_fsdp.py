"""torchtitan: Llama 3.1 8B under FSDP2, from one node to sixteen, and from four to eight."""

from collections.abc import Iterator, Mapping

from simnet.cluster.hardware import Cluster, Link
from simnet.core.units import Bandwidth, Duration
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import FullShard
from simnet.validation import published_rows, shipped_parts
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published_rows import PublishedRow
from simnet.validation.study import FreeNumber, Study
from simnet.workload.workload import Gradient, Workload

SOURCE = "torchtitan"
METHODS = (
    "FSDP",
    "FSDP + torch.compile",
    "FSDP + torch.compile + Float8",
    "FSDP + torch.compile + Float8, H200",
)
"""Each with seconds of forward and backward of a step, fitted to its fewest nodes."""
CALIBRATION = "azure_nd_a100_v4"
"""NCCL's costs over RDMA, fitted to other nodes: A100, 200 Gbit/s a GPU."""
NVLINK_BYTES_PER_S, NIC_BYTES_PER_S = 450e9, 400e9 / 8
TOKENS = 2 * 8192
"""Of a GPU in a step: two samples of Llama 3's sequence."""
FORWARD = 1 / 3
BOUNDS_S = (0.5, 4.0)
TARGET = Limit(mean=0.01, worst=0.02)
WIDTH, INNER, KEYS, VOCABULARY, LAYERS = 4096, 14336, 1024, 128256, 32


def evaluate() -> Outcome:
    """Take compute from the fewest nodes of each method, predict the most."""
    study, blocking = _study(overlap=True), _study(overlap=False)

    def alternatives() -> Iterator[Alternative]:
        yield Alternative("every message blocks", "the fewest nodes of each method", blocking.predictions)
        unfitted = blocking.fixed(study.fitted)
        yield Alternative("every message blocks, with compute as fitted above", "as above", unfitted.predictions)

    return Outcome(
        title="torchtitan: FSDP2 on more nodes",
        unit="ms",
        target=TARGET,
        bound=TARGET,
        parameters=study.parameters,
        predictions=study.predictions,
        make_alternatives=alternatives,
    )


def _study(*, overlap: bool) -> Study:
    rows = published_rows.load()
    by_nodes = {method: sorted(rows.select(SOURCE, method=method), key=lambda row: row.nodes) for method in METHODS}
    return Study(
        initial={},
        fits=tuple(
            FreeNumber(
                key=method,
                bounds=BOUNDS_S,
                rows=(by_nodes[method][0],),
                name=f"forward + backward, {method}",
                text=lambda seconds: f"{1e3 * seconds:.0f} ms",
            )
            for method in METHODS
        ),
        predict=lambda seconds, row: _iteration_s(seconds, row, overlap=overlap),
        measured=lambda row: TOKENS / row.value,
        series=lambda row: row.method,
        label=lambda row: f"{row.method}, {row.gpus} GPUs",
        # The most nodes: numbers between lie nearer to what was fitted.
        held_out=tuple(node[-1] for node in by_nodes.values()),
    )


def _iteration_s(seconds: Mapping[str, float], row: PublishedRow, *, overlap: bool) -> float:
    compute_s = seconds[row.method]
    calibration = shipped_parts.calibration(CALIBRATION)
    cluster = Cluster(
        num_nodes=row.nodes,
        ranks_per_node=row.gpus_per_node,
        nics_per_node=row.gpus_per_node,
        intra_node=Link(bytes_per_s=Bandwidth(NVLINK_BYTES_PER_S), alpha_s=Duration(1.63e-6)),
        inter_node=Link(bytes_per_s=Bandwidth(NIC_BYTES_PER_S), alpha_s=Duration(4e-6)),
    )
    workload = Workload(
        tensors=_tensors(),
        forward_s=Duration(FORWARD * compute_s),
        backward_s=Duration((1 - FORWARD) * compute_s),
    )
    strategy = FullShard(gather_dtype="bf16", reduce_dtype="fp32", overlap=overlap)
    scenario = Scenario(cluster=cluster, workload=workload, calibration=calibration, strategy=strategy)
    return simulate(scenario).result.iteration_s


def _tensors() -> tuple[Gradient, ...]:
    """Return the tensors of Llama 3.1 8B in the order of backward, which spends its time on matrices."""
    inner = (
        (WIDTH, INNER),
        (INNER, WIDTH),
        (INNER, WIDTH),
        (WIDTH, WIDTH),
        (KEYS, WIDTH),
        (KEYS, WIDTH),
        (WIDTH, WIDTH),
    )
    blocks = tuple(
        Gradient(name=f"layers.{layer}.weight", shape=shape, backward_share=float(shape[0] * shape[1]))
        for layer in reversed(range(LAYERS))
        for shape in inner
    )
    head = Gradient(name="output.weight", shape=(VOCABULARY, WIDTH), backward_share=float(VOCABULARY * WIDTH))
    embedding = Gradient(name="tok_embeddings.weight", shape=(VOCABULARY, WIDTH), backward_share=0.0)
    return (head, *blocks, embedding)
