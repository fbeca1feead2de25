"""The table of costs: who is in it, what a cell says, and that the page is what the command prints."""

import csv
import re
import time
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.kernel_bytes import bytes_per_element
from binsgdm.comm import AllGather, AllToAll
from binsgdm.compressors.registry import SYSTEMS
from docs.regions import region
from evidence.benchmarks import cost
from evidence.benchmarks.cost import ADAMW, DDP, Messages, Model, contestant
from simnet.report.table import Table

SHAPES = [(24, 20), (6,), (8, 8)]


@pytest.mark.parametrize("name", cost.names_of("1 M"))
def test_a_contestant_takes_steps(name: str) -> None:
    model = Model(SHAPES)
    step = contestant(name)(model)
    gradients = [flat.clone() for flat, _ in model.buckets]
    for _ in range(2):
        model.refresh()
        step()
    first = model.parameters[0].detach()
    if name in cost.OPTIMIZERS:
        assert not torch.equal(first, Model(SHAPES).parameters[0])
    else:  # whose mean goes into the gradients
        assert not all(torch.equal(flat, before) for (flat, _), before in zip(model.buckets, gradients, strict=True))


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
    others = {"adamw_s": {1: [1.0, 2.0, 1.0]}, "ddp_s": {1: [4.0, 6.0, 80.0]}, "limits": {1: 0.8}}
    made = cost.Cost(name="top_k", peak_bytes=10.04, times_s=times, **others)
    cells = ["1 M", "top_k", "3e+03", "2.00 (1.75-21)", "0.80", "0.50 (0.50-0.50)", "", "16.0", "10.0"]
    assert cost.row("1 M", made) == cells
    assert len(cost.header([1])) == len(cells)


def test_every_optimizer_has_a_limit_and_every_system_with_one_exists() -> None:
    assert set(cost.OPTIMIZERS) <= set(cost.LEAST_BYTES)
    assert {*cost.SYSTEMS} - {cost.DDP} <= set(SYSTEMS)


def test_the_limit_of_the_optimizers_is_that_of_their_kernels() -> None:
    shaped = sum(bytes_per_element(name) or 0 for name in ("update_shape_pack_", "unpack_apply_"))
    assert cost.LEAST_BYTES["BinSGDM, alone"] == shaped
    assert cost.LEAST_BYTES[ADAMW] == bytes_per_element("adamw")


PAGE = Path(__file__).parents[3] / "docs/evidence/binsgdm.md"


def committed() -> Table:
    with (PAGE.parent / cost.DATA).open(encoding="utf-8", newline="") as file:
        heads, *rows = csv.reader(file)
    return Table(heads, rows)


def test_the_page_is_what_the_command_writes_from_its_data() -> None:
    shown = region(PAGE.read_text(encoding="utf-8"), cost.REGION)
    where, table = shown.partition("\n")[0], committed()
    sizes = [size for size in dict.fromkeys(row[0] for row in table.rows) if size in cost.SIZES]
    assert sizes[:2] == ["1 M", "25 M"]
    assert re.fullmatch(r"x86_64, .* turns, .*", where)
    titles = [column.title for column in table.columns]
    threads = [1, 2] if "of AdamW, 2 threads" in titles else [1]
    how = cost.How(threads=threads)
    assert where.partition(" turns, ")[2] == cost.about(sizes, how).partition(" turns, ")[2]
    assert shown == cost.on_page(where, table)
    assert [column.title for column in table.columns] == cost.header(how.threads)
    measured = [tuple(row[:2]) for row in table.rows if not row[1].startswith(cost.HOOK)]
    assert measured == [(size, name) for size in sizes for name in cost.names_of(size)]
    ratio = r"\d+(\.\d\d)?( \(\d+(\.\d\d)?-\d+(\.\d\d)?\))?"
    for _, name, time_ms, *ratios, of_both, least, peak in table.rows:
        assert re.fullmatch(r"[\d.e+]+", time_ms)
        if name.startswith("hook"):
            assert re.fullmatch(ratio, of_both)
            assert not any((*ratios, least, peak))
            continue
        assert all(re.fullmatch(ratio, cell) for cell in ratios)
        assert all(re.fullmatch(r"\d+\.\d", cell) for cell in (least, peak))
        assert not of_both


def test_adamw_and_the_mean_are_compared_with_themselves() -> None:
    table = committed()
    for name, reference in ((ADAMW, "of AdamW"), (DDP, "of DDP's mean")):
        columns = [number for number, column in enumerate(table.columns) if reference in column.title]
        cells = {row[column] for row in table.rows if row[1] == name for column in columns}
        assert cells == {"1.00 (1.00-1.00)"}
