"""All that follows from the measurements of a card: calibration, workloads, and how wrong the estimates were."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simnet.calibration import card_calibration, compute_rows, kernel_fit
from simnet.calibration.card_calibration import CardFit
from simnet.calibration.card_folder import CardFolder
from simnet.calibration.comparison import Comparison
from simnet.calibration.compute_rows import MeasuredPass
from simnet.core import files
from simnet.core.parsing import parse_toml
from simnet.validation import card_estimates
from simnet.validation.card_estimates import KernelEstimate, ShippedEstimate, StepEstimate


@dataclass(frozen=True, kw_only=True)
class CardResult:
    """What `simnet card` writes, and what its page shows.

    Attributes:
        folder: the measurements.
        base: name of the calibration that gives what was not measured; None for neutral values.
        fitted: to kernels and to backward beside communication.
        calibration: as TOML; "" if there is nothing to fit.
        workloads: with compute rows of the card, as TOML, by name.
        passes: forward and backward of the models.
        without_workload: measured models that are no shipped workload.
        estimate: the shipped estimate that the measurements are compared with.
        kernels: every kernel at every size; empty without a bandwidth of copies.
        values: single values of a calibration, by key.
        steps: forward and backward against the shipped compute rows.
    """

    folder: CardFolder
    base: str | None
    fitted: CardFit
    calibration: str
    workloads: Mapping[str, str]
    passes: tuple[MeasuredPass, ...]
    without_workload: tuple[str, ...]
    estimate: ShippedEstimate
    kernels: tuple[KernelEstimate, ...]
    values: Mapping[str, Comparison]
    steps: tuple[StepEstimate, ...]


def evaluate(folder: CardFolder, *, base: str | None, draws: int, workloads: Path | None = None) -> CardResult:
    """Fit, merge and compare.

    Args:
        folder: the measurements of a card.
        base: name or path of a calibration for what was not measured.
        draws: bootstrap resamples.
        workloads: folder of the workload files that get compute rows; the shipped ones by default.

    Raises:
        SimnetError: measurements contradict each other, or a workload file cannot be changed.
    """
    fitted = card_calibration.fit(folder, draws)
    passes = compute_rows.measured_passes(folder)
    paths = {path.stem: path for path in sorted((workloads or files.data_path("workloads")).glob("*.toml"))}
    models = list(dict.fromkeys(one.model for one in passes))
    texts = {model: files.read_text(paths[model]) for model in models if model in paths}
    estimate = card_estimates.shipped_estimate(folder, fitted)
    tables = {model: parse_toml(text, str(paths[model])) for model, text in texts.items()}
    copies = fitted.copy_bytes_per_s
    rows = kernel_fit.select_kernels(folder.measurements)
    return CardResult(
        folder=folder,
        base=base,
        fitted=fitted,
        calibration=card_calibration.text(folder, fitted, base) if fitted.parts else "",
        workloads={
            model: compute_rows.with_rows(
                text, [one for one in passes if one.model == model], folder, str(paths[model])
            )
            for model, text in texts.items()
        },
        passes=tuple(passes),
        without_workload=tuple(model for model in models if model not in paths),
        estimate=estimate,
        kernels=tuple(card_estimates.kernel_estimates(rows, estimate, copies)) if copies is not None else (),
        values=card_estimates.value_estimates(estimate, fitted),
        steps=tuple(card_estimates.step_estimates(passes, estimate, folder.label, tables)),
    )
