"""Steps of optimizers and the memory that they take, from the measurements of a card."""

from dataclasses import dataclass
from statistics import median, quantiles

from simnet.calibration.card_folder import CardFolder
from simnet.calibration.measurement_file import Series

DENSE = "adamw"


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """One optimizer on the parameters of one model.

    Attributes:
        optimizer: its name.
        num_elements: of all parameters.
        num_tensors: that hold them.
        step_s: median [s].
        spread: from the first to the third quartile, over the median.
        peak_bytes: at most beside parameters and gradients, its state counted; None if it was not measured.
        state_bytes: kept between steps.
    """

    optimizer: str
    num_elements: int
    num_tensors: int
    step_s: float
    spread: float
    peak_bytes: float | None
    state_bytes: float | None


def optimizer_steps(folder: CardFolder) -> list[OptimizerStep]:
    """Return what was measured, the smallest model first, AdamW before the others."""
    memory = {(one.name, *_key(one)): median(one.values) for one in folder.series("step", "memory")}
    found = [
        OptimizerStep(
            optimizer=optimizer,
            num_elements=num_elements,
            num_tensors=num_tensors,
            step_s=median(one.values),
            spread=_spread(one),
            peak_bytes=memory.get(("peak", optimizer, num_elements, num_tensors)),
            state_bytes=memory.get(("state", optimizer, num_elements, num_tensors)),
        )
        for one in folder.series("step", "optimizer_step", "step")
        for optimizer, num_elements, num_tensors in [_key(one)]
    ]
    return sorted(found, key=lambda one: (one.num_elements, one.optimizer != DENSE))


def _key(series: Series) -> tuple[str, int, int]:
    return str(series.labels["optimizer"]), series.count("num_elements"), series.count("num_tensors")


def _spread(series: Series) -> float:
    if len(series.values) < 2:
        return 0.0
    first, _, third = quantiles(series.values, n=4, method="inclusive")
    return (third - first) / median(series.values)
