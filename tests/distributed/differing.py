"""What gloo ranks of which one alone has another setting or state do after attach: all are to be told in that step."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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
    return found | {(name, True): of(case, True) for name, case in CASES_OF_OVERLAP.items()}


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


def second_backward_of_ddp(script: Script) -> Told:
    """Run two backwards of a DDP model before a step, and then go on."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3)), bucket_cap_mb=0.0002)
    script.optimizer = binsgdm.BinSGDM(ddp.parameters())
    binsgdm.attach(script.optimizer, ddp, **script.attach)
    script.values = list(ddp.parameters())

    def backward() -> None:
        ddp(torch.linspace(-1, 1, 8).view(2, 4)).square().sum().backward()

    def wrong() -> None:
        backward()
        backward()
        script.optimizer.step()

    script.backward = backward  # type: ignore[method-assign]
    return script.told(wrong, lambda: None)


CASES: dict[str, Callable[[Script], Told]] = {
    "lr": setting("lr", 0.5),
    "weight_decay": setting("weight_decay", 0.5),
    "gain": setting("gain", 3.0),
    "num_skipped": setting("num_skipped", 7),
    "lr is NaN on one": setting("lr", torch.nan),
    "lr is NaN": everywhere("lr", torch.nan),
    "weight_decay is NaN": everywhere("weight_decay", torch.tensor(torch.nan)),
    "load on one": load_on_one,
    "model on one": model_on_one,
    "sparse": sparse,
    "state of rank 0, slices": state_of_rank_0(average="gradients"),
    "state of rank 0": state_of_rank_0(average="updates"),
}
CASES_OF_OVERLAP: dict[str, Callable[[Script], Told]] = {
    "left out on one": left_out_on_one,
    "second backward": second_backward,
    "second backward and no step": second_backward_and_no_step,
    "second backward of DDP": second_backward_of_ddp,
}
