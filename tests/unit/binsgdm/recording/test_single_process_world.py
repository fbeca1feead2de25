"""Every collective of torch is answered as if all ranks sent what rank 0 sends, and noted with its bytes."""

import threading
from collections.abc import Callable

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

from binsgdm.errors import BinsgdmError
from tests.helpers.recorded_steps import collectives, recorded, stream_of

SIZE = 4
NOTED = [
    ("all_reduce", 32.0),
    ("all_reduce", 32.0),
    ("broadcast", 32.0),
    ("reduce", 32.0),
    ("all_gather", 128.0),
    ("all_gather", 128.0),
    ("reduce_scatter", 32.0),
    ("reduce_scatter", 32.0),
    ("all_to_all", 32.0),
    ("all_to_all", 32.0),
    ("barrier", 0.0),
    ("all_reduce", 32.0),
    ("all_gather", 128.0),
    ("reduce_scatter", 32.0),
    ("all_to_all", 32.0),
]


def send_everything() -> None:
    """Call every collective with 8 elements of fp32, and check what comes back."""

    def ones() -> torch.Tensor:
        return torch.ones(8)

    one, mean = ones(), ones()
    dist.all_reduce(one)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert (one[0], mean[0]) == (SIZE, 1)
    dist.broadcast(one, 2)
    dist.reduce(one, 0)
    rows = [torch.zeros(8) for _ in range(SIZE)]
    dist.all_gather(rows, ones())
    gathered = torch.zeros(32)
    dist.all_gather_into_tensor(gathered, ones())
    assert torch.equal(gathered, torch.cat(rows))
    part = torch.zeros(2)
    dist.reduce_scatter(part, list(torch.arange(8.0).chunk(SIZE)))
    assert part.tolist() == [0, SIZE]
    dist.reduce_scatter_tensor(part, torch.arange(8.0))
    assert part.tolist() == [0, SIZE]
    outputs = [torch.zeros(2) for _ in range(SIZE)]
    dist.all_to_all(outputs, list(torch.arange(8.0).chunk(SIZE)))
    output = torch.zeros(8)
    dist.all_to_all_single(output, torch.arange(8.0))
    assert torch.cat(outputs).tolist() == output.tolist() == [0, 1] * SIZE
    dist.barrier()
    assert functional.all_reduce(ones(), "sum", dist.group.WORLD)[0] == SIZE
    assert functional.all_gather_tensor(ones(), 0, dist.group.WORLD).sum() == 32
    assert functional.reduce_scatter_tensor(ones(), "sum", 0, dist.group.WORLD).tolist() == [SIZE, SIZE]
    assert functional.all_to_all_single(torch.arange(8.0), None, None, dist.group.WORLD).tolist() == [0, 1] * SIZE


def train(in_step: object = None) -> None:
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters())
    for _ in range(3):
        module(torch.ones(1, 2)).sum().backward()
        if callable(in_step):
            in_step()
        optimizer.step()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of names that torch calls old and users call
def test_all_collectives_are_noted_in_order():
    sent = collectives(recorded(lambda: train(send_everything), 2, 2, steps=1))
    assert [(kind, size) for kind, _, size in sent] == NOTED
    assert {group for _, group, _ in sent} == {(SIZE, 1)}


def test_ranks_that_are_alike_agree_on_objects():
    def script() -> None:
        found: list[object] = [None] * SIZE
        dist.all_gather_object(found, {"rank": 0})
        assert found == [{"rank": 0}] * SIZE
        given = ["settings"]
        dist.broadcast_object_list(given, 0)
        assert given == ["settings"]
        train(dist.barrier)

    assert [kind for kind, _, _ in collectives(recorded(script, 2, 2, steps=1))] == ["barrier"]


def test_a_model_may_be_handed_out_before_the_steps_but_not_in_them():
    def scatter() -> None:
        dist.scatter(torch.zeros(2), list(torch.ones(8).chunk(SIZE)))

    def before() -> None:
        scatter()
        train(dist.barrier)

    recorded(before, 2, 2, steps=1)
    with pytest.raises(Exception, match="scatter in a training step: one rank alone"):
        recorded(lambda: train(scatter), 2, 2, steps=1)


def test_a_sum_in_a_smaller_group_is_that_of_its_ranks():
    def script() -> None:
        group = dist.new_group([0, 2])
        one = torch.ones(3)
        dist.all_reduce(one, group=group)
        assert one.tolist() == [2] * 3
        train(lambda: dist.all_reduce(one, group=group))

    assert collectives(recorded(script, 2, 2, steps=1)) == [("all_reduce", (2, 2), 12.0)]


def hop(between: Callable[[], object]) -> None:
    """Receive from the rank before and send to the rank after, with something between."""
    arriving, leaving = torch.zeros(4), torch.ones(4)
    received = dist.irecv(arriving, src=SIZE - 1)
    between()
    sent = dist.isend(leaving, dst=1)
    for work in (received, sent):
        assert work is not None
        work.wait()


def computed_elsewhere() -> None:
    thread = threading.Thread(target=lambda: torch.ones(8) @ torch.ones(8), name="elsewhere")
    thread.start()
    while thread.is_alive():  # not joined: this thread does not wait for what it does
        pass


def test_the_halves_of_a_hop_may_have_work_of_another_thread_between_them() -> None:
    recording = recorded(lambda: train(lambda: hop(computed_elsewhere)), 2, 2, steps=1)
    assert collectives(recording) == [("send_recv", (SIZE, 1), 16.0)]
    assert stream_of(recording, "thread elsewhere")


@pytest.mark.parametrize(
    "between",
    [lambda: torch.ones(8, 8) @ torch.ones(8, 8), lambda: dist.all_reduce(torch.ones(2))],
    ids=["work", "sent"],
)
def test_halves_with_work_of_their_own_thread_between_them_are_a_stage_of_a_pipeline(between) -> None:
    with pytest.raises(BinsgdmError, match="recv in group 'world': one rank alone receives"):
        recorded(lambda: train(lambda: hop(between)), 2, 2, steps=1)
