"""Which parts of a scenario were off, by what the script of a proof has measured; the calibration that explains it.

Each part is told by times of its own: latency and bandwidth by all-reduces of several sizes, kernels one by one,
compute and slow nodes by the steps of every rank without communication.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, median, median_low
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from simnet.analysis.tune import without_faults
from simnet.calibration import calibration_file, measurement_file, provenance
from simnet.calibration.comparison import Comparison
from simnet.calibration.kernels import select_kernels
from simnet.calibration.measurement_file import MeasurementFile
from simnet.cluster.hardware import Calibration, FittedTo, SlowNode
from simnet.cluster.kernel_times import KernelTime
from simnet.core import files, schema
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration, format_bytes, format_seconds
from simnet.engine import intervals
from simnet.engine.scenario import Scenario, to_dict
from simnet.engine.simulation import kernel_names
from simnet.strategies.base import every_kernel
from simnet.validation.proof import (
    ALONE,
    JOB,
    PROOF,
    SCRIPT,
    Message,
    Proof,
    ProofRun,
    message_s,
    predicted,
    slowdown,
)

RESULTS, CALIBRATION = "results.json", "calibration.toml"
OFF, MATTERS = 1.15, 0.03
"""A part is off by this factor or more, and where it changes a step by this share or more."""
LEAST, MOST = 1e-2, 1e2
"""Factors between which a network is fitted."""
ROUNDS = 6
LATENCIES = ("collective_launch", "message_cost", "poll_cost", "host.launch", "host.round", "host.message")
NCCL_LATENCIES = ("start", "ll_start", "ll_hop", "inter_node_hop", "ll_inter_node_hop", "nvls_start")
Link = Literal["intra_node", "inter_node"]


@dataclass(frozen=True, kw_only=True)
class JudgedPart:
    """A part of the scenario that was measured by itself.

    Attributes:
        name: such as "network bandwidth".
        text: what was measured of it, as a sentence.
        factor: measured over the scenario's, of a time or a bandwidth.
        change: puts what was measured into a scenario.
        effect: by which part that alone changes the step that it changes most, without its sign.
    """

    name: str
    text: str
    factor: float
    change: Callable[[Scenario], Scenario]
    effect: float = 0.0

    @property
    def is_off(self) -> bool:
        """Whether it differs by more than noise, and matters."""
        return abs(math.log(self.factor)) > math.log(OFF) and self.effect > MATTERS


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a proof came to.

    Attributes:
        folder: of the proof.
        proof: what was predicted.
        comparisons: each step, measured and predicted.
        explained_s: the steps predicted with all parts as measured [s].
        parts: the one with the largest effect first.
        scenario: with all parts as measured.
        created: when it was measured.
        is_of_shapes: whether a synthetic module stood for the model, whose compute is no prediction.
        memory_bytes: measured peak of each training on a GPU; none elsewhere.
    """

    folder: Path
    proof: Proof
    comparisons: tuple[Comparison, ...]
    explained_s: tuple[float, ...]
    parts: tuple[JudgedPart, ...]
    scenario: Scenario
    created: str
    is_of_shapes: bool
    memory_bytes: Mapping[str, float]

    @property
    def off(self) -> tuple[JudgedPart, ...]:
        """Parts that are off, the one with the largest effect first."""
        return tuple(part for part in self.parts if part.is_off)

    @property
    def settings(self) -> dict[str, object]:
        """What is to be set beside the calibration, by dotted key."""
        before, after = to_dict(self.proof.scenario), to_dict(self.scenario)
        keys = ("workload.compute_factor", "workload.intervals", "cluster.slow_nodes",
                "cluster.inter_node.bandwidth", "cluster.intra_node.bandwidth")  # fmt: skip
        return {key: _at(after, key) for key in keys if _at(after, key) != _at(before, key)}

    @property
    def calibration_toml(self) -> str:
        """The calibration with network and kernels as measured."""
        table = {key: value for key, value in to_dict(self.scenario.calibration).items() if key != "name"}
        return calibration_file.text(table, [f"What {RESULTS} explains, by simnet validate"])


