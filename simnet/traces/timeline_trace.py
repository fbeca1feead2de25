"""Write the timeline of a result as a trace of torch's profiler (Kineto), which Perfetto, HTA and `simnet record` read.

A file is one rank, as Kineto's are: rank 0, which stands for all where ranks are alike, or the slowest one. The
baseline has a file of its own. Iterations repeat the simulated one. What the host does is not simulated: launches stand
where their kernels begin.

Source: libkineto's output_json.cpp and CuptiActivity.cpp (events, categories and arguments), torch's
torch/csrc/distributed/c10d/ParamCommsUtils.hpp and torch/csrc/profiler/util.cpp (arguments of collectives).
"""

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from simnet.cluster.schedule import Group
from simnet.collectives import link_loads
from simnet.core.bounded_types import BYTES_PER_ELEMENT, Dtype
from simnet.core.errors import SimnetError
from simnet.core.files import is_special, write_file
from simnet.engine.plan import StrategyPlan
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.result import RunResult, Span, StrategyResult
from simnet.engine.scenario import Scenario
from simnet.engine.timeline import Streams
from simnet.strategies.program import Communicate, IterationPart, OperationId

ITERATIONS = 3
"""HTA leaves the last one out."""
MAX_ITERATIONS = 1000
Event = dict[str, Any]
MAX_EVENTS = 2_000_000
"""Of kernels and collectives: about 1 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedKernel:
    """An operation that ran, with times in whole nanoseconds, so that rounding cannot make slices overlap.

    Attributes:
        span: what ran.
        stream: number of its stream.
        start_ns: when it began, from the start of the iteration.
        end_ns: when it ended.
        launch: number of its launch, in the order of all launches of an iteration, from 1 on.
        waits: what its stream waits for first: number of the wait, number of the record of the event, and the place of
            what is waited for.
        part: part of the iteration, of compute.
        group: process groups of a collective.
    """

    span: Span
    stream: int
    start_ns: int
    end_ns: int
    launch: int
    waits: tuple[tuple[int, int, int], ...]
    part: IterationPart | None = None
    group: Group | None = None


def traced_kernels(spans: Sequence[Span], streams: Streams) -> tuple[TracedKernel, ...]:
    """Return what one rank ran, in the order of launches."""
    ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s, span.operation))
    ran = {span.operation: at for at, span in enumerate(ordered) if span.operation is not None}
    kernels: list[TracedKernel] = []
    launch = 0
    for span in ordered:
        which = span.operation
        assert which is not None, "spans of a simulated program name its operations"
        waits = []
        for work in sorted(_waited(which, streams, ran)):
            launch += 1
            # The record of an event is numbered just after the launch of what it follows.
            waits.append((launch, kernels[work].launch + 1, work))
        operation = streams[which.stream][which.position]
        sent = operation if isinstance(operation, Communicate) else None
        kernels.append(
            TracedKernel(
                span=span,
                stream=stream_number(which.stream),
                start_ns=nanoseconds(span.start_s),
                end_ns=nanoseconds(span.end_s),
                launch=launch + 1,
                waits=tuple(waits),
                part=None if isinstance(operation, Communicate) or operation.part == "wait" else operation.part,
                group=sent.schedule.group if sent else None,
            )
        )
        # One number for the launch, and one for the record of an event behind it.
        launch += 2
    return tuple(kernels)


def _waited(which: OperationId, streams: Streams, ran: Mapping[OperationId, int]) -> Iterator[int]:
    """Yield the places of what an operation waits for on other streams; what took no time did not run itself."""
    seen: set[OperationId] = set()
    asked = list(streams[which.stream][which.position].after)
    while asked:
        operation_id = OperationId(*asked.pop())
        if operation_id in seen or operation_id.stream == which.stream:
            continue
        seen.add(operation_id)
        if operation_id in ran:
            yield ran[operation_id]
            continue
        # What took no time has no kernel to wait for: what held it up is waited for in its place.
        asked += streams[operation_id.stream][operation_id.position].after
        if operation_id.position:
            asked.append(OperationId(operation_id.stream, operation_id.position - 1))


def stream_number(stream: int) -> int:
    """Return the number of a program's stream as CUDA might give it."""
    return COMPUTE_STREAM if stream == 0 else FIRST_OTHER_STREAM + stream - 1


