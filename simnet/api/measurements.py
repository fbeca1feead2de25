"""Questions to measurements: a calibration fitted to them, and predictions beside them."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from simnet.api.measured_answers import CalibrationAnswer, ValidationAnswer
from simnet.api.questions import Draws, Settings, experiment_of
from simnet.core.arguments import Files, Name, checked
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.report.progress_bar import Progress, watched

if TYPE_CHECKING:
    from simnet.calibration.fit import FittedPart
    from simnet.calibration.sources import Sources
    from simnet.calibration.step_model import WasTrained
    from simnet.cluster.hardware import Cluster
    from simnet.engine.scenario import Scenario

BOUND_PERCENT = 15.0
DRAWS = 200


@checked
def calibrate(  # noqa: PLR0913 - the options of the command
    files: Files,
    *,
    base: Name | None = None,
    experiment: Name | None = None,
    trained: Name | None = None,
    cluster: Name | None = None,
    hold_out: Files = (),
    in_place: Files = (),
    workload: bool = False,
    batch: Count | None = None,
    algorithm: Literal["ring"] | None = None,
    protocol: Literal["LL", "LL128", "Simple"] | None = None,
    bound_percent: Annotated[float, Meta(ge=0, le=1000)] = BOUND_PERCENT,
    accept_poor_fit: bool = False,
    bootstrap_draws: Annotated[int, Meta(ge=20, le=10_000)] = DRAWS,
) -> CalibrationAnswer:
    """Fit a calibration to measurements.

    Args:
        files: of simnet measure, logs of nccl-tests, iperf3 -J, step times as CSV, traces of
            torch.profiler.
        base: calibration that gives what the files do not measure, with its intervals, such as a100_tcp_estimate.
        experiment: experiment that the step times trained: cluster, workload, strategies.
        trained: workload that was timed or traced, in place of `experiment`.
        cluster: cluster whose nominal bandwidths the fitted efficiencies refer to, or an experiment that has one.
        hold_out: files to predict instead of fitting them.
        in_place: collectives of as many ranks as in training on one machine, without a limit of NICs: fits the CPU time
            per message and the links inside a node.
        workload: whether the answer shall hold the compute times of a workload, too.
        batch: samples of a traced rank, which no trace holds.
        algorithm: NCCL might take this algorithm alone where nccl-tests were run (NCCL_ALGO=Ring).
        protocol: NCCL might take this protocol alone where nccl-tests were run (NCCL_PROTO).
        bound_percent: largest mean residual of a fit [%]; above it, the fit is refused.
        accept_poor_fit: take a fit that is above the bound.
        bootstrap_draws: refits for the intervals.

    Raises:
        SimnetError: a file cannot be read, nothing is there to fit, an argument has no effect, or the fit is poor.

    Example:
        >>> import simnet
        >>> fit = simnet.calibrate("tests/golden/calibrate/nccl_all_reduce_2x8.log")  # doctest: +SKIP
        >>> fit.write("mine.toml")  # doctest: +SKIP
    """
    from simnet.calibration import calibration_file, fit_files, merged_calibration, nccl, sources
    from simnet.calibration.fit import check_errors, checked_residuals
    from simnet.calibration.step_model import Trained, WasTrained

    paths, held_out_paths, in_place_paths = map(_paths, (files, hold_out, in_place))
    if not paths:
        raise SimnetError("calibrate: no files: name files of measurements")
    train, held_out, placed = map(sources.read, (paths, held_out_paths, in_place_paths))
    _check_disjoint(paths, held_out_paths, "--hold-out")
    _check_disjoint(paths, in_place_paths, "--in-place")
    _check_effect(train, held_out, _text(experiment or trained), batch, wants_workload=workload)
    if (algorithm or protocol) and not train.logs:
        raise SimnetError("--algorithm, --protocol: have no effect without logs of nccl-tests; drop them")
    own_cluster = _cluster(_text(cluster))
    known = WasTrained(experiment=_text(experiment), workload_name=_text(trained), own_cluster=own_cluster)
    options = fit_files.FitOptions(
        cluster=own_cluster or known.cluster,
        bound=bound_percent / 100,
        draws=bootstrap_draws,
        base=merged_calibration.read(str(base)) if base is not None else None,
        trained=Trained(known.scenario, _simulate_s) if known.cluster else None,
        refits_compute=workload,
        allowed=nccl.Allowed(algorithm, protocol),
    )
    parts = fit_files.fit_parts(train, held_out, placed, options)
    has_fit = any(part.table for part in parts)
    _check_asked(train, has_fit=has_fit, wants_workload=workload)
    residuals = [residual for part in parts for residual in part.residuals]
    if held_out.names and not any(residual.role == "held out" for residual in residuals):
        raise SimnetError("--hold-out: the fitted files predict nothing in these files; drop it")
    if not accept_poor_fit:
        check_errors(checked_residuals(parts), bound_percent / 100)
    whole = calibration_file.merge(parts, calibration_file.header(train, placed, known.nic_bytes_per_s))
    notes = merged_calibration.notes(whole, options.base) if has_fit else ()
    if options.base is not None:
        whole = merged_calibration.fitted_over(whole, options.base)
    comments = [calibration_file.comment(train, placed)]
    return CalibrationAnswer(
        parts=tuple(parts),
        traces=tuple((trace, str(path)) for trace, path in train.traces),
        notes=tuple(notes),
        toml=calibration_file.text(whole, comments) if has_fit else None,
        workload_toml=_workload_text(train, known, parts, batch, bootstrap_draws) if workload else None,
    )


def _simulate_s(scenario: "Scenario") -> float:
    from simnet.engine.simulation import simulate

    return simulate(scenario).result.iteration_s


def _workload_text(
    train: "Sources", known: "WasTrained", parts: "Sequence[FittedPart]", batch: int | None, draws: int
) -> str:
    from simnet.calibration import trained_workload, workload_file
    from simnet.calibration.step_part import FittedSteps

    models = [pair for pair in train.files if workload_file.has_model(pair[1])]
    if models:
        return workload_file.text_of_model(models, draws=draws)
    if train.traces:
        return trained_workload.text_of_traces(train.traces, batch, known.workload)
    steps = next(part.steps for part in parts if isinstance(part, FittedSteps))
    return trained_workload.text_of_steps(steps, train.tables, known.nic_bytes_per_s)


def _cluster(name: str | None) -> "Cluster | None":
    """Return a cluster by name or path, or that of an experiment, as simnet init writes one.

    Raises:
        SimnetError: there is none, or something in it does not fit.
    """
    from simnet.cluster.hardware import Cluster
    from simnet.core import files
    from simnet.core.schema import build
    from simnet.engine import scenario

    if name is None:
        return None
    if files.is_path(name) and "cluster" in files.read("clusters", name):
        return scenario.load(name).cluster
    label = files.label(files.locate("clusters", name))
    return build(Cluster, {"name": name, **files.read("clusters", name)}, label)


def _check_disjoint(files: Sequence[Path], others: Sequence[Path], option: str) -> None:
    both = {path.resolve() for path in files} & {path.resolve() for path in others}
    for path in others:
        if path.resolve() in both:
            raise SimnetError(f"{option} {path}: is also a file to fit; name it once")


def _check_effect(
    train: "Sources", held_out: "Sources", trained: str | None, batch: int | None, *, wants_workload: bool
) -> None:
    """Refuse options without an effect on these files."""
    if trained is not None and not (train.tables or (train.traces and wants_workload)):
        raise SimnetError("--experiment, --trained: no effect without step times, or traces with --workload; drop it")
    if batch is not None and not (train.traces and wants_workload):
        raise SimnetError("--batch: no effect without a trace and --workload; drop it")
    for table in held_out.tables:
        if same := [fitted for fitted in train.tables if fitted.digest == table.digest]:
            raise SimnetError(f"--hold-out {table.path}: holds the same as {same[0].path}; fit one or predict it")
    if held_out.tables and not train.tables:
        raise SimnetError(
            f"--hold-out {held_out.tables[0].path}: step times are predicted by step times; give some to fit"
        )


def _check_asked(train: "Sources", *, has_fit: bool, wants_workload: bool) -> None:
    """Refuse outputs that the files cannot fill, and files that fill no output."""
    from simnet.calibration.workload_file import has_model

    num_models = sum(map(has_model, train.measurements))
    kinds = min(len(train.traces), 1) + min(num_models, 1) + min(len(train.tables), 1)
    if wants_workload and kinds != 1:
        raise SimnetError(
            f"--workload: {len(train.traces)} traces, {num_models} files of simnet measure model and "
            f"{len(train.tables)} tables of step times: give files of one of these kinds"
        )
    if not has_fit and not train.traces and not num_models and not train.tables:
        raise SimnetError(
            "calibrate: the files hold no collective and no kernel of the simulator; measure some with simnet measure"
        )


@checked
def validate(  # noqa: PLR0913 - the options of the command
    experiment: Name | None = None,
    measurements: Files = (),
    *,
    published: bool = False,
    sets: Iterable[str] | str = (),
    model: str | None = None,
    nic_gbit_per_s: Annotated[float, Meta(ge=1e-6, le=1e6)] | None = None,
    settings: Settings | None = None,
    draws: Draws | None = None,
    progress: Progress = True,
) -> ValidationAnswer:
    """Compare predicted times with measured ones.

    Args:
        experiment: gives workload and calibration of measurements of one's own; or the folder of a proof that was run,
            into which the calibration that explains it is written.
        measurements: files of simnet measure training; those that the calibration was fitted to are refused.
        published: compare the shipped published measurements instead.
        sets: only these published sets; by default all, with intervals.
        model: compare only the steps of this model.
        nic_gbit_per_s: bandwidth of all NICs of a node [Gbit/s], where the measurements do not say it.
        settings: values of the experiment to use instead, by dotted key.
        draws: as in `simulate`.
        progress: as in `sweep`, by measured step.

    Raises:
        SimnetError: nothing to compare, unknown names, or measurements that the calibration was fitted to.

    Example:
        >>> import simnet
        >>> validation = simnet.validate(published=True, sets=["hkbu_bsp"])
        >>> len(validation.comparisons), f"{validation.mean_error:.0%}"
        (12, '2%')
    """
    paths = _paths(measurements)
    if published:
        if experiment is not None or paths:
            raise SimnetError("validate: published: needs no experiment and no measurements; drop them")
        return _published(tuple(sets))
    if experiment is None:
        raise SimnetError("validate: no measurements: name an experiment and measurements, or give published=True")
    if os.path.isdir(experiment):  # noqa: PTH112 - which raises nothing
        if paths or model is not None or nic_gbit_per_s is not None or draws is not None or settings:
            raise SimnetError(f"validate: {experiment}: a proof holds all that it needs; drop the other arguments")
        return _proof(Path(str(experiment)))
    from simnet.calibration.measurement_file import read
    from simnet.report import measured_steps
    from simnet.validation import held_out_proof, training_steps

    if not paths:
        raise SimnetError("validate: MEASUREMENTS: missing; name files of simnet measure training")
    scenario = experiment_of(experiment, settings, draws, needs_strategy=False).at({})
    as_they_are = [(path, read(path)) for path in paths]
    nic_bytes_per_s = nic_gbit_per_s * 1e9 / 8 if nic_gbit_per_s is not None else None
    known = [(path, training_steps.with_nic(whole, nic_bytes_per_s)) for path, whole in as_they_are]
    # Files are recognized as they are, settings with the bandwidth that is now known.
    held_out_proof.check(scenario, as_they_are)
    proof = held_out_proof.check(scenario, known)
    points = training_steps.predict_points(
        scenario, [whole for _, whole in known], model, lambda steps: watched(steps, wanted=progress)
    )
    return ValidationAnswer(comparisons=tuple(points), proof=measured_steps.proof_text(proof))


def _published(names: Sequence[str]) -> ValidationAnswer:
    """Compare published sets; all of them, with intervals, where none is named."""
    from simnet.validation import coverage
    from simnet.validation import published as sets

    for name in names:
        sets.check(name)
    wanted = tuple(dict.fromkeys(names)) or sets.names()
    outcomes = [sets.run(name) for name in wanted]
    evidence = None
    if set(wanted) == set(sets.names()):
        evidence = coverage.find_evidence(outcomes)
        outcomes = coverage.with_intervals(outcomes, evidence)
    comparisons = tuple(prediction for outcome in outcomes for prediction in outcome.predictions)
    return ValidationAnswer(comparisons=comparisons, outcomes=tuple(outcomes), evidence=evidence)


def _proof(folder: Path) -> ValidationAnswer:
    """Compare a proof that was run with its predictions, and write the calibration that explains it beside them."""
    from simnet.core.files import write_file
    from simnet.validation.proof_verdict import CALIBRATION, judge

    verdict = judge(folder)
    write_file(folder / CALIBRATION, verdict.calibration_toml.encode(), inside=folder)
    return ValidationAnswer(comparisons=verdict.comparisons, verdict=verdict)


def _paths(files: Files) -> tuple[Path, ...]:
    assert isinstance(files, tuple)  # as `checked` makes it
    return tuple(map(Path, files))


def _text(name: Name | None) -> str | None:
    return None if name is None else str(name)
