"""Every fast implementation of the kernels."""

from typing import Any

import pytest

from tests.helpers.needs import needs


@pytest.fixture(params=["cpu", pytest.param("triton", marks=pytest.mark.slow)])  # tests/gpu has each of them once
def fast(request: pytest.FixtureRequest) -> Any:
    """Return one of the fast implementations."""
    needs("torch")
    needs({"cpu": "numba"}.get(request.param, "triton"))
    from binsgdm.kernels import select
    from tests.helpers.kernel_samples import device

    return select(request.param, device() if request.param == "triton" else "cpu")
