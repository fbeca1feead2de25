"""One short training by each of three libraries, on two ranks and in every way, against the plain loop."""

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from tests.helpers.launch import launch, meeting_point
from tests.works import integrations


@pytest.mark.parametrize("library", integrations.LIBRARIES)
def test_a_training_by_a_library_ends_where_the_plain_loop_ends(library, tmp_path):
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install '.[integrations]'")
    with meeting_point() as where:
        launch(integrations.work, library, str(tmp_path), where, nprocs=2)
    for name, theirs in torch.load(tmp_path / "results.pt", weights_only=False).items():
        assert [(one.kind, one.said) for one in theirs] == [("", ""), ("", "")], f"{library}, {name}"
