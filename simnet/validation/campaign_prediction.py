"""Calibrate on the measurements of a campaign, and predict the steps that it trained."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from msgspec import structs

from simnet.calibration import calibration_file, fit_files, kernels, sources, workload_file
from simnet.calibration.comparison import Comparison, by_series, mean_error
from simnet.calibration.fit import FittedPart, check_errors, checked_residuals
from simnet.calibration.fit_files import FitOptions
from simnet.calibration.measurement_file import MeasurementFile
from simnet.calibration.sources import Sources
from simnet.cluster import topology as topologies
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.core.errors import SimnetError
from simnet.core.parsing import parse_toml
from simnet.core.system_options import SystemOptions
from simnet.core.units import Duration
from simnet.engine.raw_scenario import RawScenario
from simnet.engine.scenario import RunSettings, Scenario
from simnet.strategies import CompressingStrategy, DenseAllReduce, Strategy
from simnet.validation import held_out_proof, local_work, training_steps
from simnet.validation.held_out_proof import Disjointness
from simnet.validation.lab import campaign as campaigns
from simnet.validation.lab.campaign import Campaign, Layout, file_stem
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
        own_work: of every model and strategy, if it was measured.
        poor_kernels: mean errors of kernels above `BOUND` by series; only where own work stands for kernels.
    """

    layout: Layout
    by_strategies: tuple[StrategiesFit, ...]
    residuals: tuple[Comparison, ...]
    own_work: OwnWork | None = None
    poor_kernels: Mapping[str, float] = field(default_factory=dict)

    @property
    def calibration(self) -> Calibration:
        """The calibration for the first variant of each system."""
        return self.by_strategies[0].calibration

    def calibration_of(self, spec: StrategySpec) -> Calibration:
        """Return the calibration with the kernels of a trained strategy."""
        calibrations = (strategy.calibration for strategy in self.by_strategies if spec in strategy.specs)
        return next(calibrations, self.calibration)


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


@dataclass(frozen=True)
class _Measured:
    """The measurements of a campaign."""

    campaign: Campaign
    folder: Path

    @cached_property
    def launches(self) -> list[campaigns.Launch]:
        launches = campaigns.launches(self.campaign)
        missing = [launch.name for launch in launches if not launch.path(self.folder).exists()]
        if missing:
            raise SimnetError(
                f"{self.folder}: {len(missing)} of {len(launches)} measurements are missing, such as {missing[0]}.json"
                f": go on with simnet lab run CAMPAIGN -o {self.folder}"
            )
        return launches

    def paths(self, *parts: str, layout: Layout, model: str = "") -> list[Path]:
        """Return the files of some parts on a layout, and of one model if it is named."""
        return [
            launch.path(self.folder)
            for part in parts
            for launch in self.launches
            if launch.part == part and launch.layout == layout and (not model or model in launch.arguments)
        ]

    def of(self, part: str, layout: Layout, model: str = "") -> Sources:
        return sources.read(self.paths(part, layout=layout, model=model))

    def speeds(self) -> Speeds | None:
        """Return how times follow the machine's speed, where own work was measured."""
        if self.campaign.own_work_seconds is None:
            return None
        return Speeds.of([
            sources.read(paths).measurements
            for layout in self.campaign.layouts
            for part in IN_PLACE
            for model in (self.campaign.models if part == "model" else [""])
            if (paths := self.paths(part, layout=layout, model=model))
        ])  # fmt: skip


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
    measured = _Measured(campaign, folder)
    speeds = measured.speeds()
    fits = [_fit(measured, layout, draws, speeds) for layout in campaign.layouts]
    steps: list[PointToPredict] = []
    workloads: dict[str, str] = {}
    proofs: dict[tuple[Layout, Disjointness], None] = {}
    for fit in fits:
        trained = measured.of("training", fit.layout).files
        for model in campaign.models:
            text = workload_file.text_of_model(measured.of("model", fit.layout, model).files, draws)
            workloads[f"{file_stem(model)}_{fit.layout.text()}"] = text
            scenario = _scenario(fit, text, f"{model}_{fit.layout.text()}", draws)
            proofs[fit.layout, held_out_proof.check(scenario, trained)] = None
            for _, whole in trained:
                slowness_s = local_work.probed_slowness_s(whole) if speeds else None
                for step in training_steps.measured_steps([whole]):
                    if step[0].labels["model"] == model:
                        calibration = fit.calibration_of(StrategySpec.of_labels(step[0].labels))
                        there = structs.replace(scenario, calibration=calibration)
                        steps.append(PointToPredict(fit=fit, scenario=there, step=step, slowness_s=slowness_s))
    points = tuple(_predict(step, CHOSEN) for step in watched(steps))
    undrawn = [replace(step, scenario=structs.replace(step.scenario, run=RunSettings(draws=0))) for step in steps]
    return CampaignResult(
        campaign=campaign,
        points=points,
        fits=tuple(fits),
        workloads=workloads,
        proofs=tuple(proofs),
        speeds=speeds,
        alternatives={
            name: tuple(_predict(step, form) for step in undrawn)
            for name, form in (ALTERNATIVES if speeds else {}).items()
        },
    )