def _at(table: Mapping[str, object], key: str) -> object:
    value: object = table
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def judge(folder: Path) -> Verdict:
    """Compare what the script of a folder has measured with what was predicted.

    Raises:
        SimnetError: the results are missing, cut short, of other predictions, or do not hold together.
    """
    data = files.read_bytes(folder / PROOF)
    proof = schema.decode(Proof, data, str(folder / PROOF))
    if not (folder / RESULTS).exists():
        raise SimnetError(f"{folder}: no {RESULTS}: run sbatch {JOB} there, or {SCRIPT} by torchrun, first")
    whole = measurement_file.read(folder / RESULTS)
    # Results of an older script in the same folder would be judged by predictions that it never had.
    if f"proof {hashlib.sha256(data).hexdigest()[:32]}" not in whole.notes:
        raise SimnetError(f"{folder / RESULTS}: was measured for another {PROOF}: run {SCRIPT} of this folder again")
    measured = _MeasuredProof(proof, whole, folder / RESULTS)
    compute, start, parts = measured.compute(proof.scenario), proof.scenario, []
    # Its matrices stand for bytes and shapes, not for the time of the model: what they took is taken as said.
    if measured.is_of_shapes:
        start = compute.change(start)
    else:
        parts.append(compute)
    parts += [*measured.slow_nodes(), *measured.network(start), *measured.kernels(start)]
    scenario = start
    for part in parts:
        scenario = part.change(scenario)
    calibration, rows = scenario.calibration, provenance.fitted_to([(folder / RESULTS, whole)])
    calibration = replace(
        calibration, kind="measured", hops_hide=calibration.hides_hops, source=f"simnet validate {folder}",
        title=f"{proof.scenario.calibration.title or proof.scenario.name} as measured",
        fitted_to=tuple(schema.build(FittedTo, row, RESULTS) for row in rows),
    )  # fmt: skip
    scenario = replace(scenario, calibration=calibration)
    return Verdict(
        folder=folder,
        proof=proof,
        comparisons=tuple(measured.comparison(run, start if measured.is_of_shapes else None) for run in proof.runs),
        explained_s=tuple(run.step_s(scenario) for run in proof.runs),
        parts=tuple(sorted((_with_effect(part, start, proof.runs) for part in parts), key=lambda part: -part.effect)),
        scenario=scenario,
        created=whole.created,
        is_of_shapes=measured.is_of_shapes,
        memory_bytes={
            str(series.labels["run"]): max(series.values) for series in whole.series if series.kind == "memory"
        },
    )


def _with_effect(part: JudgedPart, scenario: Scenario, runs: Sequence[ProofRun]) -> JudgedPart:
    changed = part.change(scenario)
    # Each part by itself: those that cancel each other are named all the same.
    effects = [abs(run.step_s(changed) / run.step_s(scenario) - 1) for run in runs]
    return replaced(part, effect=max(effects))


class _FittedNetwork(NamedTuple):
    """What a link takes over what the scenario says: factors on latencies and bandwidth, and a launch beside [s].

    The times that it was fitted to are off by `spread` at most.
    """

    latency: float = 1.0
    bandwidth: float = 1.0
    launch_s: float = 0.0
    spread: float = 1.0

    def change(self, link: Link, scenario: Scenario) -> Scenario:
        """Put it into a scenario."""
        cluster = scenario.cluster
        calibration = scenario.calibration.at_nodes(cluster.num_nodes)
        here, near = getattr(calibration, link), getattr(cluster, link)
        # A factor needs a latency to act on: the cluster gives it where the calibration has none.
        if here.alpha_s is None:
            here = replace(here, alpha_s=near.alpha_s)
        is_above = self.bandwidth * _reached(link, calibration) > 1  # a fraction of the nominal rate cannot say so
        nccl = calibration.nccl
        if is_above:
            near = replace(near, bytes_per_s=Bandwidth(_short(near.bytes_per_s * self.bandwidth)))
        launch_s = Duration(calibration.collective_launch_s + self.launch_s)
        calibration = replace(calibration, **{link: here}, collective_launch_s=launch_s)
        factors = {f"{link}.latency": self.latency}
        factors |= {} if is_above else {f"{link}.efficiency": self.bandwidth}
        # Costs of a message are one for both links: those between nodes decide, where there are any.
        if link == "inter_node" or cluster.num_nodes == 1:
            factors |= dict.fromkeys(LATENCIES, self.latency)
        if nccl is not None:
            factors |= {f"nccl.{key}": self.latency for key in NCCL_LATENCIES if getattr(nccl, f"{key}_s") is not None}
            if not is_above and getattr(nccl, f"{link}_efficiency") is not None:
                factors[f"nccl.{link}_efficiency"] = self.bandwidth
        changed = intervals.changed_calibration(calibration, factors)
        fitted = [key for key in factors if key in changed.intervals or key.startswith(link)]
        known = changed.intervals | dict.fromkeys(fitted, (1 / self.spread, self.spread))
        calibration = replace(changed, intervals=known)
        return replace(scenario, cluster=replace(cluster, **{link: near}), calibration=calibration)


