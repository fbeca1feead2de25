"""Rows about saving and loading: what a run that was interrupted goes on with."""

import copy
import io
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from tests.works.table import COLUMNS, Way, refused, row, row_elsewhere, works
from tests.works.training import STEPS, Training, batch, check_equal, model, optimizer_of, plain, shared_folder

HALF = STEPS // 2 + 1
"""After the dense stage of 1-bit Adam, and after DDP has rebuilt its buckets."""
EACH_ITS_OWN = works("each rank saves and loads its own state")


def saved(training: Training) -> dict[str, Any]:
    """Return a copy of all that a rank has to keep."""
    kept = {"model": training.module.state_dict(), "optimizer": training.optimizer.state_dict()}
    if training.exchange is not None:
        kept["exchange"] = training.exchange.state_dict()
    return copy.deepcopy(kept)


def resume(way: Way, state: dict[str, Any]) -> Training:
    module = model()
    module.load_state_dict(state["model"])
    training = Training(way, module)
    training.optimizer.load_state_dict(state["optimizer"])
    if training.exchange is not None:
        training.exchange.load_state_dict(state["exchange"])
    return training


@row("`state_dict`, to the bit with as many ranks", **dict.fromkeys(COLUMNS, EACH_ITS_OWN))
def resumed(way: Way) -> None:
    state = saved(Training(way).run(range(HALF)))
    check_equal(resume(way, state).run(range(HALF, STEPS)).parameters(), plain(way))


@row(
    "`torch.distributed.checkpoint`, to the bit with as many ranks",
    **dict.fromkeys(("binsgdm", "overlap"), works("each rank's state under a key of its own")),
    **dict.fromkeys(
        ("adam", "hook"), works("each rank's state under a key of its own, as bytes that `torch.save` wrote")
    ),
)
def resumed_from_a_distributed_checkpoint(way: Way) -> None:
    folder, rank = str(shared_folder(f"checkpoint of {way}")), dist.get_rank()

    def keyed(state: dict[str, Any]) -> dict[str, Any]:
        of_rank = {name: value for name, value in state.items() if name != "model"}
        if way.column in ("adam", "hook"):
            # A checkpoint is loaded into what a new process has, which has no residuals yet; bytes hold anything.
            of_rank = {"all": as_bytes(of_rank)}
        return {"model": state["model"], f"rank {rank}": of_rank}

    checkpoint.save(keyed(saved(Training(way).run(range(HALF)))), checkpoint_id=folder)
    found = keyed(saved(Training(way)))
    checkpoint.load(found, checkpoint_id=folder)
    of_rank = found[f"rank {rank}"]
    if "all" in of_rank:
        of_rank = torch.load(io.BytesIO(of_rank["all"]))
    check_equal(resume(way, {"model": found["model"], **of_rank}).run(range(HALF, STEPS)).parameters(), plain(way))


def as_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@row(
    "`get_optimizer_state_dict` and `set_optimizer_state_dict`",
    **dict.fromkeys(("binsgdm", "overlap", "adam"), EACH_ITS_OWN),
    hook=works("the exchange's state goes beside it"),
)
def resumed_by_names(way: Way) -> None:
    training = Training(way).run(range(HALF))
    by_name = copy.deepcopy(get_optimizer_state_dict(training.ddp, training.optimizer))
    assert all(isinstance(name, str) for name in by_name["state"])
    module = model()
    module.load_state_dict(training.module.state_dict())
    other = Training(way, module)
    set_optimizer_state_dict(other.ddp, other.optimizer, by_name)
    if training.exchange is not None and other.exchange is not None:
        other.exchange.load_state_dict(copy.deepcopy(training.exchange.state_dict()))
    check_equal(other.run(range(HALF, STEPS)).parameters(), plain(way))


@row(
    "A state of another number of ranks",
    **dict.fromkeys(("binsgdm", "overlap"), works("residuals are drawn anew, with a warning")),
    adam=refused("residuals of"),
    hook=works("residuals start from 0, with a warning"),
)
def state_of_another_world(way: Way) -> None:
    state = saved(Training(way).run(range(HALF)))
    module = model()
    module.load_state_dict(state["model"])
    optimizer: Any = optimizer_of(way, module.parameters())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        optimizer.load_state_dict(state["optimizer"])
        module(batch(HALF)).square().mean().backward()
        optimizer.step()
    if way.column in ("binsgdm", "overlap"):
        assert "drawn anew" in " ".join(str(one.message) for one in told)


FROM_THE_LAST_STEP = works(
    "with `--standalone` or c10d set `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, else new ranks find addresses of dead ones"
)
row_elsewhere(
    __name__,
    "elastic_restart",
    "Restarts by torchrun (`--max-restarts`), to the bit",
    "test_a_run_that_torchrun_restarts_ends_where_it_would_have_ended",
    **dict.fromkeys(COLUMNS, FROM_THE_LAST_STEP),
)
