"""One recording, from its start to what is written."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from binsgdm.errors import BinsgdmError
from binsgdm.recording import tape
from binsgdm.recording.fake_tensors import fake_tensors
from binsgdm.recording.noted_waits import counting, in_place_of_stand_ins, noted_cuda_streams, noted_threads
from binsgdm.recording.recorder import ComputeForm, Device, Recorder
from binsgdm.recording.single_process_world import ONE_SIDED, World, alone

Runs = Literal["gpu", "cpu"]
"""Where the step is to run: side streams overlap on a GPU; on a CPU a call returns when its work is done."""


class RecordingIsDone(BaseException):
    """Ends a script that trains on; no `except Exception` of the script holds it up."""


@dataclass(frozen=True, kw_only=True)
class RecordingSettings:
    """How to record.

    Attributes:
        steps: to record, at least 1.
        warm_up: steps before them: DDP forms its buckets anew after the first one.
        compute: whether work is counted, or timed on this machine.
        runs_on: whether work of side streams overlaps.
        device: on which the script computes.
        fake: whether tensors have shapes and no memory, for models that this machine cannot hold.
        stops_script: whether steps after those that were asked for are passed over, until the script ends or is ended.
    """

    steps: int = 8
    warm_up: int = 2
    compute: ComputeForm = "counted"
    runs_on: Runs = "gpu"
    device: Device = "cpu"
    stops_script: bool = False
    fake: bool = False

    def __post_init__(self) -> None:
        if self.fake and self.compute == "timed":
            raise BinsgdmError("--fake: tensors without memory take no time: count work, with --compute counted")


class Recording:
    """Records the training steps of what runs inside `running`.

    Args:
        world: that the script believes to be in.
        settings: how to record.
        after_step: called at the end of every step that is noted.
        before_backward: called when a backward pass begins; may raise RecordingIsDone.
    """

    def __init__(
        self,
        world: World,
        settings: RecordingSettings,
        *,
        after_step: Callable[[], object] = lambda: None,
        before_backward: Callable[[], object] = lambda: None,
    ) -> None:
        self.world, self.recorder, self._settings = world, Recorder(settings.compute, settings.device), settings
        self._after_step, self._before_backward = after_step, before_backward
        self._groups: list[dict[str, Any]] = []
        self._gradient_bytes: dict[int, float] = {}  # by optimizer
        self._watched: dict[int, torch.Tensor] = {}  # parameters, of which `_ready` has their gradients in order, and
        self._ready: dict[int, float] = {}  # the work of the recorder at which each was ready
        self._begin_work = 0.0
        self.recorder.on_backward = self._begin_backward

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record what runs inside."""
        with ExitStack() as stack:
            self._groups = stack.enter_context(alone(self.world, self.recorder, self.end_step, self._note_gradients))
            if self._settings.device == "cuda":
                stack.enter_context(noted_cuda_streams(self.recorder))
            elif self._settings.runs_on == "gpu":
                stack.enter_context(in_place_of_stand_ins(self.recorder))
            stack.enter_context(noted_threads(self.recorder))
            stack.enter_context(counting(self.recorder))
            if self._settings.fake:
                stack.enter_context(fake_tensors())
            self.recorder.forget_time()
            yield

    def end_step(self) -> None:
        """End a step, where its end is not that of the first optimizer's step."""
        if not self.is_complete:
            self.recorder.end_step()
            self._after_step()

    @property
    def is_complete(self) -> bool:
        """Whether a script that is stopped has done all steps that were asked for."""
        return self._settings.stops_script and self.num_recorded == self._settings.steps

    @property
    def num_recorded(self) -> int:
        """Steps since those to warm up."""
        return max(0, len(self.recorder.cuts) - self._settings.warm_up)

    def _begin_backward(self) -> None:
        self._before_backward()
        if not self.is_complete:
            self._ready.clear()  # the last one of a step counts
            self._begin_work = self.recorder.backward_work

    def _note_gradients(self, optimizer: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for parameter in parameters if self._settings.compute == "counted" else ():
            if id(parameter) not in self._watched and parameter.requires_grad:
                self._watched[id(parameter)] = parameter
                parameter.register_post_accumulate_grad_hook(self._note_ready)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self._gradient_bytes[id(optimizer)] = float(
            sum(gradient.numel() * gradient.element_size() for gradient in gradients)
        )

    def _note_ready(self, parameter: torch.Tensor) -> None:
        self._ready.pop(id(parameter), None)  # of a parameter that is used twice the last time counts
        self._ready[id(parameter)] = self.recorder.backward_work

    def _gradients(self) -> list[dict[str, Any]]:
        """Return the shape of each gradient and its share of backward, in ready order.

        None are returned where some were never ready, as with FSDP2, which sets gradients by itself.
        """
        if self._watched.keys() != self._ready.keys():
            return []
        gradients, before = [], self._begin_work
        whole = max(self._ready.values(), default=0.0) - self._begin_work
        for number, work in self._ready.items():
            # Backward is timed as a whole; its work says when each gradient is ready.
            share = (work - before) / whole if whole > 0 else 1.0
            # Nine digits tell any two gradients apart, and keep the file small.
            gradients.append({"shape": list(self._watched[number].shape), "backward_share": float(f"{share:.9f}")})
            before = work
        return gradients

    def content(self) -> dict[str, Any]:
        """Return what a step file needs of this world: its "source", its "recording", and how many "steps" it has."""
        device = self._settings.device
        gpu = torch.cuda.get_device_name() if device == "cuda" else ""
        kind = "fake" if self._settings.fake else device
        return {
            "source": {"torch": torch.__version__, "device": kind, "gpu": gpu, "compute": self._settings.compute},
            "recording": self.document(),
            "steps": {"asked": self._settings.steps, "recorded": self.num_recorded},
        }

    def document(self) -> dict[str, Any]:
        """Return the recording of this world as the step file holds it."""
        recorder, settings = self.recorder, self._settings
        recorder.clock.settle()
        skipped, num_cuts = settings.warm_up, len(recorder.cuts)
        if num_cuts <= skipped:
            raise BinsgdmError(self._why_too_few())
        num_steps, streams, notes = tape.period(recorder.tape, recorder.cuts, skipped)
        kinds = {operation["kind"] for stream in streams for operation in stream["operations"]}
        if kinds <= {"compute"}:
            raise BinsgdmError(
                f"the script never communicates in {num_cuts - skipped} steps: wrap its model (DDP, FSDP2, "
                "binsgdm.attach), or give more --steps where it communicates seldom"
            )
        for name in ONE_SIDED:
            if name in kinds:
                raise BinsgdmError(
                    f"{name} in a training step: one rank alone sends or receives all: a recording needs ranks that "
                    "all do the same; measure such a step on the cluster"
                )
        if settings.stops_script and not self.is_complete:
            early = f"the script ended after {num_cuts} steps: {self.num_recorded} of {settings.steps} are recorded"
            notes.insert(0, early)
        return {
            "num_nodes": self.world.num_nodes,
            "ranks_per_node": self.world.ranks_per_node,
            "num_steps": num_steps,
            "micro_batches": max(recorder.backwards[-1], 1),
            "gradient_bytes": sum(self._gradient_bytes.values()),
            "gradients": self._gradients(),
            "groups": self._groups,
            "streams": streams,
            "notes": notes,
        }

    def _why_too_few(self) -> str:
        recorder, skipped = self.recorder, self._settings.warm_up
        if not recorder.num_optimizer_steps:
            return (
                f"no optimizer of torch has stepped ({recorder.num_backwards} backward passes): a step ends with that "
                "of an optimizer: update parameters by one, such as torch.optim.SGD, or end each step by "
                "recording.end_step() inside `with binsgdm.record(...)`"
            )
        if not recorder.num_backwards:
            return (
                f"an optimizer has stepped {recorder.num_optimizer_steps} times, and loss.backward() has never run: a "
                "step begins with a backward pass: call it in place of torch.autograd.grad or gradients set by hand"
            )
        return (
            f"the script ended after {len(recorder.cuts)} steps: at least {skipped + 1} are needed ({skipped} to "
            "warm up): let it train longer, or give a smaller --warm-up"
        )


def usual_settings(**chosen: Any) -> RecordingSettings:
    """Return settings for this machine: work is timed on a GPU where there is one, and counted on a CPU."""
    has_gpu = torch.cuda.is_available() and not chosen.get("fake")
    device = chosen.get("device") or ("cuda" if has_gpu else "cpu")
    compute = chosen.get("compute") or ("timed" if device == "cuda" else "counted")
    return RecordingSettings(**{**chosen, "device": device, "compute": compute})


@contextmanager
def record(
    file: str | Path, *, num_nodes: int, ranks_per_node: int, settings: RecordingSettings | None = None
) -> Iterator[Recording]:
    """Record the training steps that run inside, and write them to a step file.

    The block must be entered before `init_process_group`, and is rank 0 of a world that is not there. A step ends with
    that of the first optimizer; where it does not, `recording.end_step()` says so.

    Args:
        file: to write; one that exists is replaced.
        num_nodes: nodes of the world.
        ranks_per_node: ranks on each.
        settings: how to record; by default work is timed on a GPU where there is one, else counted.

    Raises:
        BinsgdmError: what runs inside needs another rank, ends too early, or never communicates.

    Example:
        with binsgdm.record("step.json", num_nodes=8, ranks_per_node=8):
            train(steps=10)
    """
    recording = Recording(World(num_nodes=num_nodes, ranks_per_node=ranks_per_node), settings or usual_settings())
    with recording.running():
        yield recording
    tape.write(Path(file), [recording.content()], command=" ".join(sys.argv))
