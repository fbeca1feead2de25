"""Calibrate on the measurements of a campaign, and predict the steps that it trained."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from simnet.calibration import calibration_file, fit_files, kernel_fit, sources, workload_file
from simnet.calibration.comparison import Comparison, by_series, mean_error
from simnet.calibration.fit_files import FitOptions
from simnet.calibration.fitted_part import FittedPart, check_errors, checked_residuals
from simnet.calibration.sources import Sources
from simnet.cluster import topology as topologies
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.core.errors import SimnetError
from simnet.core.parsing import parse_toml
from simnet.core.units import Duration
from simnet.engine.raw_scenario import RawScenario
from simnet.engine.scenario import RunSettings, Scenario
from simnet.strategies import DenseAllReduce, Strategy
from simnet.validation import held_out_proof, kernel_variants, local_work, machine_speed, training_steps
from simnet.validation.held_out_proof import Disjointness
from simnet.validation.lab import campaign as campaigns
from simnet.validation.lab.campaign import Campaign, Launch, Layout, file_stem
from simnet.validation.lab.strategy_spec import StrategySpec
from simnet.validation.local_work import CHOSEN, Form, OwnWork, Speeds
from simnet.validation.training_steps import MeasuredStep, TrainedPoint
from simnet.workload.training_step import Step as ComputeStep
from simnet.workload.training_step import Tensor
from simnet.workload.workload import Workload

BOUND = 0.3
"""Largest accepted mean relative residual of a fit, wide since kernels of some 100 us on shared cores scatter."""
KERNEL = "kernel "
"""Begins the series of a kernel's residuals."""
IN_PLACE = ("kernels", "messages", "own_work", "model")
"""Parts that are measured more than once in place."""
ADDED_UP = "kernels and models added up, as where no own work is measured"
ALTERNATIVES = {
    "own work with the speed of the launch, nothing hidden": CHOSEN,
    "the same, but messages hide behind compute as simulated": Form(hides=True),
    "own work without the speed of the launch, nothing hidden": Form(at_speed=False),
    ADDED_UP: None,
}
"""Forms of the prediction; the first is that of the points."""


@dataclass(frozen=True, kw_only=True)
class PointToPredict:
    """A measured step and what its prediction starts from.

    Attributes:
        fit: of its layout.
        scenario: gives workload and calibration.
        step: what was measured.
        slowness_s: of the machine in its launch; None where there are no probes.
    """

    fit: "LayoutFit"
    scenario: Scenario
    step: MeasuredStep
    slowness_s: float | None


Watched = Callable[[Sequence[PointToPredict]], Iterable[PointToPredict]]


@dataclass(frozen=True, kw_only=True)
class StrategiesFit:
    """The calibration for some of the strategies, also as TOML text: kernels are those of their variants."""

    specs: tuple[StrategySpec, ...]
    calibration: Calibration
    text: str


@dataclass(frozen=True, kw_only=True)
class LayoutFit:
    """What was fitted for one layout.

    Attributes:
        by_strategies: a calibration for each set of strategies without two variants of one system; they differ in
            kernels alone.
        residuals: of all fits.
        own: the own work, if it was measured.
        poor_kernels: mean errors of kernels above `BOUND` by series; only where own work stands for kernels.
    """

    layout: Layout
    by_strategies: tuple[StrategiesFit, ...]
    residuals: tuple[Comparison, ...]
    own: OwnWork | None = None
    poor_kernels: Mapping[str, float] = field(default_factory=dict)

    @property
    def calibration(self) -> Calibration:
        """The calibration for the first variant of each system."""
        return self.by_strategies[0].calibration

    def calibration_of(self, spec: StrategySpec) -> Calibration:
        """Return the calibration with the kernels of a trained strategy."""
        mine = (one.calibration for one in self.by_strategies if spec in one.specs)
        return next(mine, self.calibration)