def _predict(point: PointToPredict, form: Form | None) -> TrainedPoint:
    """Predict in a form; None adds up kernels and models, as all predictions do where no own work was measured."""
    own_work = point.fit.own_work
    if form is None or own_work is None or point.slowness_s is None:
        # The model's own error was found on campaigns: with it, an interval would be judged by what it was made of.
        return training_steps.predict_point(point.scenario, *point.step, with_model_error=False)
    return local_work.predict_point(point.scenario, *point.step, own_work, point.slowness_s, form)


def _scenario(fit: LayoutFit, workload: str, name: str, draws: int) -> Scenario:
    """Return a scenario whose nodes, NIC and strategy `predict_point` replaces by those of each point."""
    link = Link(bytes_per_s=training_steps.INFINITE_BANDWIDTH, alpha_s=Duration(0))
    raw = RawScenario(data={"name": name, **parse_toml(workload, name)}, origins={(): name})
    return Scenario(
        name=name,
        cluster=Cluster(name="lab", **fit.layout._asdict(), intra_node=link, inter_node=link),
        workload=raw.converted(Workload),
        calibration=fit.calibration,
        strategy=DenseAllReduce(),
        run=RunSettings(draws=draws),
    )


# The fit of a layout.


def _fit(measured: _Measured, layout: Layout, draws: int, speeds: Speeds | None) -> LayoutFit:
    campaign = measured.campaign
    links = [path for there in campaign.links.parsed_layouts for path in measured.paths("links", layout=there)]
    train = sources.read([*links, *measured.paths("kernels", "beside", "own_work", layout=layout)])
    in_place = measured.of("messages", layout)
    messages, slowness_s = in_place, 0.0
    if speeds is not None:
        files, slowness_s = local_work.at_one_speed(in_place.measurements, speeds.launches)
        messages = _with_files(in_place, files)
    sets = variants(campaigns.strategies_on(campaign, layout))
    by_set = _fit_sets(train, messages, sets, FitOptions(bound=BOUND, draws=draws))
    parts = list({id(part): part for of_set in by_set for part in of_set}.values())
    used = {f"{KERNEL}{name}" for name in _kernels(campaign)}
    # Links count, and kernels that a trained strategy runs.
    judged = [
        residual
        for residual in checked_residuals(parts)
        if not residual.series.startswith(KERNEL) or residual.series in used
    ]
    # Where own work is measured, kernels serve another form alone: their scatter refuses no prediction.
    errors = {series: mean_error(rows) for series, rows in by_series(judged).items() if series.startswith(KERNEL)}
    poor = {series: error for series, error in errors.items() if error > BOUND} if speeds is not None else {}
    check_errors([residual for residual in judged if residual.series not in poor], BOUND)
    head, comment = calibration_file.header(train, in_place), calibration_file.comment(train, in_place)
    own_work = None
    if speeds is not None:
        own_work = OwnWork(
            launches=tuple(measured.of("own_work", layout).measurements),
            messages_slowness_s=slowness_s,
            num_message_launches=len(in_place.files),
            speeds=speeds,
        )
    return LayoutFit(
        layout=layout,
        by_strategies=tuple(
            _of_sets(sets, [calibration_file.merge(parts_of_set, head) for parts_of_set in by_set], comment)
        ),
        residuals=tuple(residual for part in parts for residual in part.residuals),
        own_work=own_work,
        poor_kernels=poor,
    )


