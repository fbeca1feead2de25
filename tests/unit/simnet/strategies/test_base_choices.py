"""What is tried of a strategy that says nothing of it, and of one that brings a row of its own."""

from typing import ClassVar

from simnet.core.units import Size
from simnet.strategies import Choices, CompressingStrategy, GatheringStrategy, Strategy
from simnet.strategies.base import form_of, presets_of, train_alike, variants_of

CAPS = (None, Size(2**20))


class Plain(Strategy, frozen=True, kw_only=True, tag="plain_of_test"):
    title: ClassVar[str] = "Plain"


class Wide(GatheringStrategy, frozen=True, kw_only=True, tag="wide_of_test"):
    title: ClassVar[str] = "Wide"
    choices: ClassVar[Choices] = GatheringStrategy.choices._replace(
        presets={"{title} 2": ({"width": 2},), "two widths": ({"width": 3}, {"width": 4})}
    )

    width: int = 1


def test_without_a_row_it_is_tried_as_it_is_with_each_way_to_cut_buckets():
    assert presets_of(Plain) == {"Plain": (Plain(),)}
    tried = [*variants_of(Plain(), CAPS)]
    assert tried == [Plain(), Plain(bucket_cap=CAPS[1]), Plain(bucketing="fused", overlap=False)]
    assert {form_of(setting) for setting in tried} == {""}
    assert train_alike(tried[0], tried[1])


def test_a_row_names_settings_and_the_rest_is_that_of_its_family():
    assert presets_of(Wide) == {"Wide 2": (Wide(width=2),), "two widths": (Wide(width=3), Wide(width=4))}
    tried = [*variants_of(Wide(width=2), CAPS)]
    assert {setting.used_topology for setting in tried} == set(Wide.topologies)
    assert {setting.width for setting in tried} == {2}
    alike = {form_of(setting) for setting in tried if train_alike(setting, Wide(topology="hierarchical"))}
    assert alike == {"hierarchical"}
    assert CompressingStrategy.choices.presets == Choices().presets, "a row changes no other one"
