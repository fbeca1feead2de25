"""What the ranks of a module have done is done once, for all its tests and all workers."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """Return what rank 0 has left of this module, or of the one that it names as LAUNCHED."""
    import torch

    from tests.helpers.launch import launch, once

    launched = getattr(request.module, "LAUNCHED", request.module)

    def make(folder: Path) -> None:
        launch(launched.work, str(folder), nprocs=launched.WORLD_SIZE)

    return torch.load(once(tmp_path_factory, launched.__name__, make) / "results.pt", weights_only=False)