@dataclass(frozen=True, kw_only=True)
class CampaignResult:
    """A campaign with its fits and predictions.

    Attributes:
        points: every trained setting and strategy, measured and predicted.
        fits: the fit of each layout.
        workloads: TOML text of fitted workloads by name, such as "mlp_4m_4x1".
        proofs: that no point was calibrated on, for each layout and each set of fitted files.
        speeds: how times follow the machine's speed; None where no own work was measured.
        alternatives: the same points predicted in other forms, without intervals; empty where no own work was measured.
    """

    campaign: Campaign
    points: tuple[TrainedPoint, ...]
    fits: tuple[LayoutFit, ...]
    workloads: dict[str, str]
    proofs: tuple[tuple[Layout, Disjointness], ...]
    speeds: Speeds | None = None
    alternatives: Mapping[str, tuple[TrainedPoint, ...]] = field(default_factory=dict)


def evaluate(campaign: Campaign, folder: Path, draws: int, watched: Watched = iter) -> CampaignResult:
    """Calibrate on a measured campaign and predict its trained steps.

    Args:
        campaign: the measured campaign.
        folder: folder of its measurement files.
        draws: resamples of each fit, and calibrations drawn for the interval of each prediction.
        watched: iterates over the steps to predict, and may show progress.

    Raises:
        SimnetError: a file is missing or damaged, a fit is bad, or a point was calibrated on.
    """
    launches = campaigns.launches(campaign)
    _check_there(launches, folder)
    speeds = _speeds(campaign, launches, folder)
    fits = [_fit(campaign, launches, folder, layout, draws, speeds) for layout in campaign.layouts]
    steps: list[PointToPredict] = []
    workloads: dict[str, str] = {}
    proofs: dict[tuple[Layout, Disjointness], None] = {}
    for fit in fits:
        trained = sources.read(_paths(launches, folder, "training", fit.layout)).files
        for model in campaign.models:
            text = _workload(launches, folder, fit.layout, model, draws)
            workloads[f"{file_stem(model)}_{fit.layout.text()}"] = text
            scenario = _scenario(fit, text, f"{model}_{fit.layout.text()}", draws)
            proofs[fit.layout, held_out_proof.check(scenario, trained)] = None
            steps += [
                PointToPredict(fit=fit, scenario=_of_step(scenario, fit, step), step=step, slowness_s=slowness_s)
                for _, whole in trained
                for slowness_s in [machine_speed.slowness_s(whole) if speeds else None]
                for step in training_steps.measured_steps([whole])
                if step[0].labels["model"] == model
            ]
    points = tuple(_predict(one, CHOSEN) for one in watched(steps))
    forms = ALTERNATIVES if speeds else {}
    others = {name: tuple(_predict(_undrawn(one), form) for one in steps) for name, form in forms.items()}
    return CampaignResult(
        campaign=campaign,
        points=points,
        fits=tuple(fits),
        workloads=workloads,
        proofs=tuple(proofs),
        speeds=speeds,
        alternatives=others,
    )


def _predict(point: PointToPredict, form: Form | None) -> TrainedPoint:
    """Predict in a form; None adds up kernels and models, as all predictions do where no own work was measured."""
    own = point.fit.own
    if form is None or own is None or point.slowness_s is None:
        # The model's own error was found on campaigns: with it, an interval would be judged by what it was made of.
        return training_steps.predict_point(point.scenario, *point.step, with_model_error=False)
    return local_work.predict_point(point.scenario, *point.step, own, point.slowness_s, form)


def _of_step(scenario: Scenario, fit: LayoutFit, step: MeasuredStep) -> Scenario:
    calibration = fit.calibration_of(StrategySpec.of_labels(step[0].labels))
    return structs.replace(scenario, calibration=calibration)


def _undrawn(point: PointToPredict) -> PointToPredict:
    return replace(point, scenario=structs.replace(point.scenario, run=RunSettings(draws=0)))


