"""The events of one rank's trace, as Kineto writes them."""

from collections.abc import Iterator
from typing import Any

from simnet.engine.plan import StrategyPlan
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.result import RunResult, StrategyResult
from simnet.strategies.program import Communicate, IterationPart
from simnet.traces import traced_work
from simnet.traces.traced_messages import TracedGroups, torch_dtype
from simnet.traces.traced_rates import nic_bytes, port_bytes, rates
from simnet.traces.traced_work import TracedKernel

Event = dict[str, Any]
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
        """Number what ran.

        Args:
            run_result: of the simulation.
            result: of the strategy or of the baseline.
            plan: its program.
            prepared: the scenario.
        """
        self._streams = prepared.timed(plan)
        kernels = traced_work.traced_kernels(result.spans, self._streams)
        topology = prepared.topology_of(plan.strategy)
        self.rank = result.spans[0].rank
        self.is_folded = result.fidelity == "folded"
        self.groups = TracedGroups(kernels, self.rank, run_result.world_size)
        self._kernels, self._plan = kernels, plan
        self._device = self.rank % run_result.ranks_per_node
        self._launches = kernels[-1].launch + 1
        alike_s = result.iteration_s if plan.program.period == 1 else max(span.end_s for span in result.spans)
        self._length_ns = max(traced_work.nanoseconds(alike_s), *(one.end_ns for one in kernels))
        is_plain = plan.program.payload_bytes == prepared.step.gradient_bytes
        own = run_result.scenario.workload.dtype if is_plain else None
        self._dtype = torch_dtype(getattr(plan.strategy, "wire_dtype", None) or own)
        self._arguments = [self._arguments_of(one) for one in kernels]
        self._rates = [
            ("NIC of the node, sent [Gbit/s]", 8e-9, list(rates(kernels, self._streams, nic_bytes(topology)))),
            (
                "links of the GPU in its node, sent [GB/s]",
                1e-9,
                list(rates(kernels, self._streams, port_bytes(topology))),
            ),
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
            is_sending = any(isinstance(one, Communicate) for one in operations)
            label = "compute" if number == 0 else "communication" if is_sending else "side work"
            stream = traced_work.stream_number(number)
            yield _metadata("thread_name", self._device, stream, {"name": f"stream {stream}: {label}"})
            yield _metadata("thread_sort_index", self._device, stream, {"sort_index": stream})

    def iteration(self, number: int) -> Iterator[Event]:
        """Yield the events of one iteration, from 0."""
        begin_ns, first_launch = number * self._length_ns, number * self._launches
        step = f"ProfilerStep#{number + 1}"
        yield _complete(step, "user_annotation", (HOST, HOST_THREAD), begin_ns, self._length_ns)
        yield _complete(
            step, "gpu_user_annotation", (self._device, traced_work.COMPUTE_STREAM), begin_ns, self._length_ns
        )
        for part, start_ns, end_ns in traced_work.phases(self._kernels):
            category, name = _PHASES[part]
            yield _complete(name, category, (HOST, HOST_THREAD), begin_ns + start_ns, end_ns - start_ns)
        for kernel, arguments in zip(self._kernels, self._arguments, strict=True):
            yield from self._kernel(kernel, arguments, begin_ns, first_launch)
        for name, scale, changes in self._rates:
            for time_ns, rate in changes:
                yield _counter(name, self._device, begin_ns + time_ns, round(rate * scale, 6))

    def _kernel(self, kernel: TracedKernel, arguments: Event, begin_ns: int, first_launch: int) -> Iterator[Event]:
        """Yield the launch of a kernel, the waits in front of it, itself, and arrows from what it waited for."""
        start_ns, track = begin_ns + kernel.start_ns, (self._device, kernel.stream)
        for wait in kernel.waits:
            yield from self._wait(kernel, wait, start_ns, begin_ns, first_launch)
        launch = {"correlation": first_launch + kernel.launch}
        yield _complete("cudaLaunchKernel", "cuda_runtime", (HOST, HOST_THREAD), start_ns, 0) | {"args": launch}
        ran = _complete(_kernel_name(kernel), "kernel", track, start_ns, kernel.end_ns - kernel.start_ns)
        yield ran | {"args": arguments | launch}

    def _wait(
        self, kernel: TracedKernel, wait: traced_work.TracedWait, start_ns: int, begin_ns: int, first_launch: int
    ) -> Iterator[Event]:
        other, track = self._kernels[wait.work], (self._device, kernel.stream)
        arguments = {
            "stream": kernel.stream,
            "correlation": first_launch + wait.launch,
            "device": self._device,
            "wait_on_stream": other.stream,
            "wait_on_cuda_event_record_corr_id": first_launch + wait.on_launch,
            "wait_on_cuda_event_id": first_launch + wait.on_launch,
        }
        yield _complete("Stream Wait Event", "cuda_sync", track, start_ns, 0) | {"args": arguments}
        flow = {"cat": "waits_for", "name": "waits for", "id": first_launch + wait.launch, "pid": self._device}
        # An arrow belongs to the slice around its time: the last nanosecond of what ended.
        left_ns = begin_ns + max(other.end_ns - 1, other.start_ns)
        yield {"ph": "s", **flow, "tid": other.stream, "ts": left_ns / 1000}
        yield {"ph": "f", "bp": "e", **flow, "tid": kernel.stream, "ts": start_ns / 1000}

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


def _counter(name: str, pid: int, time_ns: int, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": time_ns / 1000, "args": {"sent": value}}


def _metadata(kind: str, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}