def nanoseconds(seconds: float) -> int:
    """Return a time in whole nanoseconds, the resolution of the viewers."""
    return round(seconds * 1e9)


def phases(kernels: Sequence[TracedKernel]) -> Iterator[tuple[IterationPart, int, int]]:
    """Yield forward, backward and optimizer as one host would go through them, each from first start to last end [ns].

    Kernels of a codec belong to the phase in which they run.
    """
    computed = [
        kernel
        for kernel in kernels
        if kernel.stream == COMPUTE_STREAM and kernel.part not in {None, "encode", "decode"}
    ]
    at = 0
    while at < len(computed):
        last = at
        while last + 1 < len(computed) and computed[last + 1].part == computed[at].part:
            last += 1
        part = computed[at].part
        assert part is not None
        yield part, computed[at].start_ns, computed[last].end_ns
        at = last + 1


HOST, HOST_THREAD = 1_000_000, 1
"""Process and thread of the host; processes of GPUs have their number on the node."""
_PHASES: dict[IterationPart, tuple[str, str]] = {
    "forward": ("user_annotation", "DistributedDataParallel.forward"),
    "backward": ("cpu_op", "autograd::engine::evaluate_function: simulated"),
    "optimizer": ("user_annotation", "Optimizer.step#simulated"),
}


