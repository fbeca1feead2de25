"""Calibrate on the measurements of a campaign, and predict the steps that it trained."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simnet.calibrate import calibration_file, fit_files, sources, workload_file
from simnet.calibrate.fitted_part import check_errors, checked_residuals
from simnet.comparison import Comparison
from simnet.errors import SimnetError
from simnet.hardware import Calibration, Cluster, Link
from simnet.lab import campaign as campaigns
from simnet.lab.campaign import Campaign, Launch, Layout, file_stem
from simnet.network import topology as topologies
from simnet.parsing import parse_toml
from simnet.scenario import RawScenario, RunSettings, Scenario
from simnet.strategies import DenseAllReduce
from simnet.units import Duration
from simnet.validate import disjoint, training_steps
from simnet.validate.disjoint import Disjointness
from simnet.validate.training_steps import MeasuredStep, TrainedPoint
from simnet.workload.training_step import Step as ComputeStep
from simnet.workload.training_step import Tensor
from simnet.workload.workload import Workload

BOUND = 0.3
"""Largest accepted mean relative residual of a fit, wide since kernels of some 100 us on shared cores scatter."""
Watched = Callable[[Sequence[tuple[Scenario, MeasuredStep]]], Iterable[tuple[Scenario, MeasuredStep]]]


@dataclass(frozen=True, kw_only=True)
class LayoutFit:
    """The calibration fitted for one layout, also as TOML text, and its residuals."""

    layout: Layout
    calibration: Calibration
    text: str
    residuals: tuple[Comparison, ...]


@dataclass(frozen=True, kw_only=True)
class CampaignResult:
    """A campaign with its fits and predictions.

    Attributes:
        points: every trained setting and strategy, measured and predicted.
        fits: the fit of each layout.
        workloads: TOML text of fitted workloads by name, such as "mlp_4m_4x1".
        proofs: that no point was calibrated on, for each layout and each set of fitted files.
    """

    campaign: Campaign
    points: tuple[TrainedPoint, ...]
    fits: tuple[LayoutFit, ...]
    workloads: dict[str, str]
    proofs: tuple[tuple[Layout, Disjointness], ...]


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
    fits = [_fit(campaign, launches, folder, layout, draws) for layout in campaign.layouts]
    steps: list[tuple[Scenario, MeasuredStep]] = []
    workloads: dict[str, str] = {}
    proofs: dict[tuple[Layout, Disjointness], None] = {}
    for fit in fits:
        trained = sources.read(_paths(launches, folder, "training", fit.layout)).files
        for model in campaign.models:
            text = _workload(launches, folder, fit.layout, model, draws)
            workloads[f"{file_stem(model)}_{fit.layout.text()}"] = text
            scenario = _scenario(fit, text, f"{model}_{fit.layout.text()}", draws)
            proofs[fit.layout, disjoint.check(scenario, trained)] = None
            mine = training_steps.measured_steps([whole for _, whole in trained])
            steps += [(scenario, step) for step in mine if step[0].labels["model"] == model]
    # The model's own error was found on campaigns: with it, an interval would be judged by what it was made of.
    points = tuple(
        training_steps.predict_point(scenario, *step, with_model_error=False) for scenario, step in watched(steps)
    )
    return CampaignResult(campaign=campaign, points=points, fits=tuple(fits), workloads=workloads, proofs=tuple(proofs))


def _check_there(launches: Sequence[Launch], folder: Path) -> None:
    missing = [launch.name for launch in launches if not launch.path(folder).exists()]
    if missing:
        raise SimnetError(
            f"{folder}: {len(missing)} of {len(launches)} measurements are missing, such as {missing[0]}.json: go on "
            f"with simnet lab run CAMPAIGN -o {folder}"
        )


def _paths(launches: Sequence[Launch], folder: Path, part: str, layout: Layout) -> list[Path]:
    return [launch.path(folder) for launch in launches if launch.part == part and launch.layout == layout]


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
    name = residual.series.removeprefix("kernel ")
    return name == residual.series or name in kernels


def _fit(campaign: Campaign, launches: Sequence[Launch], folder: Path, layout: Layout, draws: int) -> LayoutFit:
    links = [path for one in campaign.links.parsed_layouts for path in _paths(launches, folder, "links", one)]
    on_layout = [path for part in ("kernels", "beside") for path in _paths(launches, folder, part, layout)]
    train = sources.read([*links, *on_layout])
    in_place = sources.read(_paths(launches, folder, "messages", layout))
    parts = fit_files.fit_parts(train, sources.Sources(), in_place, fit_files.FitOptions(bound=BOUND, draws=draws))
    residuals = tuple(residual for part in parts for residual in part.residuals)
    kernels = _kernels(campaign)
    check_errors([one for one in checked_residuals(parts) if _is_relevant(one, kernels)], BOUND)
    whole = calibration_file.merge(parts, calibration_file.header(train, in_place))
    return LayoutFit(
        layout=layout,
        calibration=calibration_file.as_calibration(whole),
        text=calibration_file.text(whole, [calibration_file.comment(train, in_place)]),
        residuals=residuals,
    )


def _workload(launches: Sequence[Launch], folder: Path, layout: Layout, model: str, draws: int) -> str:
    mine = [
        launch
        for launch in launches
        if launch.part == "model" and launch.layout == layout and model in launch.arguments
    ]
    return workload_file.text_of_model(sources.read([launch.path(folder) for launch in mine]).files, draws)


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
