"""What local steps are set to, checked once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from binsgdm.compressors.base import check_choice, check_whole, is_number, is_share
from binsgdm.compressors.registry import SYSTEMS, check_options
from binsgdm.compressors.topologies import BETWEEN_NODES
from binsgdm.errors import BinsgdmError, shown

Workers = Literal["rank", "node"]
WIRE_DTYPES = ("fp32", "bf16")
COMPRESSED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "int8": ("byte_grad", {"topology": "scatter_reduce"}),
    "fp8": ("byte_grad", {"topology": "scatter_reduce", "dtype": "fp8_e4m3"}),
    "one_bit": ("ef_sign_sgd", {"topology": "scatter_reduce", "scale_per": "bucket"}),
}
"""Short names of exchanges, with the system and the options that they stand for."""
DEFAULT_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class OuterSettings:
    """How DiLoCo exchanges.

    Attributes:
        inner_steps: steps of a worker between two exchanges of the same parameters.
        outer_lr: learning rate of the outer SGD.
        outer_momentum: its momentum, in [0, 1).
        nesterov: whether that is Nesterov's.
        exchange: "fp32" or "bf16" all-reduce the pseudo-gradients; a name of `COMPRESSED`, or a system, compresses.
        options: of a system.
        fragments: parts of the parameters, exchanged at different steps.
        overlap_steps: inner steps that hide an exchange.
        local_share: of a worker's own parameters in the mix with the outer ones, after an exchange that steps hid; None
            where none do, else `DEFAULT_SHARE` by default.
        workers: whether a worker is a rank or a node.
        seed: of the draws of a system.

    Raises:
        BinsgdmError: a value out of range, or one that has no effect.
    """

    inner_steps: int = 50
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True
    exchange: str = "fp32"
    fragments: int = 1
    overlap_steps: int = 0
    local_share: float | None = None
    workers: Workers = "rank"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("DiLoCo: inner_steps", self.inner_steps, low=1)
        check_whole("DiLoCo: seed", self.seed, low=0, high=2**64 - 1)
        check_choice("DiLoCo: workers", self.workers, get_args(Workers))
        check_choice("DiLoCo: nesterov", self.nesterov, (False, True))
        if not is_number(self.outer_lr, above=0):
            raise BinsgdmError(f"DiLoCo: outer_lr: {shown(self.outer_lr)}: must be a number above 0; give 0.7")
        if not is_share(self.outer_momentum) or self.outer_momentum == 1:
            raise BinsgdmError(
                f"DiLoCo: outer_momentum: {shown(self.outer_momentum)}: must be a number in [0, 1); give 0.9"
            )
        if self.nesterov and self.outer_momentum == 0:
            raise BinsgdmError("DiLoCo: nesterov: True without outer_momentum: has no effect; give nesterov=False")
        self._check_schedule()
        self._check_exchange()

    @property
    def steps_between(self) -> int:
        """Steps from the exchange of a fragment to that of the next one."""
        return self.inner_steps // self.fragments

    @property
    def share(self) -> float:
        """Of a worker's own parameters in the mix."""
        if not self.overlap_steps:
            return 0.0
        return DEFAULT_SHARE if self.local_share is None else self.local_share

    @property
    def system(self) -> tuple[str, Mapping[str, Any]]:
        """The system that compresses, with its options."""
        name, options = COMPRESSED.get(self.exchange, (self.exchange, {}))
        return name, {**options, **self.options}

    def _check_schedule(self) -> None:
        check_whole("DiLoCo: fragments", self.fragments, low=1)
        check_whole("DiLoCo: overlap_steps", self.overlap_steps, low=0)
        if self.inner_steps % self.fragments:
            raise BinsgdmError(
                f"DiLoCo: fragments: {self.fragments}: must divide inner_steps ({self.inner_steps}); change one of them"
            )
        if self.overlap_steps >= self.steps_between:
            raise BinsgdmError(
                f"DiLoCo: overlap_steps: {self.overlap_steps}: must be below inner_steps / fragments "
                f"({self.steps_between}), so that one exchange ends before the next; lower it"
            )
        if self.local_share is None:
            return
        if not is_share(self.local_share):
            raise BinsgdmError(f"DiLoCo: local_share: {shown(self.local_share)}: must be a number in [0, 1]; give 0.5")
        if not self.overlap_steps:
            raise BinsgdmError(f"DiLoCo: local_share: {self.local_share}: has no effect with overlap_steps=0; drop it")

    def _check_exchange(self) -> None:
        if isinstance(self.exchange, str) and self.exchange in WIRE_DTYPES:
            if self.options:
                raise BinsgdmError(
                    f"DiLoCo: {next(iter(self.options))}: an option of a system: has no effect with "
                    f"exchange={self.exchange!r}; drop it"
                )
            return
        if not isinstance(self.exchange, str) or (self.exchange not in COMPRESSED and self.exchange not in SYSTEMS):
            known = ", ".join([*WIRE_DTYPES, *COMPRESSED, *SYSTEMS])
            raise BinsgdmError(f"DiLoCo: exchange: {shown(self.exchange)}: unknown; give one of {known}")
        name, options = self.system
        check_options(name, [one for one in options if one != "topology"])
        if options.get("topology") in BETWEEN_NODES:
            raise BinsgdmError(
                f"DiLoCo: topology: {options['topology']!r}: averages in the node first, where workers are alike; give "
                "workers='node'"
            )
