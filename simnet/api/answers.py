"""The answers: what the simulator found, with what every answer can do."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, overload

from msgspec import Meta, Struct

from simnet.analysis.advice import Advice
from simnet.analysis.crossover import Crossover
from simnet.analysis.time_to_target import TimesToTarget
from simnet.api.answer import Answer, Shown
from simnet.core.arguments import File, checked
from simnet.core.errors import SimnetError, shown
from simnet.engine.result import RunResult, SweepResult, to_json
from simnet.report.table import Page

if TYPE_CHECKING:
    from simnet.report.chart import Chart
    from simnet.report.contents import Contents

Interval = tuple[float, float]
Item = TypeVar("Item", bound=Struct)


class NoPointError(SimnetError, IndexError):
    """A place beyond the points of a sweep, which Python's own loops look for."""


class RunAnswer(Answer, RunResult, frozen=True, kw_only=True):
    """What one iteration takes, with what `RunResult` holds.

    It prints what `simnet simulate` prints; its data frame has one row; drawn is where the time of a step goes, a bar
    for the strategy and one for tuned DDP.

    Example:
        >>> import simnet
        >>> run = simnet.simulate("bert_base_10gbit")
        >>> run
        RunAnswer(bert_base_10gbit: 4.89x (2.96x to 7.03x), binsgdm 76.05 ms a step against tuned DDP)
        >>> f"{run.result.iteration_s * 1e3:.1f} ms, {run.result.overlap:.0%} of its communication hidden"
        '76.0 ms, 73% of its communication hidden'
    """

    @property
    def iteration_s(self) -> float:
        """Mean time of an iteration of the strategy [s]."""
        return self.result.iteration_s

    @property
    def speedup_interval(self) -> Interval | None:
        """90 % interval of the speedup; None where nothing is compared or drawn."""
        return self.intervals.get("speedup")

    def _shown(self) -> Shown:
        from simnet.report import result_page, rows

        def chart(run: RunAnswer) -> "Chart":
            from simnet.report import step_charts  # which a command that prints need not load

            return step_charts.breakdown([run])

        return Shown(
            line=result_page.run_line,
            page=result_page.result_page,
            rows=lambda run: [rows.row(run)],
            chart=chart,
            legend={"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3},
        )

    def to_json(self) -> str:
        """Return what `simnet simulate --format json` prints."""
        return to_json(self.without_spans(), indent=2).decode()

    @checked
    def trace(self, path: File, *, iterations: Annotated[int, Meta(ge=1, le=1000)] = 3) -> None:
        """Write a timeline for ui.perfetto.dev and Holistic Trace Analysis, that of tuned DDP beside it.

        Args:
            path: of the file, such as step.json or step.json.gz; tuned DDP's is step.baseline.json.
            iterations: how often the iteration is written, one after the other.

        Raises:
            SimnetError: the numbers are out of range, or a file cannot be written.
        """
        from simnet.traces.timeline_trace import write_trace

        write_trace(self, Path(path), iterations)

    @checked
    def report(self, path: File, *, systems: Iterable[str] | str | None = ()) -> None:
        """Write what `simnet report` writes: one HTML file of this run, what is around it, and what else could be used.

        Args:
            path: of the file.
            systems: alternatives to rank, which takes seconds; by default all, with None none.

        Raises:
            SimnetError: nothing to compare with is known, plotly is missing, or the file cannot be written.
        """
        from simnet.report.contents import of_scenario

        _write_report(path, lambda: of_scenario(self.scenario, lambda _: None, systems=systems))

    def _repr_html_(self) -> str:
        from simnet.report.answer_html import run_html

        return run_html(self)


class SweepAnswer(Answer, SweepResult, frozen=True, kw_only=True):
    """All points of a sweep, with what `SweepResult` holds; iterating yields one `RunAnswer` a point.

    It prints what `simnet sweep` prints. Its data frame has one row a point: the swept keys, then scenario and metrics.
    Drawn is the speedup over the last key that varies, a line for each value of the others.

    Example:
        >>> import simnet
        >>> sweep = simnet.sweep("bert_base_10gbit", {"cluster.num_nodes": [2, 8]}, draws=0)
        >>> [f"{run.num_nodes} nodes: {run.speedup:.1f}x" for run in sweep]
        ['2 nodes: 3.1x', '8 nodes: 4.9x']
        >>> sweep.to_frame().loc[:, ["cluster.num_nodes", "speedup"]].round(1)
           cluster.num_nodes  speedup
        0                  2      3.1
        1                  8      4.9
    """

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[RunAnswer]:
        return (as_answer(RunAnswer, point) for point in self.points)

    @overload
    def __getitem__(self, index: int) -> RunAnswer: ...
    @overload
    def __getitem__(self, index: slice) -> list[RunAnswer]: ...
    @checked
    def __getitem__(self, index: int | slice) -> RunAnswer | list[RunAnswer]:
        """Return the run at a place, or those of a slice."""
        try:
            chosen = self.points[index]
        except (IndexError, TypeError) as error:
            raise NoPointError(f"index: {shown(index)}: {error}; there are {len(self)} points, from 0 on") from error
        return (
            [as_answer(RunAnswer, point) for point in chosen]
            if isinstance(chosen, tuple)
            else as_answer(RunAnswer, chosen)
        )

    def _shown(self) -> Shown:
        from simnet.report import charts, rows, sweep_page

        return Shown(
            line=sweep_page.sweep_line,
            page=sweep_page.sweep_page,
            rows=lambda sweep: [rows.row(point, point.set) for point in sweep.points],
            chart=charts.of_sweep,
        )

    def to_json(self) -> str:
        """Return what `simnet sweep --format json` prints."""
        return to_json(self, indent=1).decode()

    @checked
    def report(self, path: File) -> None:
        """Write what `simnet report` writes of a sweep: one HTML file of all its points.

        Raises:
            SimnetError: no point is compared with anything, plotly is missing, or the file cannot be written.
        """
        from simnet.report.contents import of_sweep

        _write_report(path, lambda: of_sweep(self))


class CrossoverAnswer(Answer, Crossover, frozen=True, kw_only=True):
    """Where the faster of two strategies changes, with what `Crossover` holds.

    It prints what `simnet sweep --break-even` prints; its data frame has one row a value tried; drawn is the speedup
    over the key, with intervals and crossings.

    Example:
        >>> import simnet
        >>> crossover = simnet.crossover(
        ...     "bert_base_10gbit", over="cluster.inter_node.bandwidth", start="1 Gbit/s", end="400 Gbit/s", draws=0
        ... )
        >>> crossover  # doctest: +ELLIPSIS
        CrossoverAnswer(cluster.inter_node.bandwidth: binsgdm is faster than tuned DDP up to 121 Gbit/s, ...)
    """

    def _shown(self) -> Shown:
        from simnet.report import charts, crossover, rows

        return Shown(
            line=crossover.crossover_line,
            page=crossover.crossover_page,
            rows=lambda searched: [rows.row_of(crossover.TRIAL, trial) for trial in searched.trials],
            chart=charts.crossover,
            fields=crossover.FIELDS,
        )


class AdviceAnswer(Answer, Advice, frozen=True, kw_only=True):
    """What to use, with what `Advice` holds: every system ranked against the fastest that changes nothing.

    It prints what `simnet advise` prints; its data frame has one row a system, the fastest first; drawn is the speedup
    of at most six systems over NIC bandwidth.

    Example:
        >>> import simnet
        >>> advice = simnet.advise("bert_base_10gbit", systems=["BinSGDM", "local_sgd"], draws=0)
        >>> [system.name for system in advice.systems][:2]
        ['BinSGDM', 'local SGD 8']
    """

    @property
    def sentences(self) -> tuple[str, ...]:
        """What to use and why, a paragraph each."""
        from simnet.report.advice import answer

        return tuple(f"{label}: {text}" for label, text in answer(self).items())

    @property
    def calls(self) -> tuple[str, ...]:
        """Lines of Python that switch the answer on in a training script; empty where there is no such call."""
        from simnet.strategies.calls import calls

        return calls(self.answer.strategy, self.scenario.workload) if self.answer is not None else ()

    @checked
    def proof(self, folder: File) -> None:
        """Write what proves the answer on the cluster: a script for torchrun, a job for Slurm, what is predicted of it.

        Args:
            folder: write predictions and the script that measures them into this new directory.

        Raises:
            SimnetError: one rank alone, a system that no Python switches on, or a folder that is not empty.
        """
        from simnet.validation import proof

        proof.write(proof.of_advice(self), Path(folder))

    def ranking(self) -> Page:
        """Return what `simnet advise --all` prints: every system in place of the answer."""
        from simnet.report.advice import ranking_page

        return ranking_page(self)

    def _shown(self) -> Shown:
        from simnet.report import advice, comparison_charts

        return Shown(
            line=advice.advice_line,
            page=advice.advice_page,
            rows=advice.rows,
            chart=comparison_charts.advised,
            fields=advice.FIELDS,
            legend={"fontsize": "small"},
        )


class TimeToTargetAnswer(Answer, TimesToTarget, frozen=True, kw_only=True):
    """Which training is first at its target, with what `TimesToTarget` holds.

    It prints what `simnet advise --time-to-target` prints; its data frame has one row a system and bandwidth; drawn is
    the metric over simulated time at the first bandwidth.
    """

    def _shown(self) -> Shown:
        from simnet.report import comparison_charts, time_to_target

        return Shown(
            line=time_to_target.time_to_target_line,
            page=time_to_target.time_to_target_page,
            rows=time_to_target.rows,
            chart=lambda times: comparison_charts.over_time(times, times.bandwidths[0]),
            fields=time_to_target.FIELDS,
        )


def _write_report(path: Path | str, contents: "Callable[[], Contents]") -> None:
    """Write contents as a page, which are computed when it is sure that there can be one."""
    from simnet.core.files import write_file
    from simnet.report.report_page import Origin, check_plotly, report_page

    check_plotly()
    origin = Origin(commands=("made in Python: import simnet",), inputs=())
    write_file(Path(path), report_page(contents(), origin).encode())


def as_answer(kind: type[Item], result: Struct) -> Item:
    """Return a result as the answer that holds the same."""
    return kind(**{name: getattr(result, name) for name in kind.__struct_fields__})
