"""nccl-tests on Azure in the simulator: all-reduces below 1 MiB."""

from simnet.validation.outcome import Limit, Outcome
from simnet.validation.published.nccl_tests import MIB, SizeClass, outcome

ORDER = 9.3


def evaluate() -> Outcome:
    """Predict the small messages."""
    return outcome(SizeClass(words="below 1 MiB", least=1, most=MIB), Limit(mean=0.20))
