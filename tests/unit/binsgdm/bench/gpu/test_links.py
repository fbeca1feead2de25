"""Links between cards are measured where there are two."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.gpu import links
from binsgdm.bench.gpu.parts import NotMeasurableError
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import StopRule

ALONE = Ranks(
    rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=torch.device("cpu"), backend="", groups=None
)


def test_one_card_is_skipped_with_a_reason():
    with pytest.raises(NotMeasurableError, match="needs two"):
        links.measure(Bench(record=Record(ALONE), ranks=ALONE, stop_rule=StopRule()), quick=True, seconds=5.0)