def _reached(link: Link, calibration: Calibration) -> float:
    """Return the largest part of a link's nominal rate that messages reach."""
    efficiency, nccl = getattr(calibration, link).efficiency, calibration.nccl
    shares = [share for _, share in efficiency] if isinstance(efficiency, tuple) else [efficiency]
    return float(max(*shares, (nccl and getattr(nccl, f"{link}_efficiency")) or 0.0))


def _fitted(scenario: Scenario, link: Link, measured_s: Mapping[Message, float]) -> _FittedNetwork:
    """Return what meets the times of messages, errors relative: Newton steps on both factors.

    Where the scenario has no latency to be multiplied, a launch stands for it.
    """
    wanted = np.array(list(measured_s.values()))

    def times_s(network: _FittedNetwork) -> Any:
        there = network.change(link, scenario)
        return np.array([message_s(there, message) for message in measured_s])

    network = _FittedNetwork()
    # A factor on a latency of zero would never become one.
    has_latency = times_s(_FittedNetwork(latency=2))[0] - times_s(network)[0] > (OFF - 1) * wanted[0] * LEAST
    for _ in range(ROUNDS):
        now_s = times_s(network)
        # Steps of a factor two, since bandwidths are written with four digits: a smaller one may change nothing.
        of_bytes_s = times_s(network._replace(bandwidth=network.bandwidth / 2)) - now_s
        of_latency_s = (
            times_s(network._replace(latency=network.latency * 2)) - now_s if has_latency else 1.0 + 0 * now_s
        )
        rest_s = now_s - of_bytes_s - (of_latency_s if has_latency else network.launch_s)
        columns = np.stack([of_latency_s, of_bytes_s], axis=1) / wanted[:, None]
        (latency, of_bytes), *_ = np.linalg.lstsq(columns, 1 - rest_s / wanted, rcond=None)
        # At half the bandwidth bytes take their time once more; `of_bytes` is the wanted multiple of it.
        bandwidth = float(np.clip(network.bandwidth / max(of_bytes, LEAST), LEAST, MOST))
        if has_latency:
            network = _FittedNetwork(float(np.clip(network.latency * max(latency, LEAST), LEAST, MOST)), bandwidth)
        else:
            network = _FittedNetwork(bandwidth=bandwidth, launch_s=max(0.0, float(latency)))
    most = 1 / _reached(link, scenario.calibration.at_nodes(scenario.cluster.num_nodes))
    # A fraction a little above 1 is noise, and a faster NIC would be said of it.
    if most < network.bandwidth < OFF * most:
        network = network._replace(bandwidth=most)
    return network._replace(spread=float(np.exp(np.abs(np.log(times_s(network) / wanted)).max())))


