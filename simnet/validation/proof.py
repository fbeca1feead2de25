"""A proof of an advice: what to run, what is predicted of it, and the script that measures it.

Messages, kernels and a training without messages are timed beside the steps, so that each part of the scenario is told
by times of its own (`proof_verdict`).
"""

import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from simnet.analysis.advice import Advice, RankedSystem
from simnet.analysis.tune import without_faults
from simnet.core import files, templates
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.core.units import Duration, Size
from simnet.engine import intervals
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import BatchSettings, RunSettings, Scenario, encode, settings_of, with_settings
from simnet.engine.simulation import simulate
from simnet.strategies import AnyStrategy, DenseAllReduce
from simnet.strategies.calls import calls, with_bucket_views
from simnet.strategies.fsdp import ShardedStrategy
from simnet.strategies.program import Kernel
from simnet.strategies.zero import ShardedUpdate
from simnet.validation.strategy_spec import StrategySpec
from simnet.workload import training_step
from simnet.workload.workload import Adam, Workload

PROOF, SCRIPT, JOB = "proof.json", "prove.py", "prove.sbatch"
ALONE: Literal["alone"] = "alone"
REFERENCE: Literal["reference"] = "reference"
RECOMMENDED: Literal["recommended"] = "recommended"
RunName = Literal["alone", "reference", "recommended"]
STEPS = 50
MESSAGES = tuple(2**power for power in (12, 16, 20, 22, 24, 26))
LONGEST_S, FEWEST_MESSAGES = 1.0, 3
"""Of a message that is measured [s], as predicted; so many of the smallest are in any case."""
KERNEL_SIZES = 8
"""Largest over smallest size of a kernel that is measured: the largest is about that of the largest bucket."""
PIECE = 2**22
"""Elements of a tensor of the synthetic module where a workload gives only the number of all."""
OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"
TINY = Duration(1e-9)
NOT_IN_A_DOCSTRING = str.maketrans({'"': "'", "\\": "/", "\n": " "})


class ProofRun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training of the proof.

    Attributes:
        name: that of its function in the script.
        title: for people.
        strategy: what is simulated.
        batch_per_rank: samples of a micro-batch.
        micro_batches: of a step.
        checkpointing: part of the repeated blocks whose activations are computed again.
        gradient_as_bucket_view: DDP's argument.
        adam: as in `workload.memory`.
        steps: that are measured.
        period: steps after which all repeats.
        predicted_s: mean step [s].
        interval_s: its 90 % interval.
        memory_bytes: of a GPU at most; None where a part of it is not known.
    """

    name: RunName
    title: str
    strategy: AnyStrategy
    batch_per_rank: Count
    micro_batches: Count
    checkpointing: float
    gradient_as_bucket_view: bool
    adam: Adam
    steps: Count
    period: Count
    predicted_s: float
    interval_s: tuple[float, float]
    memory_bytes: float | None = None

    def scenario(self, scenario: Scenario) -> Scenario:
        """Return a scenario as it is trained here."""
        cut = BatchSettings(**{name: getattr(self, name) for name in BatchSettings._fields})
        return replace(with_settings(scenario, cut), strategy=self.strategy, baseline=None)

    def step_s(self, scenario: Scenario) -> float:
        """Return the mean step in a scenario [s]."""
        there = self.scenario(replace(scenario, run=replace(scenario.run, draws=0)))
        return _compute_s(there) if self.name == ALONE else simulate(there).result.iteration_s


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An all-reduce of fp32 alone: over all ranks, or in every node at one time."""

    group: Literal["world", "intra_node"]
    message_bytes: Count


class TimedSystem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system whose kernels are timed alone, as `simnet measure kernels` names it, and at which sizes."""

    system: str
    min_elements: Count
    max_elements: Count


class Proof(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be measured.

    Attributes:
        scenario: what the advice was asked about; its strategy is the recommended one.
        runs: the trainings.
        messages: sizes of which are measured alone.
        kernels: of the recommended system; None where it has none that can be timed alone.
        tensors: name and shape of each, in backward order.
        num_elements: of all.
        rows_per_sample: vectors by which the synthetic module multiplies each matrix.
        nic_bytes_per_s: of all NICs of a node.
    """

    scenario: Scenario
    runs: Annotated[tuple[ProofRun, ...], Meta(min_length=2)]
    messages: tuple[Message, ...]
    kernels: TimedSystem | None
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    num_elements: Annotated[int, Meta(ge=1)]
    rows_per_sample: float
    nic_bytes_per_s: float
    what: Literal["simnet proof"] = "simnet proof"
    format: Literal[1] = 1


