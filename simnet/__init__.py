"""A discrete-event model of distributed training: what 1-bit communication gains, where, and from what on.

Example:
    >>> import simnet
    >>> run = simnet.simulate("bert_base_10gbit", {"cluster.num_nodes": 4})
    >>> f"{run.speedup:.1f} times as fast"
    '4.3 times as fast'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simnet.api.answer import Answer
    from simnet.api.answers import (
        AdviceAnswer,
        CrossoverAnswer,
        RunAnswer,
        SweepAnswer,
        TimeToTargetAnswer,
    )
    from simnet.api.measured_answers import CalibrationAnswer, ValidationAnswer
    from simnet.api.measurements import calibrate, validate
    from simnet.api.questions import advise, crossover, fits, load, simulate, sweep, time_to_target
    from simnet.core.errors import SimnetError
    from simnet.core.version import VERSION
    from simnet.engine.scenario import Scenario
    from simnet.report.frame import read_frame

    __version__ = VERSION

# Loaded on first use: `import simnet` takes a millisecond, and the command loads nothing that it does not use.
_HOMES = {
    "AdviceAnswer": "simnet.api.answers",
    "Answer": "simnet.api.answer",
    "CalibrationAnswer": "simnet.api.measured_answers",
    "CrossoverAnswer": "simnet.api.answers",
    "RunAnswer": "simnet.api.answers",
    "Scenario": "simnet.engine.scenario",
    "SimnetError": "simnet.core.errors",
    "SweepAnswer": "simnet.api.answers",
    "TimeToTargetAnswer": "simnet.api.answers",
    "ValidationAnswer": "simnet.api.measured_answers",
    "advise": "simnet.api.questions",
    "calibrate": "simnet.api.measurements",
    "crossover": "simnet.api.questions",
    "fits": "simnet.api.questions",
    "load": "simnet.api.questions",
    "read_frame": "simnet.report.frame",
    "simulate": "simnet.api.questions",
    "sweep": "simnet.api.questions",
    "time_to_target": "simnet.api.questions",
    "validate": "simnet.api.measurements",
}

__all__ = [
    "AdviceAnswer",
    "Answer",
    "CalibrationAnswer",
    "CrossoverAnswer",
    "RunAnswer",
    "Scenario",
    "SimnetError",
    "SweepAnswer",
    "TimeToTargetAnswer",
    "ValidationAnswer",
    "__version__",
    "advise",
    "calibrate",
    "crossover",
    "fits",
    "load",
    "read_frame",
    "simulate",
    "sweep",
    "time_to_target",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("simnet.core.version").VERSION
    if name not in _HOMES:
        raise AttributeError(f"module 'simnet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
