"""What gloo ranks of which one alone has another setting or state do after attach: all are to be told in that step."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

import binsgdm

NUMEL = 70


class Told(NamedTuple):
    """What a rank was told in the step that was wrong, whether it moved there, and whether it moved in the next."""

    sentence: str
    has_moved: bool
    goes_on: bool
    is_at_one: bool


class Script:
    """A training script of one rank.

    Args:
        is_wrong: on the rank that has something that the others have not.
        overlap: of `attach`.
        options: of `attach`.
    """

    def __init__(self, *, is_wrong: bool, overlap: bool, **options: Any) -> None:
        self.is_wrong, self.overlap = is_wrong, overlap
        self.values = [nn.Parameter(torch.linspace(-1, 1, NUMEL)), nn.Parameter(torch.ones(3, 5))]
        rounding = "random" if "average" in options else "shaped"
        self.optimizer = binsgdm.BinSGDM([{"params": [value]} for value in self.values], seed=3, rounding=rounding)
        self.attach = {"ranks_per_node": 1, "bucket_cap_mb": 0.0002, "overlap": overlap} | options
        binsgdm.attach(self.optimizer, **self.attach)

    @property
    def last(self) -> dict[str, Any]:
        """The last group of parameters, of the rank that is wrong; of the others a copy of it."""
        group = self.optimizer.param_groups[-1]
        return group if self.is_wrong else dict(group)

    def backward(self, factor: float = 1.0) -> None:
        sum((value.square() * factor).sum() for value in self.values).backward()  # type: ignore[union-attr]

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()

    def flat(self) -> torch.Tensor:
        return torch.cat([value.detach().reshape(-1).clone() for value in self.values])

    def told(self, wrong: Callable[[], object], repaired: Callable[[], object]) -> Told:
        """Say what happens in a step with something wrong, and in one with what was wrong repaired."""
        sentence, before = "", self.flat()
        try:
            wrong()
        except binsgdm.BinsgdmError as error:
            sentence = str(error)
        has_moved = not torch.equal(self.flat(), before)
        repaired()
        before = self.flat()
        self.step()
        goes_on = not torch.equal(self.flat(), before)
        try:
            binsgdm.check_replicas(nn.ParameterList(self.values))
        except binsgdm.BinsgdmError:
            return Told(sentence, has_moved, goes_on, is_at_one=False)
        return Told(sentence, has_moved, goes_on, is_at_one=True)


def cases(is_wrong: bool) -> dict[tuple[str, bool], Callable[[], Told]]:
    """Return by name and overlap what all ranks do."""

    def of(case: Callable[[Script], Told], overlap: bool) -> Callable[[], Told]:
        return lambda: case(Script(is_wrong=is_wrong, overlap=overlap))

    found = {(name, overlap): of(case, overlap) for name, case in CASES.items() for overlap in (False, True)}
    found |= {("joined", overlap): of(joined, overlap) for overlap in (False, True)}  # last: it ends DDP for good
    return found | {(name, True): of(case, True) for name, case in CASES_OF_OVERLAP.items()}


def plateau(script: Script) -> Told:
    """Lower lr by a metric of each rank."""
    scheduler = ReduceLROnPlateau(script.optimizer, patience=0)

    def wrong() -> None:
        for metric in (1.0, 2.0):
            script.step()
            scheduler.step(metric if script.is_wrong else 1.0 / metric)

    def repaired() -> None:
        for group in script.optimizer.param_groups:
            group["lr"] = 0.01

    wrong()
    return script.told(script.step, repaired)


def setting(name: str, value: Any) -> Callable[[Script], Told]:
    def case(script: Script) -> Told:
        script.step()
        before = script.last[name]
        script.last[name] = value
        return script.told(script.step, lambda: script.last.update({name: before}))

    return case


def everywhere(name: str, value: Any) -> Callable[[Script], Told]:
    """Set what no rank can step with on all of them."""

    def case(script: Script) -> Told:
        before = script.optimizer.param_groups[0][name]
        script.optimizer.param_groups[0][name] = value
        return script.told(script.step, lambda: script.optimizer.param_groups[0].update({name: before}))

    return case


def load_on_one(script: Script) -> Told:
    state = script.optimizer.state_dict()
    script.step()
    later = script.optimizer.state_dict()
    if script.is_wrong:
        script.optimizer.load_state_dict(state)
    return script.told(script.step, lambda: script.optimizer.load_state_dict(later))


def model_on_one(script: Script) -> Told:
    """Load parameters on one rank alone, and the optimizer's state on all."""
    script.step()
    script.optimizer.load_state_dict(script.optimizer.state_dict())
    before = script.values[1].detach().clone()
    with torch.no_grad():
        script.values[1].add_(float(script.is_wrong))

    def repaired() -> None:
        with torch.no_grad():
            script.values[1].copy_(before)

    return script.told(script.step, repaired)


def sparse(script: Script) -> Told:
    def wrong() -> None:
        script.optimizer.zero_grad()
        script.backward()
        if script.is_wrong:
            script.values[1].grad = torch.ones(3, 5).to_sparse()
        script.optimizer.step()

    return script.told(wrong, lambda: None)


def closure(script: Script) -> Told:
    def with_gradients() -> float:
        script.optimizer.zero_grad()
        script.backward()
        return 2.5

    def wrong() -> None:
        assert script.optimizer.step(with_gradients) == 2.5

    return script.told(wrong, lambda: None)