def of_advice(advice: Advice) -> Proof:
    """Return what proves an advice: DDP without communication, the tuned reference, and what the advice is about.

    Where the reference is switched on by flags of a framework, the fastest that Python switches on stands for it; where
    nothing pays, likewise for the best other.

    Raises:
        SimnetError: one rank alone, or a call that is no Python.
    """
    scenario, answer = advice.scenario, advice.answer
    # That nothing pays is an answer that can be wrong as well: its nearest rival is measured.
    if advice.best is None:
        answer = next((row for row in advice.others if row.may_fit and _is_python(row)), answer)
    if scenario.cluster.world_size < 2:
        raise SimnetError("--proof: one rank sends nothing: set cluster.num_nodes or cluster.ranks_per_node")
    plain = [row for row in advice.systems if row.mathematics in {"same", "rounding"} and row.may_fit]
    reference = next((row for row in (advice.baseline_system, *plain) if _is_python(row)), advice.baseline_system)
    reference, last = (_check_runs(row) for row in (reference, answer or reference))
    drawn = replace(scenario, run=replace(scenario.run, draws=intervals.DRAWS), strategy=last.strategy)
    alone = reference.strategy if _is_sharded(reference.strategy) else _without_hook(reference.strategy)
    what = "The reference" if alone is reference.strategy else "DDP"
    named: list[tuple[RunName, str, RankedSystem, AnyStrategy]] = [
        (ALONE, f"{what} without communication", reference, alone),
        (REFERENCE, _title(reference, scenario), reference, reference.strategy),
        (RECOMMENDED, _title(last, scenario), last, last.strategy),
    ]
    step = training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
    tensors = [(tensor.name, tensor.shape or (int(tensor.num_elements),)) for tensor in step.tensors]
    if not tensors:
        whole, rest = divmod(int(step.num_elements), PIECE)
        tensors = [("", (2**11, 2**11))] * whole + [("", (rest,))] * bool(rest)
    matrices = sum(math.prod(shape) for _, shape in tensors if len(shape) > 1)
    work, cluster = scenario.workload.work, scenario.cluster
    return Proof(
        scenario=replace(drawn, baseline=None),
        runs=tuple(_run(drawn, *training) for training in named if training[0] != RECOMMENDED or answer is not None),
        messages=tuple(_messages(scenario)),
        kernels=_timed_system(drawn, last),
        tensors=tuple(tensors),
        num_elements=int(step.num_elements),
        rows_per_sample=work.forward_flops / (2 * matrices) if work is not None and matrices else 1.0,
        nic_bytes_per_s=cluster.inter_node.bytes_per_s * cluster.nics_per_node,
    )


def _title(row: RankedSystem, scenario: Scenario) -> str:
    """Return the name of a system, with how its batch is cut where that is not as given: your model has to follow."""
    return row.label if row.batches == settings_of(scenario) else f"{row.label}, {row.batches.text()}"


def _is_python(row: RankedSystem) -> bool:
    lines = calls(row.strategy)
    return bool(lines) and not lines[0].startswith("#")


def _check_runs(row: RankedSystem) -> RankedSystem:
    if not _is_python(row):
        how = next(iter(calls(row.strategy)), "no call is known of it").lstrip("# ")
        raise SimnetError(f"--proof: {row.label}: is switched on by no Python ({how}); name others with --systems")
    return row


def _is_sharded(strategy: AnyStrategy) -> bool:
    return isinstance(strategy, ShardedStrategy | ShardedUpdate)


def _without_hook(strategy: AnyStrategy) -> AnyStrategy:
    return DenseAllReduce(bucketing=strategy.bucketing, bucket_cap=strategy.bucket_cap)


