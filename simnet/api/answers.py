"""The answers: what the simulator found, with what every answer can do."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, overload

from msgspec import Meta

from simnet.analysis.advice import Advice
from simnet.analysis.crossover import Crossover
from simnet.analysis.time_to_target import TimesToTarget
from simnet.api.answer import Answer
from simnet.core.arguments import File, checked
from simnet.core.errors import SimnetError, shown
from simnet.engine.result import RunResult, SweepResult, to_json
from simnet.report.page import Page

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

Interval = tuple[float, float]


class NoPointError(SimnetError, IndexError):
    """A place beyond the points of a sweep, which Python's own loops look for."""


class RunAnswer(Answer, RunResult, frozen=True, kw_only=True):
    """What one iteration takes, with what `RunResult` holds.

    Example:
        >>> import simnet
        >>> run = simnet.simulate("bert_base_10gbit")
        >>> run
        RunAnswer(bert_base_10gbit: 10.4x (6.22x to 15.2x), binsgdm 76.05 ms a step against all_reduce)
        >>> f"{run.result.iteration_s * 1e3:.1f} ms, {run.result.overlap:.0%} of its communication hidden"
        '76.0 ms, 73% of its communication hidden'
    """

    @property
    def iteration_s(self) -> float:
        """Mean time of an iteration of the strategy [s]."""
        return self.result.iteration_s

    @property
    def speedup_interval(self) -> Interval | None:
        """90 % interval of the speedup; None without a baseline or without draws."""
        return self.intervals.get("speedup")

    def page(self) -> Page:
        """Return what `simnet simulate` prints."""
        from simnet.report.result_page import result_page

        return result_page(self)

    def to_json(self) -> str:
        """Return what `simnet simulate --format json` prints."""
        return to_json(self.without_spans(), indent=2).decode()

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row: scenario and metrics, each with its unit in the column's name."""
        from simnet.report.frame import frame_of
        from simnet.report.rows import row

        return frame_of([row(self)])

    @checked
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw where the time of a step goes, a bar for the strategy and one for the baseline."""
        from simnet.api.drawing import draw_run

        return draw_run(self, ax)

    @checked
    def trace(self, path: File, *, iterations: Annotated[int, Meta(ge=1, le=1000)] = 3) -> None:
        """Write a timeline for ui.perfetto.dev and Holistic Trace Analysis, that of the baseline beside it.

        Args:
            path: of the file, such as step.json or step.json.gz; the baseline's is step.baseline.json.
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
            SimnetError: the run has no baseline, plotly is missing, or the file cannot be written.
        """
        from simnet.api.sharing import write_run

        write_run(self, Path(path), systems)

    def __repr__(self) -> str:
        """Return speedup, interval and step in one line."""
        from simnet.report.answer_line import run_line

        return f"RunAnswer({run_line(self)})"

    def _repr_html_(self) -> str:
        from simnet.report.answer_html import run_html

        return run_html(self)


class SweepAnswer(Answer, SweepResult, frozen=True, kw_only=True):
    """All points of a sweep, with what `SweepResult` holds; iterating yields one `RunAnswer` a point.

    Example:
        >>> import simnet
        >>> found = simnet.sweep("bert_base_10gbit", {"cluster.num_nodes": [2, 8]}, draws=0)
        >>> [f"{run.num_nodes} nodes: {run.speedup:.1f}x" for run in found]
        ['2 nodes: 10.2x', '8 nodes: 10.4x']
        >>> found.to_frame().loc[:, ["cluster.num_nodes", "speedup"]].round(1)
           cluster.num_nodes  speedup
        0                  2     10.2
        1                  8     10.4
    """

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[RunAnswer]:
        return (_run_answer(point) for point in self.points)

    @overload
    def __getitem__(self, index: int) -> RunAnswer: ...
    @overload
    def __getitem__(self, index: slice) -> list[RunAnswer]: ...
    @checked
    def __getitem__(self, index: int | slice) -> RunAnswer | list[RunAnswer]:
        """Return the run at a place, or those of a slice."""
        try:
            found = self.points[index]
        except (IndexError, TypeError) as error:
            raise NoPointError(f"index: {shown(index)}: {error}; there are {len(self)} points, from 0 on") from error
        return [_run_answer(point) for point in found] if isinstance(found, tuple) else _run_answer(found)

    def page(self) -> Page:
        """Return what `simnet sweep` prints."""
        from simnet.report.sweep_page import sweep_page

        return sweep_page(self)

    def to_json(self) -> str:
        """Return what `simnet sweep --format json` prints."""
        return to_json(self, indent=1).decode()

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row a point: the swept keys, then scenario and metrics with units in the columns' names."""
        from simnet.report.frame import frame_of
        from simnet.report.rows import row

        return frame_of([row(point, point.set) for point in self.points])

    @checked
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the speedup over the last key that varies, a line for each value of the others."""
        from simnet.api.drawing import draw_sweep

        return draw_sweep(self, ax)

    @checked
    def report(self, path: File) -> None:
        """Write what `simnet report` writes of a sweep: one HTML file of all its points.

        Raises:
            SimnetError: no point has a baseline, plotly is missing, or the file cannot be written.
        """
        from simnet.api.sharing import write_sweep

        write_sweep(self, Path(path))

    def __repr__(self) -> str:
        """Return points and range of speedups in one line."""
        from simnet.report.answer_line import sweep_line

        return f"SweepAnswer({sweep_line(self)})"


def _run_answer(result: RunResult) -> RunAnswer:
    return RunAnswer(**{name: getattr(result, name) for name in RunResult.__struct_fields__})


class CrossoverAnswer(Answer, Crossover, frozen=True, kw_only=True):
    """Where the faster of two strategies changes, with what `Crossover` holds.

    Example:
        >>> import simnet
        >>> found = simnet.crossover(
        ...     "bert_base_10gbit", over="cluster.inter_node.bandwidth", start="1 Gbit/s", end="400 Gbit/s", draws=0
        ... )
        >>> found  # doctest: +ELLIPSIS
        CrossoverAnswer(cluster.inter_node.bandwidth: binsgdm is faster than all_reduce up to 247 Gbit/s, ...)
    """

    def page(self) -> Page:
        """Return what `simnet sweep --break-even` prints."""
        from simnet.report.crossover import crossover_page

        return crossover_page(self)

    def to_json(self) -> str:
        """Return what `simnet sweep --break-even --format json` prints."""
        from simnet.report.crossover import crossover_object

        return json.dumps(crossover_object(self), indent=2)

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row a value tried."""
        from simnet.report.crossover import crossover_object
        from simnet.report.frame import frame_of

        trials: Any = crossover_object(self)["trials"]
        return frame_of(trials)

    @checked
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the speedup over the key, with intervals and crossings."""
        from simnet.api.drawing import draw_crossover

        return draw_crossover(self, ax)

    def __repr__(self) -> str:
        """Return the crossings in one line."""
        from simnet.report.answer_line import crossover_line

        return f"CrossoverAnswer({crossover_line(self)})"


class AdviceAnswer(Answer, Advice, frozen=True, kw_only=True):
    """What to use, with what `Advice` holds: every system ranked against the fastest that changes nothing.

    Example:
        >>> import simnet
        >>> found = simnet.advise("bert_base_10gbit", systems=["BinSGDM", "local_sgd"], draws=0)
        >>> [system.name for system in found.systems][:2]
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

        return calls(self.answer.strategy) if self.answer is not None else ()

    def ranking(self) -> Page:
        """Return what `simnet advise --all` prints: every system in place of the answer."""
        from simnet.report.advice import ranking_page

        return ranking_page(self)

    def page(self) -> Page:
        """Return what `simnet advise` prints."""
        from simnet.report.advice import advice_page

        return advice_page(self)

    def to_json(self) -> str:
        """Return what `simnet advise --format json` prints."""
        from simnet.report.advice import to_object

        return json.dumps(to_object(self), indent=2, allow_nan=False)

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row a system, the fastest first."""
        from simnet.report.advice import to_object
        from simnet.report.frame import frame_of

        systems: Any = to_object(self)["systems"]
        return frame_of(systems)

    @checked
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the speedup of every system over NIC bandwidth."""
        from simnet.api.drawing import draw_advice

        return draw_advice(self, ax)

    def __repr__(self) -> str:
        """Return the first choice in one line."""
        from simnet.report.answer_line import advice_line

        return f"AdviceAnswer({advice_line(self)})"


class TimeToTargetAnswer(Answer, TimesToTarget, frozen=True, kw_only=True):
    """Which training is first at its target, with what `TimesToTarget` holds."""

    def page(self) -> Page:
        """Return what `simnet advise --time-to-target` prints."""
        from simnet.report.time_to_target import time_to_target_page

        return time_to_target_page(self)

    def to_json(self) -> str:
        """Return what `simnet advise --time-to-target --format json` prints."""
        from simnet.report.time_to_target import time_to_target_object

        return json.dumps(time_to_target_object(self), indent=2)

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row a system and bandwidth."""
        from simnet.report.frame import frame_of
        from simnet.report.time_to_target import time_to_target_object

        bandwidths: Any = time_to_target_object(self)["bandwidths"]
        key = "bandwidth_bytes_per_s"
        return frame_of([{key: there[key]} | system for there in bandwidths for system in there["systems"]])

    @checked
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the metric over simulated time at the first bandwidth."""
        from simnet.api.drawing import draw_time_to_target

        return draw_time_to_target(self, ax)

    def __repr__(self) -> str:
        """Return the first system at each bandwidth in one line."""
        from simnet.report.answer_line import time_to_target_line

        return f"TimeToTargetAnswer({time_to_target_line(self)})"
