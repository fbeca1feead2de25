"""All systems by name: what they are, whose they are, and how to make one."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from binsgdm.compressors.atomo import Atomo
from binsgdm.compressors.base import Compressor, System
from binsgdm.compressors.carriers import Carrier, all_reduced_mean, gathered_mean
from binsgdm.compressors.dense import Dense
from binsgdm.compressors.feedback import ErrorFeedback, Plain
from binsgdm.compressors.low_rank import GradZip, PowerSGD
from binsgdm.compressors.marsit import Marsit
from binsgdm.compressors.qsgd import NUQSGD, QSGD, QSGDInf
from binsgdm.compressors.signs import MajorityVote, OneBitSGD, ScaledSign, TernGrad
from binsgdm.compressors.sparse import MSTopK, RandomK, TopK, gathered_sparse_mean
from binsgdm.errors import BinsgdmError

CarrierName = Literal["all_reduce", "all_gather", "all_to_all + all_gather", "ring"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A system of the table.

    Attributes:
        title: as its paper names it.
        source: of the paper.
        settings: takes the options by keyword.
        carrier: which collectives carry its payloads.
        has_feedback: what it loses comes back with the next gradient.
        build: makes one rank's end from the options: build(options, rank, world_size).
    """

    title: str
    source: str
    settings: Callable[..., Any]
    carrier: CarrierName
    has_feedback: bool
    build: Callable[[dict[str, Any], int, int], System]

    @property
    def options(self) -> dict[str, Any]:
        """The options and their defaults."""
        parameters = inspect.signature(self.settings).parameters.values()
        return {one.name: one.default for one in parameters if one.name not in ("rank", "world_size")}


def _gathered(
    title: str,
    source: str,
    compressor: Callable[..., Compressor],
    *,
    feedback: bool = False,
    carry: Carrier = gathered_mean,
) -> Entry:
    def build(options: dict[str, Any], rank: int, world_size: int) -> System:
        if not feedback:
            return Plain(compressor(**options), carry)
        return ErrorFeedback(compressor(**options), carry, rank=rank, world_size=world_size)

    return Entry(
        title=title, source=source, settings=compressor, carrier="all_gather", has_feedback=feedback, build=build
    )


def _own(title: str, source: str, system: Callable[..., System], carrier: CarrierName, *, feedback: bool) -> Entry:
    """Return the entry of a system that keeps state by parameter itself."""

    def build(options: dict[str, Any], rank: int, world_size: int) -> System:
        return system(**options, rank=rank, world_size=world_size)

    return Entry(title=title, source=source, settings=system, carrier=carrier, has_feedback=feedback, build=build)


def _stateless(title: str, source: str, system: Callable[..., System], carrier: CarrierName) -> Entry:
    def build(options: dict[str, Any], _rank: int, _world_size: int) -> System:
        return system(**options)

    return Entry(title=title, source=source, settings=system, carrier=carrier, has_feedback=False, build=build)


def _random_k() -> Entry:
    def build(options: dict[str, Any], rank: int, world_size: int) -> System:
        return ErrorFeedback(RandomK(**options), all_reduced_mean, rank=rank, world_size=world_size)

    return Entry(
        title="Random-k",
        source="Stich et al., NeurIPS 2018",
        settings=RandomK,
        carrier="all_reduce",
        has_feedback=True,
        build=build,
    )


SYSTEMS: Mapping[str, Entry] = MappingProxyType(
    {
        "dense": _stateless("full precision", "PyTorch DDP, Li et al., VLDB 2020", Dense, "all_reduce"),
        "one_bit_sgd": _gathered("1-bit SGD", "Seide et al., Interspeech 2014", OneBitSGD, feedback=True),
        "sign_sgd": _stateless(
            "SignSGD with majority vote", "Bernstein et al., ICML 2018", MajorityVote, "all_to_all + all_gather"
        ),
        "ef_sign_sgd": _gathered("EF-SignSGD", "Karimireddy et al., ICML 2019", ScaledSign, feedback=True),
        "terngrad": _gathered("TernGrad", "Wen et al., NeurIPS 2017", TernGrad),
        "qsgd": _gathered("QSGD", "Alistarh et al., NeurIPS 2017", QSGD),
        "qsgd_inf": _gathered("QSGDinf", "Alistarh et al., NeurIPS 2017", QSGDInf),
        "nuqsgd": _gathered("NUQSGD", "Ramezani-Kebrya et al., JMLR 2021", NUQSGD),
        "marsit": _own("Marsit", "Wu et al., DAC 2022", Marsit, "ring", feedback=True),
        "power_sgd": _own("PowerSGD", "Vogels et al., NeurIPS 2019", PowerSGD, "all_reduce", feedback=True),
        "grad_zip": _own("GradZip", "Cho et al., NeurIPS 2019 workshop", GradZip, "all_reduce", feedback=True),
        "atomo": _gathered("ATOMO", "Wang et al., NeurIPS 2018", Atomo),
        "top_k": _gathered("Top-k", "Aji and Heafield, EMNLP 2017", TopK, feedback=True, carry=gathered_sparse_mean),
        "ms_top_k": _gathered("MSTop-k", "Shi et al., MLSys 2021", MSTopK, feedback=True, carry=gathered_sparse_mean),
        "random_k": _random_k(),
    }
)
"""Those that average gradients. BinSGDM and 1-bit Adam are optimizers: what travels there comes from momenta."""


def make(name: str, *, rank: int, world_size: int, **options: Any) -> System:
    """Return one rank's end of a system.

    Args:
        name: in `SYSTEMS`.
        rank: this rank.
        world_size: all ranks.
        options: as the system's class takes them; the same on all ranks.

    Raises:
        BinsgdmError: an unknown system or option, or a value out of range.

    Example:
        >>> make("qsgd", rank=0, world_size=4, bits=8).compressor.bits
        8
    """
    if name not in SYSTEMS:
        raise BinsgdmError(f"system: {name!r}: unknown{_nearest(name, SYSTEMS)}; known are {', '.join(SYSTEMS)}")
    entry = SYSTEMS[name]
    for option in options:
        if option not in entry.options:
            known = ", ".join(entry.options) or "none"
            raise BinsgdmError(f"{name}: {option}: unknown option{_nearest(option, entry.options)}; it takes {known}")
    return entry.build(options, rank, world_size)


def _nearest(given: str, known: Mapping[str, Any]) -> str:
    found = difflib.get_close_matches(given, known, n=1)
    return f", did you mean {found[0]!r}?" if found else ""