def _run(scenario: Scenario, name: RunName, title: str, row: RankedSystem, strategy: AnyStrategy) -> ProofRun:
    there = replace(with_settings(scenario, row.batches), strategy=strategy, baseline=None)
    period = PreparedScenario(there).plan(strategy).program.period
    asked = ProofRun(
        name=name, title=title, strategy=strategy, **row.batches._asdict(), steps=-(-STEPS // period) * period,
        period=period, predicted_s=1.0, interval_s=(1.0, 1.0),
    )  # fmt: skip
    predicted_s, interval_s = predicted(asked, scenario)
    memory = simulate(asked.scenario(replace(scenario, run=replace(scenario.run, draws=0)))).result.memory
    memory_bytes = memory.total_bytes if memory is not None and not memory.unknown else None
    return replace(asked, predicted_s=predicted_s, interval_s=interval_s, memory_bytes=memory_bytes)


def predicted(run: ProofRun, scenario: Scenario) -> tuple[float, tuple[float, float]]:
    """Return a run's mean step in a scenario, and its 90 % interval [s]."""
    there = run.scenario(scenario)
    if run.name != ALONE:
        simulated = simulate(there)
        return simulated.result.iteration_s, simulated.intervals["iteration_s"]
    draws_s = [_compute_s(drawn) for drawn in intervals.drawn_scenarios(there, there.run.draws or intervals.DRAWS)]
    return _compute_s(there), intervals.middle_90_percent(draws_s, intervals.model_error(there.calibration).time)


def _compute_s(scenario: Scenario) -> float:
    """Return a step of the slowest node without communication [s]."""
    prepared = PreparedScenario(replace(scenario, run=replace(scenario.run, draws=0)))
    step = prepared.step_of(scenario.strategy)
    share = 1 / scenario.cluster.world_size if _is_sharded(scenario.strategy) else 1.0
    # DDP's hooks slow down the last backward of a step alone, and the optimizer runs once.
    once_s = step.exchanged_backward_s - step.backward_s + step.optimizer_s * share
    slowest = max(slowdown(scenario, node) for node in range(scenario.cluster.num_nodes))
    return (step.micro_batches * (step.forward_s + step.backward_s) + once_s) * slowest


def slowdown(scenario: Scenario, node: int) -> float:
    """Return by how much faults slow down the compute of a node."""
    return math.prod(fault.compute_factor(node, 0) for fault in scenario.cluster.all_faults)


def _messages(scenario: Scenario) -> Iterator[Message]:
    """Yield the messages, in a node where it has several ranks of a cluster of several."""
    cluster = scenario.cluster
    groups: list[Literal["world", "intra_node"]] = ["world"]
    groups += ["intra_node"] if cluster.num_nodes > 1 and cluster.ranks_per_node > 1 else []
    for group in groups:
        for number, size in enumerate(MESSAGES):
            message = Message(group=group, message_bytes=size)
            try:
                seconds = message_s(scenario, message)
            except SimnetError:  # such as NCCL's costs of several nodes alone
                break
            if number < FEWEST_MESSAGES or seconds <= LONGEST_S:
                yield message


def message_s(scenario: Scenario, message: Message) -> float:
    """Return what an all-reduce takes that nothing hides: a step that computes next to nothing [s]."""
    there = without_faults(scenario)
    if message.group == "intra_node":
        there = replace(there, cluster=replace(there.cluster, num_nodes=1))
    workload = Workload(gradient_bytes=Size(message.message_bytes), forward_s=TINY, backward_s=TINY)
    strategy = DenseAllReduce(bucketing="fused", overlap=False)
    asked = replace(there, workload=workload, strategy=strategy, baseline=None, run=RunSettings(draws=0))
    return simulate(asked).result.iteration_s


def _timed_system(scenario: Scenario, row: RankedSystem) -> TimedSystem | None:
    there = replace(with_settings(scenario, row.batches), strategy=row.strategy)
    program = PreparedScenario(there).plan(row.strategy).program
    sizes = [
        operation.num_elements / operation.num_vectors
        for operation in program.operations
        if isinstance(operation, Kernel)
    ]
    try:
        spec = StrategySpec.of_strategy(row.strategy)
    except ValueError:  # it runs by no system of binsgdm alone
        return None
    system = spec.system if spec.system == "binsgdm" else spec.kernels_argument
    if not sizes or not system:
        return None
    # A power of two, as kernels are measured.
    largest = 2 ** max(10, int(math.log2(max(sizes))))
    return TimedSystem(system=system, min_elements=largest // KERNEL_SIZES, max_elements=largest)


def write(proof: Proof, folder: Path) -> None:
    """Write predictions, script and job into a new folder, all or nothing.

    Raises:
        SimnetError: something is there, or the folder cannot be made.
    """
    cluster = proof.scenario.cluster
    values = {
        "title": proof.scenario.name.translate(NOT_IN_A_DOCSTRING),
        "nodes": cluster.num_nodes, "ranks_per_node": cluster.ranks_per_node,
        "runs": [{"name": run.name, "title": run.title, "lines": list(script_lines(run))} for run in proof.runs],
    }  # fmt: skip
    made = {PROOF: encode(proof)} | {name: templates.page(name, values).encode() for name in (SCRIPT, JOB)}
    check_new(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".simnet-", dir=folder.parent) as partial_folder:
            whole = Path(partial_folder, "proof")
            whole.mkdir()
            for name, content in made.items():
                files.write_file(whole / name, content)
            os.replace(whole, folder)  # noqa: PTH105 - an empty folder is replaced, too
    except OSError as error:
        raise files.write_error(folder, error, "--proof") from error


def check_new(folder: Path) -> None:
    """Refuse a place where something is."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SimnetError(f"{folder}: is there and not empty; name a new folder with --proof")


def script_lines(run: ProofRun) -> Iterator[str]:
    """Yield the call of a run as it is printed, with the optimizer where the call does not make one."""
    has_optimizer = False
    lines = calls(run.strategy)
    for line in with_bucket_views(lines) if run.gradient_as_bucket_view else lines:
        if "(optimizer" in line and not has_optimizer:
            yield OPTIMIZER
            has_optimizer = True
        yield line
        has_optimizer |= line.startswith("optimizer = ")
    if run.name == ALONE and not _is_sharded(run.strategy):
        yield "model.register_comm_hook(None, proof.keep_bucket)"
    if not has_optimizer:
        yield OPTIMIZER