class _MeasuredProof:
    """The results of a proof, checked to be whole."""

    def __init__(self, proof: Proof, whole: MeasurementFile, where: Path) -> None:
        self.proof, self.whole = proof, whole
        cluster, setup = proof.scenario.cluster, whole.setups[0]
        layouts = (setup.num_nodes, setup.ranks_per_node), (cluster.num_nodes, cluster.ranks_per_node)
        if layouts[0] != layouts[1]:
            raise SimnetError(f"{where}: {layouts[0]} nodes x ranks, not {layouts[1]}: run {SCRIPT} again on as many")
        for number, run in enumerate(proof.runs):
            if (run.name, "step") not in self._times:
                ran = f"{number} of {len(proof.runs)} trainings"
                raise SimnetError(f"{where}: holds {ran}: {SCRIPT} was ended before {run.name!r}: run it again")
            counts = {len(self.of_ranks(run.name).get(rank, ())) for rank in range(setup.world_size)}
            if counts != {run.steps} or len(self._times[run.name, "step"]) != run.steps:
                steps = " or ".join(map(str, sorted(counts)))
                raise SimnetError(
                    f"{where}: {run.name}: ranks have {steps} steps, not {run.steps} each: run {SCRIPT} again"
                )
        missing = [message for message in proof.messages if message not in self.messages_s]
        if missing:
            raise SimnetError(f"{where}: {len(missing)} messages are missing: run {SCRIPT} again")

    @cached_property
    def _times(self) -> dict[tuple[str, str], tuple[float, ...]]:
        return {
            (str(series.labels["run"]), series.name): series.values
            for series in self.whole.series
            if "run" in series.labels
        }

    def of_ranks(self, run: str) -> dict[int, tuple[float, ...]]:
        """Return the steps of each rank [s]."""
        of_run = [
            series for series in self.whole.series if series.name == "rank_step" and series.labels.get("run") == run
        ]
        return {series.count("rank"): series.values for series in of_run}

    @property
    def is_of_shapes(self) -> bool:
        """Whether a synthetic module stood for the model."""
        return any(series.labels.get("model") == "shapes" for series in self.whole.series)

    @cached_property
    def messages_s(self) -> dict[Message, float]:
        """The median time of each message [s]."""
        return {
            Message(group=series.labels["group"], message_bytes=series.count("message_bytes")): median(series.values)  # type: ignore[arg-type]
            for series in self.whole.series
            if series.kind == "collective"
        }

    @cached_property
    def nodes_s(self) -> list[float]:
        """A step of each node without communication, as if the faults that are known of it were not there [s]."""
        ranks, each, steps = self.of_ranks(ALONE), self.proof.scenario.cluster.ranks_per_node, self.proof.scenario
        return [
            median(median(ranks[rank]) for rank in range(node * each, (node + 1) * each)) / slowdown(steps, node)
            for node in range(steps.cluster.num_nodes)
        ]

    def compute(self, scenario: Scenario) -> JudgedPart:
        """Return the compute of the typical node."""
        # The low median: of two nodes the faster one is the typical, and the other is slow.
        typical_s, (alone, *_) = median_low(self.nodes_s), self.proof.runs
        predicted_s = alone.step_s(without_faults(scenario))
        factor = typical_s / predicted_s
        text = f"{factor:.3g} times the scenario's ({format_seconds(typical_s)}, not {format_seconds(predicted_s)})"
        steps_s = sorted(value / typical_s for value in self._times[ALONE, "step"])
        low, high = (_short(intervals.quantile(steps_s, share)) for share in (0.05, 0.95))
        return JudgedPart(
            name="compute",
            text=text,
            factor=factor,
            change=partial(_with_compute, factor, (min(1.0, low), max(1.0, high))),
        )

    def slow_nodes(self) -> Iterator[JudgedPart]:
        """Yield the nodes that compute for longer than the others."""
        typical_s = median_low(self.nodes_s)
        for node, node_s in enumerate(self.nodes_s):
            # Beside the others, so that compute that is off everywhere is not said of every node again.
            if node_s > OFF * typical_s:
                factor = node_s / typical_s
                text = f"{factor:.3g} times as slow as the others ({format_seconds(node_s)} a step)"
                yield JudgedPart(
                    name=f"node {node}", text=text, factor=factor, change=partial(_with_slow_node, node, factor)
                )

    def network(self, scenario: Scenario) -> Iterator[JudgedPart]:
        """Yield latency and bandwidth inside a node, where it is measured, then between nodes."""
        several = scenario.cluster.num_nodes > 1
        # Inside first: messages of all ranks pass these links, too.
        links: dict[str, Link] = {"intra_node": "intra_node", "world": "inter_node" if several else "intra_node"}
        for group, link in links.items():
            asked = [message for message in self.proof.messages if message.group == group]
            if not asked:
                continue
            network = _fitted(scenario, link, {message: self.messages_s[message] for message in asked})
            where = "network" if link == "inter_node" else "link in a node"
            small, large = asked[0], asked[-1]
            for name, only, factor, message in (
                ("latency", network._replace(bandwidth=1.0), network.latency, small),
                (
                    "bandwidth",
                    _FittedNetwork(bandwidth=network.bandwidth, spread=network.spread),
                    network.bandwidth,
                    large,
                ),
            ):
                now_s, then_s = self.messages_s[message], message_s(scenario, message)
                times = f"{format_bytes(message.message_bytes)}: {format_seconds(now_s)}, not {format_seconds(then_s)}"
                is_new = name == "latency" and network.launch_s > 0
                text = (
                    f"{format_seconds(network.launch_s)}, where the scenario has none"
                    if is_new
                    else f"{factor:.3g} times the scenario's"
                )
                yield JudgedPart(
                    name=f"{where} {name}", text=f"{text} (all-reduce of {times})",
                    factor=now_s / then_s if is_new else factor, change=partial(only.change, link),
                )  # fmt: skip
            scenario = network.change(link, scenario)

    def kernels(self, scenario: Scenario) -> Iterator[JudgedPart]:
        """Yield the kernels of the recommended system, if they were timed."""
        if self.proof.kernels is None:
            return
        names, costs = kernel_names(self.proof.runs[-1].scenario(scenario)), every_kernel()
        timed = [kernel for kernel in select_kernels([self.whole]) if kernel.kernel in names]
        measured_s = sum(kernel.median_s for kernel in timed)
        calibration = scenario.calibration
        then_s = sum(
            costs[kernel.kernel].seconds(calibration, kernel.num_elements, kernel.num_vectors) for kernel in timed
        )
        if not timed:
            return
        made = {}
        for name in {kernel.kernel: None for kernel in timed}:
            of_name = [kernel for kernel in timed if kernel.kernel == name]
            # One rate for all sizes of a step, each weighed by its elements.
            each_s = sum(kernel.median_s for kernel in of_name) / sum(kernel.num_elements for kernel in of_name)
            made[name] = KernelTime(s_per_element=Duration(each_s), options=of_name[0].options)
        times = f"({format_seconds(measured_s)}, not {format_seconds(then_s)})"
        factor = measured_s / then_s if then_s else MOST
        text = f"{factor:.3g} times the scenario's {times}" if then_s else f"no time in the scenario {times}"
        yield JudgedPart(name="kernels", text=text, factor=factor, change=partial(_with_kernels, made))

    def comparison(self, run: ProofRun, start: Scenario | None) -> Comparison:
        """Return a step, measured and as it was predicted, or as it is in a scenario."""
        values = self._times[run.name, "step"]
        seconds, interval_s = (run.predicted_s, run.interval_s) if start is None else predicted(run, start)
        # A median would leave out the one step of a period that exchanges.
        measured_s = median(values) if run.period == 1 else fmean(values)
        return Comparison(series=run.name, label=run.title, measured=measured_s, predicted=seconds, interval=interval_s)


def _with_compute(factor: float, spread: tuple[float, float], scenario: Scenario) -> Scenario:
    workload = scenario.workload
    slower = replace(workload, compute_factor=_short(workload.compute_factor * factor), intervals={"compute": spread})
    return replace(scenario, workload=slower)


def _short(value: float) -> float:
    """Return a value with four digits, since people read it."""
    return float(f"{value:.4g}")


def _with_slow_node(node: int, factor: float, scenario: Scenario) -> Scenario:
    cluster = scenario.cluster
    known = next((slow for slow in cluster.slow_nodes if slow.node == node), SlowNode(node=node))
    slower = replace(known, compute_slowdown=_short(known.compute_slowdown * factor))
    others = [slow for slow in cluster.slow_nodes if slow.node != node]
    return replace(scenario, cluster=replace(cluster, slow_nodes=(*others, slower)))


def _with_kernels(made: Mapping[str, KernelTime], scenario: Scenario) -> Scenario:
    calibration = scenario.calibration
    # Intervals of other times of these kernels say nothing of the measured ones.
    known = {key: ends for key, ends in calibration.intervals.items() if not key.startswith("kernels.")}
    return replace(scenario, calibration=replace(calibration, kernels={**calibration.kernels, **made}, intervals=known))