class TraceOfRank:
    """What one rank did, ready to be written for any number of iterations.

    Attributes:
        rank: its number.
        is_folded: whether it stands for all ranks.
        groups: its process groups.
    """

    def __init__(
        self, run_result: RunResult, result: StrategyResult, plan: StrategyPlan, prepared: PreparedScenario
    ) -> None:
        """Number what ran; `result` is that of the strategy or of the baseline, and `plan` its program."""
        self._streams = prepared.timed(plan)
        kernels = traced_kernels(result.spans, self._streams)
        topology = prepared.topology_of(plan.strategy)
        self.rank = result.spans[0].rank
        self.is_folded = result.fidelity == "folded"
        self.groups = TracedGroups(kernels, self.rank, run_result.world_size)
        self._kernels, self._plan = kernels, plan
        self._device = self.rank % run_result.ranks_per_node
        self._launches = kernels[-1].launch + 1
        # A period of unlike steps has no one iteration: it lasts until its last operation.
        alike_s = result.iteration_s if plan.program.period == 1 else max(span.end_s for span in result.spans)
        self._length_ns = max(nanoseconds(alike_s), *(kernel.end_ns for kernel in kernels))
        is_plain = plan.program.payload_bytes == prepared.step.gradient_bytes
        model_dtype = run_result.scenario.workload.dtype if is_plain else None
        # Codes are bytes.
        self._dtype = _DTYPES.get(getattr(plan.strategy, "wire_dtype", None) or model_dtype, "Byte")
        self._arguments = [self._arguments_of(kernel) for kernel in kernels]

        def nic_bytes(sent: Communicate) -> float:
            # Out of the busiest node.
            return link_loads.nic_bytes_per_node(topology, sent.schedule, sent.message_bytes)

        def port_bytes(sent: Communicate) -> float:
            # Out of the busiest GPU to others of its node.
            loads = link_loads.phases(topology, sent.schedule, sent.message_bytes)
            return sum(load.wire_bytes.get("port_tx", 0.0) for phase in loads for load in phase)

        self._rates = [
            ("NIC of the node, sent [Gbit/s]", 8e-9, list(_rates(kernels, self._streams, nic_bytes))),
            ("links of the GPU in its node, sent [GB/s]", 1e-9, list(_rates(kernels, self._streams, port_bytes))),
        ]

    def names(self, title: str) -> Iterator[Event]:
        """Yield the names of processes and tracks."""
        who = f"rank {self.rank}, {'which stands for all' if self.is_folded else 'the slowest'}"
        for pid, label, order in ((HOST, "host", 0), (self._device, f"GPU {self._device}", 1)):
            yield _metadata("process_name", pid, 0, {"name": f"{title}: {who}"})
            yield _metadata("process_labels", pid, 0, {"labels": label})
            yield _metadata("process_sort_index", pid, 0, {"sort_index": order})
        yield _metadata("thread_name", HOST, HOST_THREAD, {"name": "steps and launches (not simulated)"})
        for number, operations in enumerate(self._streams):
            is_sending = any(isinstance(operation, Communicate) for operation in operations)
            label = "compute" if number == 0 else "communication" if is_sending else "side work"
            stream = stream_number(number)
            yield _metadata("thread_name", self._device, stream, {"name": f"stream {stream}: {label}"})
            yield _metadata("thread_sort_index", self._device, stream, {"sort_index": stream})

    def iteration(self, number: int) -> Iterator[Event]:
        """Yield the events of one iteration, from 0."""
        begin_ns, first_launch = number * self._length_ns, number * self._launches
        step = f"ProfilerStep#{number + 1}"
        yield _complete(step, "user_annotation", (HOST, HOST_THREAD), begin_ns, self._length_ns)
        yield _complete(step, "gpu_user_annotation", (self._device, COMPUTE_STREAM), begin_ns, self._length_ns)
        for part, start_ns, end_ns in phases(self._kernels):
            category, name = _PHASES[part]
            yield _complete(name, category, (HOST, HOST_THREAD), begin_ns + start_ns, end_ns - start_ns)
        for kernel, arguments in zip(self._kernels, self._arguments, strict=True):
            yield from self._kernel(kernel, arguments, begin_ns, first_launch)
        for name, scale, changes in self._rates:
            for time_ns, rate in changes:
                sent = {"sent": round(rate * scale, 6)}
                at_us = (begin_ns + time_ns) / 1000
                yield {"ph": "C", "name": name, "pid": self._device, "tid": 0, "ts": at_us, "args": sent}

    def _kernel(self, kernel: TracedKernel, arguments: Event, begin_ns: int, first_launch: int) -> Iterator[Event]:
        """Yield the launch of a kernel, the waits in front of it, itself, and arrows from what it waited for."""
        start_ns, track = begin_ns + kernel.start_ns, (self._device, kernel.stream)
        for number, on_number, work in kernel.waits:
            other = self._kernels[work]
            said = {
                "stream": kernel.stream,
                "correlation": first_launch + number,
                "device": self._device,
                "wait_on_stream": other.stream,
                "wait_on_cuda_event_record_corr_id": first_launch + on_number,
                "wait_on_cuda_event_id": first_launch + on_number,
            }
            yield _complete("Stream Wait Event", "cuda_sync", track, start_ns, 0) | {"args": said}
            flow = {"cat": "waits_for", "name": "waits for", "id": first_launch + number, "pid": self._device}
            # An arrow belongs to the slice around its time: the last nanosecond of what ended.
            left_ns = begin_ns + max(other.end_ns - 1, other.start_ns)
            yield {"ph": "s", **flow, "tid": other.stream, "ts": left_ns / 1000}
            yield {"ph": "f", "bp": "e", **flow, "tid": kernel.stream, "ts": start_ns / 1000}
        launch = {"correlation": first_launch + kernel.launch}
        yield _complete("cudaLaunchKernel", "cuda_runtime", (HOST, HOST_THREAD), start_ns, 0) | {"args": launch}
        ran = _complete(_kernel_name(kernel), "kernel", track, start_ns, kernel.end_ns - kernel.start_ns)
        yield ran | {"args": arguments | launch}

    def _arguments_of(self, kernel: TracedKernel) -> Event:
        known: Event = {"device": self._device, "context": 1, "stream": kernel.stream}
        if kernel.span.bucket is not None:
            known["bucket"] = kernel.span.bucket
        if kernel.part is not None:
            known["part"] = kernel.part
        return known if kernel.group is None else known | self.groups.arguments(kernel, self._dtype)


def _kernel_name(kernel: TracedKernel) -> str:
    """Return a kernel's name as a profiler shows it: a ring's all_reduce is `ncclDevKernel_AllReduce_RING`."""
    span = kernel.span
    if kernel.group is None:
        return span.name
    words = ("ncclDevKernel", span.name.title().replace("_", ""), span.algorithm.upper().replace(" ", "_"))
    return "_".join(filter(None, words))


def _complete(name: str, category: str, track: tuple[int, int], start_ns: int, duration_ns: int) -> Event:
    """Return an event with a start and a duration, both in microseconds as the format wants."""
    pid, tid = track
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": start_ns / 1000,
        "dur": duration_ns / 1000,
    }


def _metadata(kind: str, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}