def _speeds(campaign: Campaign, launches: Sequence[Launch], folder: Path) -> Speeds | None:
    """Fit how times follow the machine's speed, where own work was measured."""
    if campaign.own_work_seconds is None:
        return None
    return Speeds.of([
        sources.read(paths).measurements
        for layout in campaign.layouts
        for part in IN_PLACE
        for model in (campaign.models if part == "model" else [""])
        if (paths := _paths(launches, folder, part, layout, model))
    ])  # fmt: skip


def _check_there(launches: Sequence[Launch], folder: Path) -> None:
    missing = [launch.name for launch in launches if not launch.path(folder).exists()]
    if missing:
        raise SimnetError(
            f"{folder}: {len(missing)} of {len(launches)} measurements are missing, such as {missing[0]}.json: go on "
            f"with simnet lab run CAMPAIGN -o {folder}"
        )


def _paths(launches: Sequence[Launch], folder: Path, part: str, layout: Layout, model: str = "") -> list[Path]:
    return [
        launch.path(folder)
        for launch in launches
        if launch.part == part and launch.layout == layout and (not model or model in launch.arguments)
    ]


def _kernels(campaign: Campaign) -> set[str]:
    """Return the kernels that the trained strategies run."""
    # The names of kernels do not depend on sizes: two ranks on two nodes and one small tensor reach all of them.
    link = Link(bytes_per_s=training_steps.INFINITE_BANDWIDTH, alpha_s=Duration(0))
    nodes = topologies.build(
        Cluster(num_nodes=2, ranks_per_node=2, intra_node=link, inter_node=link), Calibration(kind="measured")
    )
    tensor = Tensor(num_elements=8.0, backward_fraction=1.0, shape=(4, 2))
    step = ComputeStep(
        tensors=(tensor,), num_elements=8.0, bytes_per_element=4, forward_s=1.0, backward_s=1.0, optimizer_s=0.0,
        samples=1,
    )  # fmt: skip
    return {name for one in campaign.strategies for name in one.program(step, nodes).kernels}


def _is_relevant(residual: Comparison, kernels: set[str]) -> bool:
    """Return whether a residual belongs to a link, or to a kernel that a trained strategy runs."""
    name = residual.series.removeprefix(KERNEL)
    return name == residual.series or name in kernels


def _fit(  # noqa: PLR0913, PLR0917
    campaign: Campaign, launches: Sequence[Launch], folder: Path, layout: Layout, draws: int, speeds: Speeds | None
) -> LayoutFit:
    links = [path for one in campaign.links.parsed_layouts for path in _paths(launches, folder, "links", one)]
    on_layout = [path for part in ("kernels", "beside", "own_work") for path in _paths(launches, folder, part, layout)]
    train = sources.read([*links, *on_layout])
    in_place = sources.read(_paths(launches, folder, "messages", layout))
    messages, slowness_s = in_place, 0.0
    if speeds is not None:
        files, slowness_s = local_work.at_one_speed(in_place.measurements, speeds.launches)
        messages = replace(in_place, files=[(path, one) for (path, _), one in zip(in_place.files, files, strict=True)])
    sets = kernel_variants.group(campaigns.strategies_on(campaign, layout))
    by_set = _fit_sets(train, messages, sets, FitOptions(bound=BOUND, draws=draws))
    parts = list({id(part): part for one in by_set for part in one}.values())
    kernels = _kernels(campaign)
    judged = [one for one in checked_residuals(parts) if _is_relevant(one, kernels)]
    # Where own work is measured, kernels serve another form alone: their scatter refuses no prediction.
    poor = _poor_kernels(judged) if speeds is not None else {}
    check_errors([one for one in judged if one.series not in poor], BOUND)
    head, comment = calibration_file.header(train, in_place), calibration_file.comment(train, in_place)
    return LayoutFit(
        layout=layout,
        by_strategies=tuple(
            _of_set(mine, calibration_file.merge(found, head), [comment, *_kernels_text(mine, sets)])
            for mine, found in zip(sets, by_set, strict=True)
        ),
        residuals=tuple(residual for part in parts for residual in part.residuals),
        own=_own_work(launches, folder, layout, speeds, slowness_s) if speeds is not None else None,
        poor_kernels=poor,
    )


