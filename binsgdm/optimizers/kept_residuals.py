"""1-bit Adam's residuals in the state of its parameters."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from binsgdm.comm import Member
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import zeros
from binsgdm.optimizers import residuals
from binsgdm.optimizers.one_bit_adam_plain import MomentumResiduals, Topology, padded_numel
from binsgdm.optimizers.residuals import ResidualViews, View, check_flat

NAMES = {"worker": "worker_residual", "server": "server_residual"}
"""Of each residual in the state of a parameter."""
_REPAIR = (
    'load this rank\'s own state, or begin with residuals of 0: set state_dict["residuals"] = None on all ranks before '
    "loading"
)


class ResidualOwner(NamedTuple):
    """A rank and the exchange that residuals belong to; those of any other would be another rank's loss."""

    rank: int
    world_size: int
    ranks_per_node: int
    topology: Topology

    @classmethod
    def of(cls, member: Member, topology: Topology) -> "ResidualOwner":
        """Return the owner that a rank is."""
        return cls(member.rank, member.world_size, member.ranks_per_node, topology)

    @property
    def text(self) -> str:
        """In words, by which a state names it."""
        nodes = "" if self.topology == "flat" else f", {self.ranks_per_node} a node"
        return f"rank {self.rank} of {self.world_size}, {self.topology}{nodes}"

    def extents(self, numel: int) -> dict[str, tuple[int, int]]:
        """Return by name the first element and the end of what this rank rounds.

        Example:
            >>> ResidualOwner(1, 4, 2, "hierarchical").extents(64)
            {'worker': (32, 64), 'server': (32, 48)}
        """
        chunk = numel // self.world_size
        if self.topology == "flat":
            return {"worker": (0, numel), "server": (self.rank * chunk, (self.rank + 1) * chunk)}
        node, local_rank = divmod(self.rank, self.ranks_per_node)
        slice_numel = numel // self.ranks_per_node
        first = local_rank * slice_numel
        server = first + node * chunk
        return {"worker": (first, first + slice_numel), "server": (server, server + chunk)}


class KeptResiduals(ResidualViews):
    """A rank's residuals; they go on with what the states of the parameters have, and else begin with 0.

    Attributes:
        owner: whose they are.
        flat: what the exchange changes in place.
    """

    def __init__(
        self, states: Sequence[dict[str, Any]], numels: Sequence[int], owner: ResidualOwner, device: torch.device
    ) -> None:
        self.owner = owner
        extents = owner.extents(padded_numel(sum(numels), owner.world_size))
        self.flat = MomentumResiduals(**{name: zeros(end - first, device) for name, (first, end) in extents.items()})
        super().__init__(states, _views(self.flat, extents, numels), NAMES.values())
        self.check(states)
        self.take_over()

    def check_given(self, view: View, given: Any) -> None:
        """Refuse a residual of another form, or that is not finite."""
        check_residual(view.number, view.name, given, view.values.numel())


def _views(flat: MomentumResiduals, extents: Mapping[str, tuple[int, int]], numels: Sequence[int]) -> list[View]:
    found = []
    for name, (first, _) in extents.items():
        values, start = getattr(flat, name), 0
        for number, numel in enumerate(numels):
            own = values[max(start - first, 0) : max(start + numel - first, 0)]
            found.append(View(number, NAMES[name], own))
            start += numel
    return found


def drop(states: Sequence[dict[str, Any]]) -> None:
    """Let the states have no residuals."""
    residuals.drop(states, NAMES.values())


def have(states: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether any state has residuals."""
    return any(name in state for state in states for name in NAMES.values())


def check_residual(number: int, name: str, given: Any, numel: int | None = None) -> None:
    """Refuse what cannot be a residual of a parameter: no flat fp32 tensor of this size, or not finite."""
    where = f"OneBitAdam: parameter {number}: {name}"
    check_flat(where, given, torch.float32, numel, _REPAIR)
    if not given.isfinite().all():
        raise BinsgdmError(f"{where}: a value that is not finite: must be; {_REPAIR}")


def foreign(found: str, here: ResidualOwner) -> BinsgdmError:
    """Return the refusal of residuals of another owner."""
    return BinsgdmError(f"OneBitAdam: residuals of {found or 'nobody'}: this is {here.text}: {_REPAIR}")


def of_former_version(saved: object, numels: Sequence[int]) -> tuple[str, list[dict[str, torch.Tensor]]]:
    """Return whose residuals of a former version are, and what each parameter's state has of them.

    It saved "worker" and "server", flat, and the fields of a `ResidualOwner`.
    """
    names = {*NAMES, *ResidualOwner._fields}
    if not isinstance(saved, Mapping) or set(saved) != names:
        found = sorted(map(str, saved)) if isinstance(saved, Mapping) else type(saved).__name__
        raise BinsgdmError(f"OneBitAdam: residuals of a state: {found}: must be {sorted(names)}; {_REPAIR}")
    owner = ResidualOwner(**{name: saved[name] for name in ResidualOwner._fields})
    counts = (owner.rank, owner.world_size, owner.ranks_per_node)
    fits = all(type(one) is int for one in counts) and 0 <= owner.rank < owner.world_size
    if not fits or owner.ranks_per_node < 1 or owner.topology not in ("flat", "hierarchical"):
        raise BinsgdmError(f"OneBitAdam: residuals of a state: of {tuple(owner)}: no rank has them; {_REPAIR}")
    extents = owner.extents(padded_numel(sum(numels), owner.world_size))
    for name, (first, end) in extents.items():
        check_residual(0, name, saved[name], end - first)
    flat = MomentumResiduals(**{name: saved[name] for name in NAMES})
    states: list[dict[str, torch.Tensor]] = [{} for _ in numels]
    for number, name, values in _views(flat, extents, numels):
        states[number][name] = values
    return owner.text, states
