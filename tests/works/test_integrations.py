"""One short training by each of three libraries, on two ranks and in every way, against the plain loop."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from tests.helpers.launch import launch, meeting_point
from tests.works import integrations

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("library", integrations.LIBRARIES)
def test_a_training_by_a_library_ends_where_the_plain_loop_ends(library, tmp_path):
    needs(library)
    with meeting_point() as where:
        launch(integrations.work, library, str(tmp_path), where, nprocs=2)
    for name, theirs in torch.load(tmp_path / "results.pt", weights_only=False).items():
        assert [(one.kind, one.said) for one in theirs] == [("", ""), ("", "")], f"{library}, {name}"
