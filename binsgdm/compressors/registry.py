"""All systems by name: what they are, whose they are, and how to make one."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from binsgdm.compressors.atomo import Atomo
from binsgdm.compressors.base import Compressor, System, check_choice
from binsgdm.compressors.carriers import Carrier, all_reduced_mean, gathered_mean
from binsgdm.compressors.dense import Dense
from binsgdm.compressors.feedback import ErrorFeedback, Plain
from binsgdm.compressors.low_rank import GradZip, PowerSGD
from binsgdm.compressors.marsit import Marsit
from binsgdm.compressors.qsgd import NUQSGD, QSGD, QSGDInf
from binsgdm.compressors.signs import MajorityVote, OneBitSGD, ScaledSign, TernGrad
from binsgdm.compressors.sparse import MSTopK, RandomK, TopK, UnbiasedRandomK, gathered_sparse_mean
from binsgdm.errors import BinsgdmError

CarrierName = Literal["all_reduce", "all_gather", "all_to_all + all_gather", "ring"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A system of the table.

    Attributes:
        title: as its paper names it.
        source: of the paper.
        travels: what every rank sends.
        settings: takes the options by keyword.
        carrier: which collectives carry its payloads.
        has_feedback: what it loses comes back with the next gradient.
        build: makes one rank's end from the options: build(options, rank, world_size).
    """

    title: str
    source: str
    travels: str
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
    compressor: Callable[..., Compressor], *, feedback: bool = False, carry: Carrier = gathered_mean, **said: str
) -> Entry:
    """Return the entry of a compressor whose payloads all ranks gather."""

    def build(options: dict[str, Any], rank: int, world_size: int) -> System:
        if not feedback:
            return Plain(compressor(**options), carry)
        return ErrorFeedback(compressor(**options), carry, rank=rank, world_size=world_size)

    return Entry(**said, settings=compressor, carrier="all_gather", has_feedback=feedback, build=build)


def _own(system: Callable[..., System], carrier: CarrierName, **said: str) -> Entry:
    """Return the entry of a system that keeps state by parameter itself."""

    def build(options: dict[str, Any], rank: int, world_size: int) -> System:
        return system(**options, rank=rank, world_size=world_size)

    return Entry(**said, settings=system, carrier=carrier, has_feedback=True, build=build)


def _stateless(system: Callable[..., System], carrier: CarrierName, **said: str) -> Entry:
    def build(options: dict[str, Any], _rank: int, _world_size: int) -> System:
        return system(**options)

    return Entry(**said, settings=system, carrier=carrier, has_feedback=False, build=build)


def _random_k() -> Entry:
    """Return the entry of both kinds; the unbiased one has no error feedback, with which it would diverge."""

    def settings(*, ratio: float | None = None, k: int | None = None, unbiased: bool = False) -> Compressor:
        check_choice("random_k: unbiased", unbiased, (True, False))
        return UnbiasedRandomK(ratio=ratio, k=k) if unbiased else RandomK(ratio=ratio, k=k)

    def build(options: dict[str, Any], rank: int, world_size: int) -> System:
        compressor = settings(**options)
        if compressor.is_unbiased:
            return Plain(compressor, all_reduced_mean)
        return ErrorFeedback(compressor, all_reduced_mean, rank=rank, world_size=world_size)

    return Entry(
        title="Random-k",
        source="Stich et al., NeurIPS 2018; unbiased=True: Wangni et al., NeurIPS 2018, without error feedback",
        travels="k values in fp32, at indices that all ranks draw alike",
        settings=settings,
        carrier="all_reduce",
        has_feedback=True,
        build=build,
    )


_LEVELS = "`bits` bits an element, or an Elias code, and an fp32 norm a block"
SYSTEMS: Mapping[str, Entry] = MappingProxyType(
    {
        "dense": _stateless(
            Dense,
            "all_reduce",
            title="full precision",
            source="PyTorch DDP, Li et al., VLDB 2020",
            travels="gradients in fp32",
        ),
        "one_bit_sgd": _gathered(
            OneBitSGD,
            feedback=True,
            title="1-bit SGD",
            source="Seide et al., Interspeech 2014",
            travels="1 bit an element and two fp32 means a column",
        ),
        "sign_sgd": _stateless(
            MajorityVote,
            "all_to_all + all_gather",
            title="SignSGD with majority vote",
            source="Bernstein et al., ICML 2018",
            travels="1 bit an element to the element's owner, the winning bit to all",
        ),
        "ef_sign_sgd": _gathered(
            ScaledSign,
            feedback=True,
            title="EF-SignSGD",
            source="Karimireddy et al., ICML 2019",
            travels="1 bit an element and an fp32 scale a tensor",
        ),
        "terngrad": _gathered(
            TernGrad,
            title="TernGrad",
            source="Wen et al., NeurIPS 2017",
            travels="1.6 bits an element and an fp32 scale a tensor",
        ),
        "qsgd": _gathered(QSGD, title="QSGD", source="Alistarh et al., NeurIPS 2017", travels=_LEVELS),
        "qsgd_inf": _gathered(QSGDInf, title="QSGDinf", source="Alistarh et al., NeurIPS 2017", travels=_LEVELS),
        "nuqsgd": _gathered(NUQSGD, title="NUQSGD", source="Ramezani-Kebrya et al., JMLR 2021", travels=_LEVELS),
        "marsit": _own(
            Marsit,
            "ring",
            title="Marsit",
            source="Wu et al., DAC 2022",
            travels="1 bit an element on every hop, and an fp32 magnitude a rank; every `sync_period` steps fp32",
        ),
        "power_sgd": _own(
            PowerSGD,
            "all_reduce",
            title="PowerSGD",
            source="Vogels et al., NeurIPS 2019",
            travels="two thin factors of every matrix in fp32, vectors whole",
        ),
        "grad_zip": _own(
            GradZip,
            "all_reduce",
            title="GradZip",
            source="Cho et al., NeurIPS 2019 workshop",
            travels="one thin factor of every matrix in fp32, vectors whole",
        ),
        "atomo": _gathered(
            Atomo,
            title="ATOMO",
            source="Wang et al., NeurIPS 2018",
            travels="drawn singular triplets of every matrix in fp32, vectors whole",
        ),
        "top_k": _gathered(
            TopK,
            feedback=True,
            carry=gathered_sparse_mean,
            title="Top-k",
            source="Aji and Heafield, EMNLP 2017",
            travels="k values in fp32 and their int32 indices",
        ),
        "ms_top_k": _gathered(
            MSTopK,
            feedback=True,
            carry=gathered_sparse_mean,
            title="MSTop-k",
            source="Shi et al., MLSys 2021",
            travels="k values in fp32 and their int32 indices",
        ),
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
    check_options(name, options)
    return SYSTEMS[name].build(options, rank, world_size)


def check_options(name: object, options: Iterable[str]) -> None:
    """Check that there is a system of this name, and that it takes these options, whatever their values.

    Raises:
        BinsgdmError: there is none, or it does not.
    """
    if not isinstance(name, str) or name not in SYSTEMS:
        raise BinsgdmError(f"system: {name!r}: unknown{_nearest(str(name), SYSTEMS)}; known are {', '.join(SYSTEMS)}")
    taken = SYSTEMS[name].options
    for option in options:
        if option not in taken:
            known = ", ".join(taken) or "none"
            raise BinsgdmError(f"{name}: {option}: unknown option{_nearest(option, taken)}; it takes {known}")


def _nearest(given: str, known: Mapping[str, Any]) -> str:
    found = difflib.get_close_matches(given, known, n=1)
    return f", did you mean {found[0]!r}?" if found else ""