def _with_files(known: Sources, files: Iterable[MeasurementFile]) -> Sources:
    return replace(known, files=[(path, whole) for (path, _), whole in zip(known.files, files, strict=True)])


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
    return {name for strategy in campaign.strategies for name in strategy.program(step, nodes).kernels}


def _fit_sets(
    train: Sources, messages: Sources, sets: Sequence[Sequence[Strategy]], options: FitOptions
) -> list[list[FittedPart]]:
    """Return what was fitted for each set of strategies: they share all but kernels timed with several options."""
    first, *others = (keep_kernels_of(train.measurements, strategies) for strategies in sets)
    parts = fit_files.fit_parts(_with_files(train, first), Sources(), messages, options)
    several = {name for name, timed in timed_options(train.measurements).items() if len(timed) > 1}
    shared = [part for part in parts if not several & set(_kernel_names(part))]
    by_set = [parts]
    for files in others:
        of_variant = [kernel for kernel in kernels.select_kernels(files) if kernel.kernel in several]
        by_set.append([*shared, *kernels.fit_kernels(of_variant, options.bound, options.draws)])
    return by_set


def _kernel_names(part: FittedPart) -> Iterable[str]:
    names = part.table.get("kernels")
    return names if isinstance(names, dict) else ()


def _of_sets(
    sets: Sequence[Sequence[Strategy]], merged: Sequence[Mapping[str, object]], comment: str
) -> Iterator[StrategiesFit]:
    for strategies, whole in zip(sets, merged, strict=True):
        specs = tuple(map(StrategySpec.of_strategy, strategies))
        # Whose kernels a calibration holds, where there are several.
        whose = [f"Kernels as in {'; '.join(spec.label for spec in specs)}"] if len(sets) > 1 else []
        text = calibration_file.text(whole, [comment, *whose])
        yield StrategiesFit(specs=specs, calibration=calibration_file.as_calibration(whole), text=text)


# Which timed kernels are those of which strategy, where a campaign trains with several variants of a system.


def variants(strategies: Sequence[Strategy]) -> list[list[Strategy]]:
    """Return the strategies whose kernels are timed by variant in sets without two of one system.

    Kernels have the same names in all variants of a system, so a calibration holds those of one variant. There is one
    set at least, which may be empty.
    """
    sets: list[list[Strategy]] = [[]]
    for strategy in strategies:
        if not StrategySpec.of_strategy(strategy).kernels_argument:
            continue
        free = (
            variants_of_set for variants_of_set in sets if all(other.kind != strategy.kind for other in variants_of_set)
        )
        if (free_set := next(free, None)) is None:
            sets.append(free_set := [])
        free_set.append(strategy)
    return sets


def keep_kernels_of(files: Sequence[MeasurementFile], strategies: Sequence[Strategy]) -> list[MeasurementFile]:
    """Return files without the kernels that were timed for other variants than these strategies."""
    chosen = {name: _nearest(name, timed, strategies) for name, timed in timed_options(files).items()}
    return [
        structs.replace(whole, series=tuple(series for series in whole.series
                                            if series.kind != "kernel" or series.options == chosen[series.name]))
        for whole in files
    ]  # fmt: skip


def timed_options(files: Sequence[MeasurementFile]) -> Mapping[str, list[SystemOptions]]:
    """Return all options that each kernel was timed with, by its name, once each."""
    by_name: dict[str, list[SystemOptions]] = {}
    for whole in files:
        for series in whole.series:
            if series.kind == "kernel" and series.options not in by_name.setdefault(series.name, []):
                by_name[series.name].append(series.options)
    return by_name


def _nearest(name: str, timed: Sequence[SystemOptions], strategies: Sequence[Strategy]) -> SystemOptions:
    """Return the options of a kernel that contradict the strategy that runs it the least; the first of equal ones."""
    owner = next((strategy for strategy in strategies if name in {cost.name for cost in strategy.kernels}), None)
    if owner is None:
        return timed[0]
    options_of_owner, usual = structs.asdict(owner), {}
    if isinstance(owner, CompressingStrategy):
        options_of_owner["topology"] = owner.used_topology
        # What was timed before there were topologies, or in a system's own, has no such option.
        usual = {"topology": owner.topologies[0]}

    def num_contradictions(options: SystemOptions) -> int:
        return sum(options_of_owner.get(key) not in {None, value} for key, value in (usual | dict(options)).items())

    return min(timed, key=num_contradictions)
