"""What a rank brings into a step beside gradients: settings that must be alike on all ranks, and why it cannot step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from binsgdm.comm import Member, Protocol, consistency
from binsgdm.errors import BinsgdmError


@dataclass(frozen=True, kw_only=True)
class Terms:
    """One rank's terms of one step.

    Attributes:
        where: begins the sentence, if the step is refused.
        groups: of parameters, with their settings.
        names: of the settings of each group that must be alike on all ranks.
        facts: what else must be, by name.
        refused: why this rank cannot take the step.
    """

    where: str
    groups: Sequence[Mapping[str, Any]]
    names: Sequence[str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    refused: BinsgdmError | None = None

    def pair(self) -> bytes:
        """Return the checksum of all that the host knows, and its complement."""
        values = [0.0 if is_on_gpu(one) else plain(one) for group in self.groups for one in map(group.get, self.names)]
        return consistency.pair((values, *self.facts.items()))

    def settings_on_gpu(self) -> list[torch.Tensor]:
        """Return the settings that the host would have to wait for."""
        return [group[name] for group in self.groups for name in self.names if is_on_gpu(group.get(name))]

    def refusal_of_gpu(self) -> BinsgdmError | None:
        """Return what is wrong with the settings that the host has to wait for."""
        for group in self.groups:
            for name in self.names:
                value = group.get(name)
                if is_on_gpu(value) and not (math.isfinite(float(value)) and value >= 0):
                    return BinsgdmError(f"{self.where}: {name}: {value!r}: must be 0 or more, and finite")
        return None

    def refuse_together(self, member: Member, device: torch.device) -> Protocol:
        """Raise on all ranks alike why they cannot take the step, as a protocol.

        Raises:
            BinsgdmError: always.
        """
        settings = {
            f"{name} of group {number}": plain(group.get(name))
            for number, group in enumerate(self.groups)
            for name in self.names
        }
        return consistency.refuse_together(
            self.where, member, {**settings, **self.facts}, refused=self.refused, device=device
        )


class StepNumbers:
    """Settings of groups as numbers, each read once a step: for one on a GPU the host waits."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], float] = {}

    def forget(self) -> None:
        """Begin a step."""
        self._known.clear()

    def of(self, group: Mapping[str, Any], name: str) -> float:
        """Return a setting of a group."""
        key = (id(group), name)
        if key not in self._known:
            self._known[key] = float(group[name])
        return self._known[key]


def is_on_gpu(value: object) -> TypeGuard[torch.Tensor]:
    """Tell whether a setting is a tensor that the host would have to wait for."""
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def plain(value: Any) -> Any:
    """Return a setting as a number where it is one, so that equal ones are alike, else as a text."""
    if isinstance(value, str) or value is None:
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return repr(value)
