"""HiPress on 16 nodes of eight V100: the same systems, at a batch that no readable source prints."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.cluster.hardware import Calibration, LinkCalibration
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published import hipress
from simnet.validation.published.one_bit_adam import INFINIBAND
from simnet.validation.published.one_bit_models import single_node
from simnet.validation.shipped_parts import cached
from simnet.validation.study import Study

ORDER = 14
NODES = hipress.AWS
NVLINK = "intra_node.efficiency"
OTHER_BATCHES = (24, 64)


def evaluate() -> Outcome:
    """Calibrate on dense rows of one, two and four nodes, predict the other dense rows and all compressed ones."""
    study = _study(hipress.BATCH)
    (nvlink,) = single_node(INFINIBAND).parameters
    return Outcome(
        title="HiPress on 16 nodes of eight GPUs",
        unit="ms",
        bound=Limit(mean=0.07, worst=0.22),
        parameters=(
            *hipress.compute_parameters(NODES),
            replace(nvlink, part="this set only", text=f"{nvlink.value:.4f} ({nvlink.value * 1200:.0f} Gbit/s)"),
            *study.parameters,
        ),
        predictions=study.predictions,
        facts={"ring": hipress.RING, "onebit": hipress.ONEBIT, "speedups": hipress.speedups(study)},
        make_alternatives=_alternatives,
    )


@cached
def _study(batch: int) -> Study:
    nvlink = LinkCalibration(efficiency=single_node(INFINIBAND).value(NVLINK))
    return hipress.study(NODES, Calibration(intra_node=nvlink), hipress.fits(NODES), batch)


def _alternatives() -> Iterator[Alternative]:
    for batch in OTHER_BATCHES:
        yield Alternative(f"batch {batch} in place of {hipress.BATCH}", "the same rows", _study(batch).predictions)
    yield from hipress.other_topologies(_study(hipress.BATCH), NODES)
