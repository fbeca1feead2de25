"""The table of costs: who is in it, what a cell says, and that the page is what the command prints."""

import re
import time
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from benchmarks import contestants, cost
from benchmarks.contestants import ADAMW, DDP, SIZES, Messages, Model, contestant
from binsgdm.comm import AllGather, AllToAll
from binsgdm.compressors.registry import SYSTEMS

SHAPES = [(24, 20), (6,), (8, 8)]


@pytest.mark.parametrize("name", cost.contestants("1 M"))
def test_a_contestant_takes_steps(name: str) -> None:
    model = Model(SHAPES)
    step = contestant(name)(model)
    given = [flat.clone() for flat, _ in model.buckets]
    for _ in range(2):
        model.refresh()
        step()
    own = model.parameters[0].detach()
    if name in contestants.OPTIMIZERS:
        assert not torch.equal(own, Model(SHAPES).parameters[0])
    else:  # whose mean goes into the gradients
        assert not all(torch.equal(flat, before) for (flat, _), before in zip(model.buckets, given, strict=True))


def test_every_system_is_in_the_table() -> None:
    assert set(SYSTEMS) - {"dense"} <= set(cost.contestants("1 M"))
    assert set(cost.contestants("100 M")) == set(contestants.OPTIMIZERS)


def test_buckets_hold_every_gradient_once_from_the_last_on() -> None:
    numbers = [number for bucket in contestants._cut([20, 30, 26 * 2**20, 4]) for number in bucket]
    assert numbers == [3, 2, 1, 0]


def test_the_time_of_messages_is_known() -> None:
    messages = Messages()

    def protocol():  # type: ignore[no-untyped-def]
        rows = yield AllToAll(group="world", sent=torch.ones(4, 2))
        return (yield AllGather(group="world", sent=rows.sum(0)))

    start = time.perf_counter()
    assert messages.run(1, protocol()).tolist() == [[4.0, 4.0]] * 4
    assert 0 < messages.taken_s < time.perf_counter() - start


def test_a_cell_is_the_median_ratio_of_turns_with_its_quarters() -> None:
    times = {1: [2.0, 3.0, 40.0]}
    made = cost.Cost(
        name="x", peak_bytes=10.04, times_s=times, adamw_s={1: [1.0, 2.0, 1.0]}, ddp_s={1: [4.0, 6.0, 80.0]}
    )
    assert cost.row(made) == "| x | 3e+03 | 2.00 (1.75-21) | 0.50 (0.50-0.50) | 10.0 |"
    assert [line.count("|") for line in cost.header([1])] == [6, 6]


PAGE = Path(__file__).parents[3] / "docs/evidence/cost.md"


def test_the_page_is_what_the_command_prints() -> None:
    lines = PAGE.read_text(encoding="utf-8").split(cost.PAGE[0])[1].split(cost.PAGE[1])[0].strip().splitlines()
    assert re.fullmatch(r"x86_64, .* turns, .*", lines[0])
    threads = [int(number) for number in re.findall(r"of AdamW, (\d)", lines[4])]
    wanted = []
    sizes = [size for size in SIZES if cost.title(size) in lines]
    assert sizes[:2] == ["1 M", "25 M"]
    for size in sizes:
        wanted += ["", cost.title(size), "", *cost.header(threads), *cost.contestants(size)]
    ratio = r"\d+(\.\d\d)? \(\d+(\.\d\d)?-\d+(\.\d\d)?\)"
    cells = " \\| ".join([r"[\d.e+]+", *[ratio] * 2 * len(threads), r"\d+\.\d"])
    found = [re.sub(rf"^\| (.*?) \| {cells} \|$", r"\1", line) for line in lines[1:]]
    assert found == wanted


def test_adamw_and_the_mean_are_compared_with_themselves() -> None:
    text = PAGE.read_text(encoding="utf-8")
    titles = re.findall(r"^\|  \| ms.*$", text, re.MULTILINE)[0].split("|")
    for name, reference in ((ADAMW, "of AdamW"), (DDP, "of DDP's mean")):
        columns = [number for number, title in enumerate(titles) if reference in title]
        rows = re.findall(rf"^\| {name} \|.*$", text, re.MULTILINE)
        assert {row.split("|")[column].strip() for row in rows for column in columns} == {"1.00 (1.00-1.00)"}
