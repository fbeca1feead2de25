"""One process records what every rank of a world would do, whatever it trains with."""

import threading

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard

from binsgdm.errors import BinsgdmError
from tests.helpers.recorded_steps import (
    LAYER_BYTES,
    LAYERS,
    WIDTH,
    collectives,
    data_parallel,
    model,
    power_sgd,
    recorded,
    sharded,
    stream_of,
    tensor_parallel,
    train,
)

WORLD = (8, 1)


def adam(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters())


def test_ddp_sends_its_buckets_during_backward_and_the_optimizer_waits():
    recording = recorded(data_parallel)
    assert collectives(recording) == [("all_reduce", WORLD, 2.0 * LAYER_BYTES)] * 2
    assert (recording["num_steps"], recording["micro_batches"]) == (1, 1)
    assert recording["gradient_bytes"] == LAYERS * LAYER_BYTES
    compute = stream_of(recording, "compute")
    assert [operation["part"] for operation in compute] == ["forward", "backward", "backward", "backward", "optimizer"]
    assert [operation["after"] for operation in stream_of(recording, "world")] == [[[0, 1]], [[0, 2]]]
    # The reducer copies buckets back when the last one has come.
    assert [operation.get("after") for operation in compute] == [None, None, None, [[1, 1]], None]
    flops_of_layer = 2 * 2 * WIDTH * WIDTH
    assert compute[0]["flops"] == LAYERS * flops_of_layer
    assert sum(operation.get("flops", 0) for operation in compute[1:4]) == (2 * LAYERS - 1) * flops_of_layer


def test_gradients_are_noted_as_backward_makes_them_ready():
    found = recorded(data_parallel)["gradients"]
    assert [tuple(gradient["shape"]) for gradient in found] in (
        [(WIDTH,), (WIDTH, WIDTH)] * LAYERS,
        [(WIDTH, WIDTH), (WIDTH,)] * LAYERS,
    )
    assert sum(gradient["backward_share"] for gradient in found) == pytest.approx(1)
    layers = [
        sum(gradient["backward_share"] for gradient in found[first : first + 2]) for first in range(0, len(found), 2)
    ]
    assert layers[1] == pytest.approx(layers[2], rel=1e-6)


def test_sharded_gradients_are_ready_together_and_have_their_whole_shape():
    found = recorded(lambda: train(module := fully_shard(model()), adam(module)))["gradients"]
    assert sorted(tuple(gradient["shape"]) for gradient in found) == sorted([(WIDTH,), (WIDTH, WIDTH)] * LAYERS)
    assert [gradient["backward_share"] for gradient in found] == [1.0] + [0.0] * (2 * LAYERS - 1)


def test_torchs_fp16_hook_sends_half_and_is_cast_back_beside_backward():
    recording = recorded(lambda: data_parallel(default_hooks.fp16_compress_hook))
    assert collectives(recording) == [("all_reduce", WORLD, float(LAYER_BYTES))] * 2
    assert {operation["dtype"] for operation in stream_of(recording, "world")} == {"fp16"}
    assert [operation["part"] for operation in stream_of(recording, "callbacks world")] == ["decode"] * 2
    assert [operation["part"] for operation in stream_of(recording, "compute")].count("encode") == 2
    assert [operation["bucket"] for operation in stream_of(recording, "world")] == [0, 1]


def test_power_sgd_hook_sends_three_messages_a_bucket_each_after_the_one_before():
    recording = recorded(power_sgd)
    biases, factor = 2.0 * 4 * WIDTH, 2.0 * 4 * WIDTH
    assert collectives(recording) == [("all_reduce", WORLD, size) for size in (biases, factor, factor)] * 2
    names = [stream["name"] for stream in recording["streams"]]
    sent, callbacks = names.index("world"), names.index("callbacks world")
    # P waits for what the first message's callback has computed, Q for P's.
    assert [operation["after"] for operation in stream_of(recording, "world")][1:3] == [
        [[callbacks, 0]],
        [[callbacks, 1]],
    ]
    assert [operation["after"] for operation in stream_of(recording, "callbacks world")][:3] == [
        [[sent, 0]],
        [[sent, 1]],
        [[sent, 2]],
    ]


def test_a_hook_may_answer_from_a_thread_of_its_own():
    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def exchange() -> None:
            buffer = bucket.buffer()
            dist.all_reduce(buffer)
            future.set_result(buffer.div_(8))

        threading.Thread(target=exchange, name="sender").start()
        future.wait()
        return future

    recording = recorded(lambda: data_parallel(hook))
    assert collectives(recording) == [("all_reduce", WORLD, 2.0 * LAYER_BYTES)] * 2
    computed = stream_of(recording, "thread sender")
    assert [operation["part"] for operation in computed] == ["decode"] * 2  # the division
    # Each is sent when the gradients of its bucket are there, and backward waits at its end.
    assert next(operation["after"] for operation in stream_of(recording, "world")) == [[0, 1]]
    assert any(
        operation.get("after") for operation in stream_of(recording, "compute") if operation["part"] == "backward"
    )


