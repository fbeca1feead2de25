"""The time of work on a GPU: peaks over the share that trainings attain."""

import pytest

from simnet.cluster import gpu_models
from simnet.core.errors import SimnetError
from simnet.workload import roofline

A100 = gpu_models.find("A100-80GB")


def test_products_and_other_operators_take_their_times_one_after_the_other() -> None:
    share = roofline.attained("bf16", 0.0).share
    found = roofline.estimate(312e12, 2039e9, A100, "bf16", convolutions=0.0)
    assert found.seconds == pytest.approx((1 + 1) / share)
    assert roofline.estimate(312e12, 0, A100, "bf16", 0.0).seconds == pytest.approx(1 / share)
    assert roofline.estimate(0, 2039e9, A100, "bf16", 0.0).seconds == pytest.approx(1 / share)


def test_each_kind_of_work_attains_its_own_share() -> None:
    every = roofline.attainments()
    assert roofline.attained("fp32", 1.0) == roofline.attained("fp32", None) == every.plain
    assert roofline.attained("bf16", 0.5) == every.products
    assert roofline.attained("tf32", 0.51) == every.convolutions
    assert roofline.attained("fp8", None) == every.either
    assert every.convolutions.share < every.either.share < every.products.share


@pytest.mark.parametrize("kind", roofline.Attainments.__struct_fields__)
def test_the_interval_of_a_time_is_that_of_the_share_turned_over(kind: str) -> None:
    found = getattr(roofline.attainments(), kind)
    low, high = found.factors
    assert low < 1 < high
    assert found.share / low == pytest.approx(found.interval[1])
    assert found.share / high == pytest.approx(found.interval[0])


def test_what_is_not_known_to_be_products_or_convolutions_is_least_sure() -> None:
    every = roofline.attainments()
    assert every.either.interval[0] < every.products.interval[0]
    assert every.either.interval[1] > every.products.interval[1]


def test_a_format_that_the_gpu_has_not_is_refused() -> None:
    with pytest.raises(SimnetError, match="'fp8': A100-80GB has no peak"):
        roofline.estimate(1.0, 1.0, A100, "fp8")
