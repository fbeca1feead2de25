"""nccl-tests on Azure in the simulator: all-reduces from 1 to 16 MiB."""

from simnet.validation.outcome import Limit, Outcome
from simnet.validation.published.nccl_tests import MIB, SizeClass, outcome

ORDER = 9.2


def evaluate() -> Outcome:
    """Predict the messages of medium size."""
    return outcome(SizeClass(words="from 1 to 16 MiB", least=MIB, most=16 * MIB), Limit(mean=0.10))