def _poor_kernels(residuals: Iterable[Comparison]) -> dict[str, float]:
    errors = {series: mean_error(rows) for series, rows in by_series(residuals).items() if series.startswith(KERNEL)}
    return {series: error for series, error in errors.items() if error > BOUND}


def _fit_sets(
    train: Sources, messages: Sources, sets: Sequence[Sequence[Strategy]], options: FitOptions
) -> list[list[FittedPart]]:
    """Return what was fitted for each set of strategies: they share all but kernels timed with several options."""
    timed = [kernel_variants.keep_kernels_of(train.measurements, one) for one in sets]
    first = replace(train, files=[(path, one) for (path, _), one in zip(train.files, timed[0], strict=True)])
    parts = fit_files.fit_parts(first, Sources(), messages, options)
    several = kernel_variants.find_ambiguous(train.measurements)
    shared = [part for part in parts if not several & set(_kernel_names(part))]
    found = [parts]
    for files in timed[1:]:
        own = [one for one in kernel_fit.select_kernels(files) if one.kernel in several]
        found.append([*shared, *kernel_fit.fit_kernels(own, options.bound, options.draws)])
    return found


def _kernel_names(part: FittedPart) -> Iterable[str]:
    kernels = part.table.get("kernels")
    return kernels if isinstance(kernels, dict) else ()


def _kernels_text(strategies: Sequence[Strategy], sets: Sequence[object]) -> Iterable[str]:
    """Yield whose kernels a calibration holds, where there are several."""
    if len(sets) > 1:
        yield f"Kernels as in {'; '.join(StrategySpec.of_strategy(one).label for one in strategies)}"


def _of_set(strategies: Sequence[Strategy], whole: Mapping[str, object], comments: Sequence[str]) -> StrategiesFit:
    specs = tuple(map(StrategySpec.of_strategy, strategies))
    return StrategiesFit(
        specs=specs,
        calibration=calibration_file.as_calibration(whole),
        text=calibration_file.text(whole, comments),
    )


def _own_work(
    launches: Sequence[Launch], folder: Path, layout: Layout, speeds: Speeds, messages_slowness_s: float
) -> OwnWork:
    return OwnWork(
        launches=tuple(sources.read(_paths(launches, folder, "own_work", layout)).measurements),
        messages_slowness_s=messages_slowness_s,
        num_message_launches=len(_paths(launches, folder, "messages", layout)),
        speeds=speeds,
    )


def _workload(launches: Sequence[Launch], folder: Path, layout: Layout, model: str, draws: int) -> str:
    return workload_file.text_of_model(sources.read(_paths(launches, folder, "model", layout, model)).files, draws)


def _scenario(fit: LayoutFit, workload: str, name: str, draws: int) -> Scenario:
    """Return a scenario whose nodes, NIC and strategy `predict_point` replaces by those of each point."""
    link = Link(bytes_per_s=training_steps.INFINITE_BANDWIDTH, alpha_s=Duration(0))
    cluster = Cluster(
        name="lab",
        num_nodes=fit.layout.num_nodes,
        ranks_per_node=fit.layout.ranks_per_node,
        intra_node=link,
        inter_node=link,
    )
    return Scenario(
        name=name,
        cluster=cluster,
        workload=_read_workload(workload, name),
        calibration=fit.calibration,
        strategy=DenseAllReduce(),
        run=RunSettings(draws=draws),
    )


def _read_workload(text: str, name: str) -> Workload:
    return RawScenario(data={"name": name, **parse_toml(text, name)}, origins={(): name}).converted(Workload)
