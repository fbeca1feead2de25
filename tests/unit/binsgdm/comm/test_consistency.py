"""When ranks compare what they hold alike."""

from collections.abc import Iterable

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm.consistency import CHECK_EVERY, NUM_WRITES, ComparisonSchedule


def asked(written: Iterable[int], num_steps: int, *, skipped: Iterable[int] = ()) -> list[int]:
    """Return the steps, from 1, in which a rank asks; somebody writes before some steps, and some move nothing."""
    schedule, parameter, found = ComparisonSchedule(), torch.zeros(1), []
    for step in range(1, num_steps + 1):
        if step in written:
            parameter.zero_()
        if schedule.is_due([torch.zeros(2), parameter]):
            found.append(step)
            schedule.compared()
        if step not in skipped:
            parameter.add_(1)
            schedule.note([torch.zeros(2), parameter])
    return found


def test_ranks_compare_at_first_and_now_and_then() -> None:
    assert asked([], 2 * CHECK_EVERY) == [1, CHECK_EVERY, 2 * CHECK_EVERY]


@pytest.mark.parametrize("writes", [[3], [3, 4], [3, 5, 7], [*range(3, 120, 2)], [3, 4, 5, 9, 10, 40]])
def test_every_write_is_looked_at_at_once_unless_it_is_one_of_many_in_a_row(writes: list[int]) -> None:
    assert asked(writes, 120) == [1, *writes]


def test_a_row_of_writes_is_looked_at_for_a_while_then_now_and_then_and_at_its_end() -> None:
    first, last = 10, 2 * CHECK_EVERY + 50
    seen = [*range(first, first + NUM_WRITES), CHECK_EVERY, 2 * CHECK_EVERY, last + 1]
    assert asked(range(first, last + 1), last + 40) == [1, *seen]
    assert asked([*range(first, last + 1), last + 2], last + 40) == [1, *seen, last + 2]


def test_a_row_that_has_ended_before_it_was_long_is_looked_at_to_its_end() -> None:
    row = range(5, 5 + NUM_WRITES)
    assert asked(row, 100) == [1, *row]


def test_steps_that_move_nothing_do_not_lengthen_a_row() -> None:
    assert asked([3, 90], 100, skipped=range(2, 95)) == [1, 3, 90]


def test_a_rank_asks_until_all_were_compared() -> None:
    schedule, parameter = ComparisonSchedule(), torch.zeros(1)
    assert schedule.is_due([parameter])
    schedule.compared()
    schedule.note([parameter])
    parameter.zero_()
    assert [schedule.is_due([parameter]) for _ in range(3)] == [True] * 3
    schedule.compared()
    assert not schedule.is_due([parameter])
    schedule.invalidate()
    assert [schedule.is_due([parameter]) for _ in range(3)] == [True] * 3


def test_other_counts_that_change_between_steps_are_looked_at_too() -> None:
    schedule = ComparisonSchedule()
    schedule.compared()
    schedule.note([], 4)
    assert [schedule.is_due([], count) for count in (4, 0)] == [False, True]
