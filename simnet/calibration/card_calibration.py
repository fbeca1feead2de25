"""A calibration from the measurements of one card; the network, which one card cannot show, may come from another."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simnet.calibration import calibration_file, compute_rows, kernels, merged_calibration, provenance
from simnet.calibration.card_folder import CardFolder, versions_text
from simnet.calibration.comparison import mean_error
from simnet.calibration.fit import FittedPart
from simnet.core.errors import SimnetError
from simnet.core.files import read_text

BOUND = 0.1
"""Largest mean error of a fit that goes unmentioned; kernels above it are kept: their intervals hold their scatter."""
FITTED = ("kernels", "interference")
"""Parts that a calibration is fitted to."""


@dataclass(frozen=True, kw_only=True)
class CardFit:
    """What was fitted to a card's measurements.

    Attributes:
        parts: one a kernel, and one of backward beside communication.
        left_out: why kernels were not fitted, a sentence each.
    """

    parts: tuple[FittedPart, ...]
    left_out: tuple[str, ...]

    @property
    def table(self) -> dict[str, object]:
        """Keys and values as in a calibration file."""
        return calibration_file.merge(self.parts, {}) if self.parts else {}

    @property
    def poor(self) -> list[str]:
        """Kernels whose times no line explains within `BOUND`, the worst first, each with its mean error."""
        errors = {part.residuals[0].series: mean_error(part.residuals) for part in self.parts if part.is_checked}
        return [
            f"{name} ({error:.0%})"
            for name, error in sorted(errors.items(), key=lambda pair: -pair[1])
            if error > BOUND
        ]


def fit(folder: CardFolder, draws: int) -> CardFit:
    """Fit every kernel by itself, so that one that has no fit costs the others nothing."""
    parts: list[FittedPart] = []
    left_out: list[str] = []
    rows = kernels.select_kernels(folder.measurements)
    for name in dict.fromkeys(row.kernel for row in rows):
        try:
            parts += kernels.fit_kernels([row for row in rows if row.kernel == name], BOUND, draws)
        except SimnetError as error:
            left_out.append(str(error))
    if launch := kernels.fit_launch(folder.measurements):
        parts.append(launch)
    if pairs := kernels.select_pairs(folder.measurements):
        parts.append(kernels.fit_slowdown(pairs, draws))
    return CardFit(parts=tuple(parts), left_out=tuple(left_out))


@dataclass(frozen=True, kw_only=True)
class CardWorkloads:
    """Workload files with compute rows of a card.

    Attributes:
        texts: as TOML, by name.
        unknown: measured models that are no workload.
    """

    texts: Mapping[str, str]
    unknown: tuple[str, ...]


def workloads(folder: CardFolder, shipped: Path) -> CardWorkloads:
    """Return the workload files of a folder `shipped` that get compute rows of the measured models."""
    passes = compute_rows.measured_passes(folder)
    paths = {path.stem: path for path in sorted(shipped.glob("*.toml"))}
    models = dict.fromkeys(measured.model for measured in passes)
    texts = {
        model: compute_rows.with_rows(
            read_text(paths[model]), [row for row in passes if row.model == model], folder, str(paths[model])
        )
        for model in models
        if model in paths
    }
    return CardWorkloads(texts=texts, unknown=tuple(model for model in models if model not in paths))


def whole(folder: CardFolder, fitted: CardFit, base: str | None) -> dict[str, object]:
    """Return the calibration in file form.

    Args:
        folder: of one card.
        fitted: to its measurements.
        base: name or path of a calibration that gives what was not measured; None leaves that neutral.
    """
    if not fitted.parts:
        raise SimnetError(f"{folder.path}: holds neither kernels nor interference to fit; measure one of these parts")
    head: dict[str, object] = {
        "title": f"{folder.label}: {_fitted_text(fitted)} measured on it" + (f", all else as {base}" if base else ""),
        # Not "measured": one card tells nothing of the network, on which a verdict depends.
        "kind": "estimate",
        "gpu": folder.label,
        "source": _source(folder, fitted, base),
        "fitted_to": provenance.fitted_to([folder.files[part] for part in FITTED if part in folder.files]),
    }
    measured = calibration_file.merge(fitted.parts, head)
    return _on_base(measured, base) if base else measured


def _fitted_text(fitted: CardFit) -> str:
    """Return what was fitted: "kernels", "backward", both, or copies and launches alone."""
    fitted_kinds = {"kernels": bool(fitted.table.get("kernels")), "backward": "backward_slowdown" in fitted.table}
    return " and ".join(name for name, is_fitted in fitted_kinds.items() if is_fitted) or "copies and launches"


def text(folder: CardFolder, fitted: CardFit, base: str | None) -> str:
    """Return the calibration as TOML; see `whole`."""
    comments = [
        f"Made by simnet card from measurements of {folder.label}",
        *([f"{folder.label.upper()}: to try the command; nothing here describes a GPU"] if not folder.is_card else []),
        *(f"failed check: {name}: do not trust the times" for name in folder.failed_checks),
        *(f"left out: {sentence}" for sentence in fitted.left_out),
    ]
    return calibration_file.text(whole(folder, fitted, base), comments)


def _source(folder: CardFolder, fitted: CardFit, base: str | None) -> str:
    machine = f"{folder.num_cards} x {folder.about.card.name}"
    others = (
        f"everything else, the network included, is that of {base} with its intervals"
        if base
        else "everything else, the network included, was not measured and is left at its neutral value"
    )
    return (
        f"simnet measure gpu, {folder.about.created[:10]}: {machine} ({versions_text(folder)}). "
        + ("memory_bandwidth is that of copies; " if "memory_bandwidth" in fitted.table else "")
        + f"{others}."
    )


def _on_base(measured: Mapping[str, object], base: str) -> dict[str, object]:
    """Return the measured calibration with the rest of another one, whose intervals of measured values are dropped."""
    merged = merged_calibration.lay_over(measured, merged_calibration.read(base).table)
    calibration_file.as_calibration(merged)
    return merged