COLLECTIVES = {
    "all_reduce": "allreduce",
    "reduce_scatter": "_reduce_scatter_base",
    "all_gather": "_allgather_base",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send_recv": "send",
}
_DTYPES: dict[Dtype | None, str] = {"fp32": "Float", "fp16": "Half", "bf16": "BFloat16"}
MOST_RANKS = 16_384
"""Ranks of a process group up to which the header of a trace lists them."""
_LISTED_RANKS = 30


class TracedGroups:
    """The process groups of a rank, numbered as torch.distributed numbers them: all ranks first."""

    def __init__(self, kernels: Iterable[TracedKernel], rank: int, world_size: int) -> None:
        """Number the groups in the order in which they are used."""
        self._rank, self._world_size = rank, world_size
        self._numbers: dict[tuple[int, int], int] = {(world_size, 1): 0}
        self._groups: list[Group | None] = [None]
        for kernel in kernels:
            if kernel.group is not None and (kernel.group.size, kernel.group.stride) not in self._numbers:
                self._numbers[(kernel.group.size, kernel.group.stride)] = len(self._groups)
                self._groups.append(kernel.group)

    def config(self) -> list[dict[str, Any]]:
        """Return the groups for the trace's header; those of very many ranks go without a list of them."""
        groups = []
        for number, group in enumerate(self._groups):
            size = group.size if group else self._world_size
            known: Event = {
                "pg_name": str(number),
                "pg_desc": _description(group),
                "backend_config": "cuda:nccl",
                "pg_size": size,
            }
            groups.append(known | ({"ranks": self._ranks(group, size)} if size <= MOST_RANKS else {}))
        return groups

    def _ranks(self, group: Group | None, number: int) -> list[int]:
        if group is None:
            return list(range(number))
        first = group.group_id(self._rank)
        return [first + group.stride * position for position in range(number)]

    def arguments(self, kernel: TracedKernel, dtype: str) -> dict[str, Any]:
        """Return what a collective says of itself, with torch's name of its dtype; messages of codes count bytes."""
        span, group = kernel.span, kernel.group
        assert group is not None
        item, size = _ITEM_BYTES[dtype], max(group.size, 1)
        # Torch writes the input and the output of a rank, which differ where parts are gathered or scattered.
        whole, part = round(span.message_bytes / item), round(span.message_bytes / item / size)
        number = self._numbers[group.size, group.stride]
        # Of a long list torch writes the first ranks.
        listed = ", ".join(map(str, self._ranks(group, min(size, _LISTED_RANKS))))
        return {
            "Collective name": COLLECTIVES[span.name],
            "In msg nelems": part if span.name == "all_gather" else whole,
            "Out msg nelems": part if span.name == "reduce_scatter" else whole,
            "Group size": group.size,
            "dtype": dtype,
            "Process Group Name": str(number),
            "Process Group Description": _description(group if number else None),
            "Process Group Ranks": f"[{listed}{', ...' if size > _LISTED_RANKS else ''}]",
            "Algorithm": span.algorithm,
            "Message bytes": span.message_bytes,
        }


_ITEM_BYTES = {"Byte": 1, **{name: BYTES_PER_ELEMENT[dtype] for dtype, name in _DTYPES.items() if dtype}}


def _description(group: Group | None) -> str:
    if group is None:
        return "default_pg"
    if group.nodes == 1:
        return "within a node"
    return "between nodes" if group.members_per_node == 1 else "over nodes"


def _rates(
    kernels: Iterable[TracedKernel], streams: Streams, sent_bytes: Callable[[Communicate], float]
) -> Iterator[tuple[int, float]]:
    """Yield when the rate of a link changes [ns], and what it is from then on [B/s]: of each collective its mean."""
    changes: list[tuple[int, int, float]] = []
    for kernel in kernels:
        which, lasted_ns = kernel.span.operation, kernel.end_ns - kernel.start_ns
        operation = streams[which.stream][which.position] if which is not None else None
        if isinstance(operation, Communicate) and lasted_ns > 0 and (size := sent_bytes(operation)):
            changes += [(kernel.start_ns, kernel.launch, size / lasted_ns * 1e9), (kernel.end_ns, kernel.launch, 0.0)]
    changes.sort()
    running: dict[int, float] = {}
    for at, (time_ns, launch, rate) in enumerate(changes):
        if rate:
            running[launch] = rate
        else:
            running.pop(launch, None)
        # Of several changes at one time the last says what holds from then on.
        if at + 1 == len(changes) or changes[at + 1][0] > time_ns:
            yield time_ns, sum(running.values())


