"""The stages of a step, by name in the traces of torch.profiler (and of nsys, with `emit_nvtx`)."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

from torch.autograd import profiler

P = ParamSpec("P")
R = TypeVar("R")


def stage(name: str) -> AbstractContextManager[object]:
    """Let what is done inside stand in traces as `binsgdm::NAME`."""
    # torch's ranges cost 5 us each also where nobody looks, and a step has tens of them; this asks first. A version of
    # torch without the flag gets all ranges.
    is_profiled = getattr(profiler, "_is_profiler_enabled", True)
    return profiler.record_function(f"binsgdm::{name}") if is_profiled else nullcontext()


def staged(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let each call of a function be a stage; it must be no generator, which would end its stage where it begins."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def in_stage(*args: P.args, **kwargs: P.kwargs) -> R:
            with stage(name):
                return function(*args, **kwargs)

        return in_stage

    return decorate