def test_who_waits_for_a_thread_or_a_future_waits_for_what_it_has_done():
    def script() -> None:
        module = model()

        def average(step: int) -> None:
            del step
            answer: torch.futures.Future[None] = torch.futures.Future()
            threads = [
                threading.Thread(target=lambda: dist.all_reduce(next(module.parameters()).data), name="joined"),
                threading.Thread(target=lambda: answer.set_result(dist.barrier()), name="asked"),
            ]
            for thread in threads:
                thread.start()
            answer.wait()
            for thread in threads:
                thread.join()
            next(module.parameters()).data.div_(8)

        train(module, adam(module), after_step=average)

    recording = recorded(script, runs_on="cpu")
    names = [stream["name"] for stream in recording["streams"]]
    waits = [operation["after"] for operation in stream_of(recording, "compute") if "after" in operation]
    assert {names[stream] for after in waits for stream, _ in after} >= {"world"}


def test_fsdp2_gathers_and_scatters_layer_by_layer_on_side_streams():
    recording = recorded(sharded)
    sent = collectives(recording)
    # The last layer is not gathered again for backward.
    assert sent.count(("all_gather", WORLD, float(LAYER_BYTES))) in (2 * LAYERS - 1, 2 * LAYERS)
    assert sent.count(("reduce_scatter", WORLD, float(LAYER_BYTES))) == LAYERS
    # The next layer is gathered while this one computes: no gather of forward waits for the layer before it.
    first, second = (operation["after"] for operation in stream_of(recording, "world")[:2])
    assert not any(stream == 0 and position > 0 for stream, position in first + second)
    optimizer = [operation for operation in stream_of(recording, "compute") if operation["part"] == "optimizer"]
    assert optimizer
    assert (
        sum(operation.get("bytes", 0) for operation in optimizer) < 40 * LAYERS * LAYER_BYTES / 8
    )  # of the shard alone


def test_tensor_parallel_layers_reduce_in_their_group():
    assert set(collectives(recorded(tensor_parallel))) == {("all_reduce", (2, 1), 4.0 * 2 * WIDTH)}


def test_time_is_taken_instead_of_counted():
    recording = recorded(data_parallel, compute="timed")
    assert recording["gradients"] == [], "whose order is known where work is counted"
    compute = stream_of(recording, "compute")
    assert all(operation["seconds"] > 0 and "flops" not in operation for operation in compute)
    assert {operation["part"] for operation in compute} == {"forward", "backward", "optimizer"}


def test_backward_is_timed_as_such_where_nothing_is_sent_in_it():
    def script() -> None:
        module = model()
        train(module, adam(module), after_step=lambda _: dist.all_reduce(next(module.parameters()).data))

    compute = stream_of(recorded(script, compute="timed"), "compute")
    assert [operation["part"] for operation in compute if operation["part"] in ("backward", "optimizer")] == [
        "backward",
        "optimizer",
    ]


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (lambda: train(model(), torch.optim.SGD(model().parameters())), "never communicates"),
        (lambda: None, "no optimizer of torch has stepped"),
        (lambda: train(model(), torch.optim.SGD(model().parameters()), steps=2), "ended after 2 steps: at least 3"),
        (lambda: dist.send(torch.ones(1), 1), "send in group 'world': one rank alone sends"),
        (lambda: dist.recv(torch.ones(1), 1), "recv in group 'world'"),
        (lambda: dist.new_group([0, 1, 5]), r"group 1 of ranks \[0, 1, 5\] in a world of 8: must be one dimension"),
        (lambda: dist.distributed_c10d._get_default_store().get("peer"), "another rank would set it"),
        (lambda: dist.init_process_group(world_size=3, rank=1), "the recording is rank 0 of 8"),
        (
            lambda: dist.all_to_all_single(torch.ones(8), torch.ones(8), [1] * 7 + [2], [1] * 8),
            "parts of 1 to 2 elements hang on the data",
        ),
    ],
)
def test_what_one_process_cannot_do_for_all_is_refused(script, sentence):
    with pytest.raises(BinsgdmError, match=sentence):
        recorded(script)
    assert not dist.is_initialized()


@pytest.mark.usefixtures("alone")
def test_a_process_group_that_exists_is_refused():
    with pytest.raises(BinsgdmError, match="exists already"):
        recorded(lambda: None)


def test_torch_is_as_it_was_afterwards():
    kept = (dist.init_process_group, dist.new_group, torch.autograd.backward, torch.cpu.Stream, threading.Thread.run)
    recorded(data_parallel)
    now = (dist.init_process_group, dist.new_group, torch.autograd.backward, torch.cpu.Stream, threading.Thread.run)
    assert now == kept
    assert not dist.is_initialized()
