"""Global-QSGD: all-reduces of 32, 8 and 4 bits an element, and a gather of 8, among four A100 of one node."""

from collections.abc import Iterator, Mapping
from functools import partial

from simnet.calibration.fit import Values
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.cluster.kernel_times import KernelTime
from simnet.core.units import Bandwidth, Duration
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import AnyStrategy, DenseAllReduce, QSGDInf
from simnet.validation import published_rows
from simnet.validation.outcome import Alternative, Limit, Outcome, Parameter
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import cached
from simnet.validation.study import Study
from simnet.workload.workload import Workload

SOURCE = "sands-lab/global-qsgd"
DENSE, EIGHT, FOUR, GATHERED = "fp32 all-reduce", "8-bit all-reduce", "4-bit all-reduce", "8-bit all-gather"
WIDE_RESNET, TRANSFORMER = "Wide ResNet-101-2", "Transformer-XL base"
NUM_ELEMENTS: Mapping[str, int] = {WIDE_RESNET: 126_886_696, TRANSFORMER: 191_950_298}
"""Parameters: `num_params` of the weights' metadata in torchvision; "#params" in the logs."""
NVLINK_BYTES_PER_S = 300e9
"""One direction of an A100's NVLinks, data sheet: what the fitted rates are shown against."""
MEMORY_BYTES_PER_S = 0.84 * 2039e9
"""Memory of an A100-80GB: the part of the data sheet that copies reach (calibrations/v100_tcp_estimate)."""
LAUNCH_S, HOP_S = 5e-6, 3.4e-6
"""A kernel's launch (order of magnitude), and a hop over NVLink in NCCL's table (ring, Simple)."""
HOOK_BYTES: Mapping[str, tuple[float, float, float]] = {
    EIGHT: (33.0, 12.0, 13.0),
    FOUR: (48.0, 77.0, 35.5),
    GATHERED: (33.0, 0.0, 35.0),
}
"""Bytes an element that PyTorch's operators move in a hook before, between and after its messages.

Counted in gqsgd/ddphook.py and gqsgd/allreduce.py, one operator after the other. 8 bits: abs 8, max 4, div_ 8, rounding
8, to(int8) 5; two clones 4, two sums 6, a copy 2; to(float32) 5, mul_ 8. A sum of 4 bits unpacks, rounds at random and
packs again on every level of the tree. A gather is decoded once a rank, and its last number is per element of a rank.
"""
DENSE_BYTES = 56.0
"""The same for fp32: div_ 8, two clones 16, two sums 24, a copy 8."""
FIRST_GUESS = {WIDE_RESNET: 0.08, TRANSFORMER: 0.6, "P2P": 5.0, "SHM": 100.0}
"""What is fitted: steps of one GPU without exchange [s], by model; by network, the inverse of the part of NVLink's rate
that an all-reduce reaches by its bus bandwidth, in which a time is linear. "SHM" goes through memory of the host."""


def evaluate() -> Outcome:
    """Calibrate on four rows of both models and links, predict the other eight."""
    study = _study(has_hooks=True)

    def alternatives() -> Iterator[Alternative]:
        fused = _study(has_hooks=False).predictions
        yield Alternative("fused kernels, as those of the systems here", "the same rows", fused)

    return Outcome(
        title="Global-QSGD: 8-bit and 4-bit all-reduce",
        unit="ms",
        bound=Limit(mean=0.05, worst=0.15),
        parameters=tuple(_parameters(study)),
        predictions=study.predictions,
        facts={"eight": EIGHT, "four": FOUR, "gathered": GATHERED, "resnet": WIDE_RESNET, "transformer": TRANSFORMER},
        make_alternatives=alternatives,
    )


def _known() -> dict[str, PublishedRow]:
    """Return the row that most shows each number."""
    rows = published_rows.load()
    steps = {model: rows.only(SOURCE, network="P2P", model=model, method=EIGHT) for model in (WIDE_RESNET, TRANSFORMER)}
    return steps | {
        network: rows.only(SOURCE, network=network, model=WIDE_RESNET, method=DENSE) for network in ("P2P", "SHM")
    }


@cached
def _study(*, has_hooks: bool) -> Study:
    """Return the study whose four numbers meet four rows, all at once: each row shows more than one of them."""
    known = tuple(_known().values())
    plain = Study(
        initial={},
        predict=partial(_iteration_s, has_hooks),
        measured=lambda row: row.value / 1e3,
        series=lambda row: row.network,
        label=lambda row: f"{row.model}, {row.method}, {row.network}",
        held_out=tuple(row for row in published_rows.load().select(SOURCE) if row not in known),
    )
    return plain.solved(known, FIRST_GUESS, _numbers)


def _numbers(solved: Values) -> dict[str, float]:
    """Return steps [s] and parts of the rate from what is solved for."""
    return {key: value if key in NUM_ELEMENTS else 1 / value for key, value in solved.items()}


def _parameters(study: Study) -> Iterator[Parameter]:
    for key, row in _known().items():
        value, is_step = study.value(key), key in NUM_ELEMENTS
        yield Parameter(
            part="workload" if is_step else "this set only",
            key=f"{'a step without exchange' if is_step else 'bus bandwidth of an all-reduce'}, {key}",
            value=value,
            text=f"{1e3 * value:.1f} ms" if is_step else f"{value:.4f} ({value * NVLINK_BYTES_PER_S / 1e9:.2f} GB/s)",
            how="all four meet four rows at once",
            rows=(row,),
        )


def _strategy(method: str) -> AnyStrategy:
    """Return what a method is here: levels of the largest element, averaged by pieces or gathered; no overlap."""
    if method == DENSE:
        return DenseAllReduce(algorithm="ring", overlap=False)
    bits = 4 if method == FOUR else 8
    return QSGDInf(bits=bits, topology="gather" if method == GATHERED else "scatter_reduce", overlap=False)


def _iteration_s(has_hooks: bool, numbers: Mapping[str, float], row: PublishedRow) -> float:
    step_s, part = numbers[row.model], numbers[row.network]
    link = Link(bytes_per_s=Bandwidth(NVLINK_BYTES_PER_S * part), alpha_s=Duration(HOP_S))
    dense_bytes = DENSE_BYTES * NUM_ELEMENTS[row.model] if has_hooks and row.method == DENSE else 0.0
    scenario = Scenario(
        cluster=Cluster(num_nodes=1, ranks_per_node=4, intra_node=link, inter_node=link),
        workload=Workload(
            num_elements=NUM_ELEMENTS[row.model],
            forward_s=Duration(step_s / 3),
            backward_s=Duration(2 * step_s / 3),
            optimizer_s=Duration(dense_bytes / MEMORY_BYTES_PER_S),
        ),
        strategy=_strategy(row.method),
        calibration=Calibration(
            memory_bytes_per_s=Bandwidth(MEMORY_BYTES_PER_S),
            kernel_launch_s=Duration(LAUNCH_S),
            kernels=_hook_kernels(row.method) if has_hooks else {},
        ),
    )
    return simulate(scenario).result.iteration_s


def _hook_kernels(method: str) -> dict[str, KernelTime]:
    """Return the times of a hook's operators; it cuts no bucket into pieces."""
    if method == DENSE:
        return {}
    moved = dict(zip(("encode", "merge", "decode"), HOOK_BYTES[method], strict=True))
    times = {f"qsgd_inf_{part}": each / MEMORY_BYTES_PER_S for part, each in moved.items()} | {"gather_gradients": 0.0}
    return {name: KernelTime(s_per_element=Duration(seconds)) for name, seconds in times.items()}