def left_out(script: Script) -> Told:
    """Leave the step after a backward out on all ranks, as a loop does at a spike of the loss."""

    def wrong() -> None:
        script.optimizer.zero_grad()
        script.backward()

    script.step()
    return script.told(wrong, lambda: None)


def left_out_on_one(script: Script) -> Told:
    def wrong() -> None:
        script.optimizer.zero_grad()
        script.backward()
        if script.is_wrong:
            script.optimizer.zero_grad()
            script.backward()
        script.optimizer.step()

    script.step()
    return script.told(wrong, lambda: None)


def second_backward(script: Script) -> Told:
    def wrong() -> None:
        script.optimizer.zero_grad()
        script.backward()
        script.backward()
        script.optimizer.step()

    return script.told(wrong, lambda: None)


def second_backward_and_no_step(script: Script) -> Told:
    def wrong() -> None:
        script.optimizer.zero_grad(set_to_none=False)
        script.backward()
        script.backward()
        script.optimizer.zero_grad(set_to_none=False)

    script.step()
    return script.told(wrong, lambda: None)


def state_of_rank_0(*, average: str) -> Callable[[Script], Told]:
    """Load the state that rank 0 has saved on all ranks."""

    def case(script: Script) -> Told:
        script = Script(is_wrong=script.is_wrong, overlap=script.overlap, average=average, ranks_per_node=3)
        script.step()
        own = script.optimizer.state_dict()
        found = [own]
        dist.broadcast_object_list(found)

        def wrong() -> None:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                script.optimizer.load_state_dict(found[0])
            script.step()
            if told:
                raise binsgdm.BinsgdmError(f"warned: {told[0].message}")

        def repaired() -> None:
            if average == "gradients":  # what was refused has ended the exchange
                binsgdm.attach(script.optimizer, **script.attach)

        return script.told(wrong, repaired)

    return case


def added_after_detach(script: Script) -> Told:
    """Add a group as it is said to be added, after it was refused."""
    script.step()
    added = nn.Parameter(torch.ones(41))
    sentence = ""

    def wrong() -> None:
        nonlocal sentence
        try:
            script.optimizer.add_param_group({"params": [added]})
        except binsgdm.BinsgdmError as error:
            sentence = str(error)
        binsgdm.detach(script.optimizer)
        script.optimizer.add_param_group({"params": [added]})
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            binsgdm.attach(script.optimizer, **script.attach)
        raise binsgdm.BinsgdmError(f"{sentence} ... {' '.join(str(one.message) for one in told)}")

    found = script.told(wrong, lambda: script.values.append(added))
    assert not torch.equal(added.detach(), torch.ones(41))
    return found


def one_cycle(script: Script) -> Told:
    scheduler = OneCycleLR(script.optimizer, max_lr=0.01, total_steps=9)

    def wrong() -> None:
        for _ in range(4):
            script.step()
            scheduler.step()

    found = script.told(wrong, lambda: None)
    assert script.optimizer.param_groups[0]["beta"] != 0.95
    return found


def second_backward_of_ddp(script: Script) -> Told:
    """Run two backwards of a DDP model before a step, and then go on."""
    return _of_ddp(script, lambda ddp, backward: [backward(), backward()])


def joined(script: Script) -> Told:
    """Give one rank fewer batches than the others."""

    def wrong(ddp: DistributedDataParallel, backward: Callable[[], object]) -> None:
        with ddp.join():
            for _ in range(1 if script.is_wrong else 3):
                backward()
                script.optimizer.step()
                script.optimizer.zero_grad()

    # DDP goes on after no error in its backward.
    return _of_ddp(script, wrong, goes_on=False)


def _of_ddp(
    script: Script,
    wrong: Callable[[DistributedDataParallel, Callable[[], object]], object],
    *,
    goes_on: bool = True,
) -> Told:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3)), bucket_cap_mb=0.0002)
    script.optimizer = binsgdm.BinSGDM(ddp.parameters())
    binsgdm.attach(script.optimizer, ddp, **script.attach)
    script.values = list(ddp.parameters())

    def backward() -> None:
        ddp(torch.linspace(-1, 1, 8).view(2, 4)).square().sum().backward()

    def run() -> None:
        wrong(ddp, backward)
        script.optimizer.step()

    script.backward = backward  # type: ignore[method-assign]
    if not goes_on:
        script.step = lambda: None  # type: ignore[method-assign]
    return script.told(run, lambda: None)


CASES: dict[str, Callable[[Script], Told]] = {
    "ReduceLROnPlateau": plateau,
    "weight_decay": setting("weight_decay", 0.5),
    "maximize": setting("maximize", True),
    "beta": setting("beta", 0.5),
    "gain": setting("gain", 3.0),
    "num_skipped": setting("num_skipped", 7),
    "lr is NaN on one": setting("lr", torch.nan),
    "lr is NaN": everywhere("lr", torch.nan),
    "weight_decay is NaN": everywhere("weight_decay", torch.tensor(torch.nan)),
    "load on one": load_on_one,
    "model on one": model_on_one,
    "sparse": sparse,
    "closure": closure,
    "state of rank 0, slices": state_of_rank_0(average="gradients"),
    "state of rank 0": state_of_rank_0(average="updates"),
    "added after detach": added_after_detach,
    "OneCycleLR": one_cycle,
}
CASES_OF_OVERLAP: dict[str, Callable[[Script], Told]] = {
    "left out": left_out,
    "left out on one": left_out_on_one,
    "second backward": second_backward,
    "second backward and no step": second_backward_and_no_step,
    "second backward of DDP": second_backward_of_ddp,
}
