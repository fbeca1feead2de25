"""What happens in a run, drawn from its seed alone."""

import random
from dataclasses import dataclass, field
from typing import Any

from binsgdm.compressors.registry import SYSTEMS

TIMEOUT_S = 5.0
"""Of every collective."""
GRACE_S = 4.0
"""For which a survivor may take longer than the timeout: to find out who is gone, and to end."""
STEPS = 12
KINDS = ("kill", "stop", "raise", "full disk", "skip")
PLACES = ("before forward", "in forward", "in backward", "before the step", "after the step")
"""In a step, where a rank raises."""
WORLDS = ((3, 1), (3, 3), (4, 1), (4, 2), (4, 4))
"""Ranks, and those of a node."""
OPTIONS: dict[str, dict[str, Any]] = {"top_k": {"ratio": 0.1}, "ms_top_k": {"ratio": 0.1}, "random_k": {"ratio": 0.1}}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Who exchanges in a run.

    Attributes:
        name: for people.
        called: the class or function with which sentences begin.
        options: of it, or of `attach`.
    """

    name: str
    called: str
    options: dict[str, Any] = field(default_factory=dict)


def cases() -> list[Case]:
    """Return BinSGDM in its sessions, 1-bit Adam in both stages, and every system in each of its topologies."""
    found = [
        Case(name="BinSGDM", called="BinSGDM"),
        Case(name="BinSGDM, shaped", called="BinSGDM", options={"rounding": "shaped"}),
        Case(name="BinSGDM, flat, overlap", called="BinSGDM", options={"topology": "flat", "overlap": True}),
        Case(name="BinSGDM, overlap", called="BinSGDM", options={"overlap": True}),
        Case(name="BinSGDM, gradients", called="BinSGDM", options={"average": "gradients"}),
        Case(name="1-bit Adam, dense stage", called="OneBitAdam", options={"dense_steps": STEPS}),
        Case(name="1-bit Adam", called="OneBitAdam", options={"dense_steps": 1}),
    ]
    for name, system in SYSTEMS.items():
        for topology in system.topologies:
            options = {"system": name, "topology": topology, **OPTIONS.get(name, {})}
            found.append(Case(name=f"{name}, {topology}", called="compress_gradients", options=options))
    return found


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run.

    Attributes:
        kind: what happens to the victim, one of KINDS.
        step: in which it happens, from 0.
        delay_s: after the step's begin, of a signal.
        place: in the step, of an exception.
        share: of a checkpoint's bytes that the disk takes.
        store_at_rank_0: rank 0 has the store of torch.distributed, as without torchrun.
        are_hosts_apart: no rank can look at another's process, as if each were on a host of its own.
        timeout_s: of every collective.
    """

    seed: int
    kind: str
    case: Case
    world_size: int
    ranks_per_node: int
    victim: int
    step: int
    delay_s: float
    place: str
    share: float
    store_at_rank_0: bool
    are_hosts_apart: bool
    timeout_s: float = TIMEOUT_S


def plan(seed: int) -> Plan:
    """Draw a run: kinds and cases in turn, so that a hundred runs have each about as often, the rest at random."""
    draw = random.Random(seed)
    all_cases = cases()
    world_size, ranks_per_node = draw.choice(WORLDS)
    return Plan(
        seed=seed,
        kind=KINDS[seed % len(KINDS)],
        # 7 has no factor in common with the number of kinds: a case meets each of them in turn.
        case=all_cases[(7 * (seed // len(KINDS)) + seed) % len(all_cases)],
        world_size=world_size,
        ranks_per_node=ranks_per_node,
        victim=draw.randrange(world_size),
        step=draw.randrange(2, STEPS - 2),
        delay_s=draw.uniform(0, 0.006),
        place=draw.choice(PLACES),
        share=draw.uniform(0.02, 0.98),
        store_at_rank_0=draw.random() < 0.5,
        are_hosts_apart=draw.random() < 0.3,
    )