def write_trace(run_result: RunResult, path: Path, iterations: int = ITERATIONS) -> None:
    """Write the trace of the strategy, and that of its baseline beside it (`baseline_path`).

    A device or pipe takes the strategy's alone; a file that ends with .gz is packed. The simulated iteration is written
    several times, one after the other.

    Raises:
        SimnetError: the result has no spans, the numbers are out of range, or a file cannot be written.
    """
    # Both are made before one is written, so that a refusal leaves nothing behind.
    files = {path: _bytes(run_result, run_result.result, run_result.scenario, path, iterations)}
    compared = run_result.compared
    if run_result.baseline is not None and compared is not None and not is_special(path):
        beside = baseline_path(path)
        files[beside] = _bytes(run_result, run_result.baseline, compared, beside, iterations)
    for each, data in files.items():
        write_file(each, data)


def baseline_path(path: Path) -> Path:
    """Return the path of the baseline's trace.

    Example:
        >>> print(baseline_path(Path("out/step.json.gz")))
        out/step.baseline.json.gz
    """
    endings = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    return path.with_name(f"{path.name.removesuffix(endings)}.baseline{endings}")


def _bytes(run_result: RunResult, result: StrategyResult, scenario: Scenario, path: Path, iterations: int) -> bytes:
    _check(run_result, result, iterations)
    is_baseline = result is run_result.baseline
    prepared = PreparedScenario(scenario)
    plan = prepared.plan(scenario.strategy)
    traced = TraceOfRank(run_result, result, plan, prepared)
    title = f"{result.strategy}{' (baseline)' if is_baseline else ''}, simulated"
    trace = {
        **_header(run_result, traced, title, plan),
        "traceEvents": [*traced.names(title), *(event for n in range(iterations) for event in traced.iteration(n))],
        "traceName": path.name,
    }
    data = msgspec.json.encode(trace)
    # Without the time of day, so that one run always gives the same bytes.
    return gzip.compress(data, mtime=0) if path.suffix == ".gz" else data


def _check(run_result: RunResult, result: StrategyResult, iterations: int) -> None:
    name = run_result.scenario.name
    if not 1 <= iterations <= MAX_ITERATIONS:
        raise SimnetError(f"trace: {iterations} iterations: must be 1 to {MAX_ITERATIONS}; give a number of these")
    if not result.spans or any(span.operation is None for span in result.spans):
        raise SimnetError(f"trace: {name}: a result without a timeline, as files hold it: simulate the scenario again")
    # Viewers fail on more, and this process would hold all of it.
    if len(result.spans) * iterations > MAX_EVENTS:
        most = MAX_EVENTS // len(result.spans)
        raise SimnetError(
            f"trace: {name}: {iterations} iterations of {len(result.spans)} operations: at most {MAX_EVENTS} "
            f"operations in a file; write at most {most} iterations"
        )


def _header(run_result: RunResult, traced: TraceOfRank, title: str, plan: StrategyPlan) -> Event:
    gpu = run_result.scenario.cluster.gpu or ""
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "deviceProperties": [{"id": number, "name": gpu} for number in range(run_result.ranks_per_node)],
        "distributedInfo": {
            "backend": "nccl",
            "rank": traced.rank,
            "world_size": run_result.world_size,
            "pg_count": len(traced.groups.config()),
            "pg_config": traced.groups.config(),
        },
        "simnet": {
            "version": run_result.version,
            "scenario": run_result.scenario.name,
            "strategy": title,
            "rank": traced.rank,
            "stands_for": "every rank" if traced.is_folded else "the slowest rank",
            "notes": list(_notes(plan)),
        },
    }


def _notes(plan: StrategyPlan) -> Iterator[str]:
    yield "the host is not simulated: launches stand where their kernels begin"
    steps, inner = plan.program.num_steps, plan.program.inner
    if inner is not None:
        yield f"{inner.number} further steps of each period, all alike and without communication, are left out"
    if steps > 1:
        yield f"each ProfilerStep holds {steps} optimizer steps, after which they repeat"


COMPUTE_STREAM, FIRST_OTHER_STREAM = 7, 20
"""Numbers that torch's first streams usually have; tools take stream 0 for no stream."""
