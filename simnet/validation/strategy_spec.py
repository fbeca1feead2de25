"""The real system behind a strategy, with its options: from a campaign or from the labels of a measurement."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from simnet.core import schema
from simnet.core.errors import SimnetError
from simnet.core.system_options import NONE, SystemOptions, value_text
from simnet.core.units import Size
from simnet.strategies import STRATEGIES, BinSGDM, ByteGrad, CompressingStrategy, DenseAllReduce, OneBitAdam, Strategy
from simnet.strategies.binsgdm import DEFAULT_ROUNDING, ROUNDINGS
from simnet.strategies.compressors import EightBitStrategy

MIB = 2**20
SIMULATED_ONLY = {field.name for field in fields(Strategy)} | {"algorithm", "coded_bits", "dense", "dense_steps"}
"""Options of the simulation only: bucketing, aggregation and the counting of bits."""
ALWAYS_SHOWN = {"bits", "matrix_rank"}
"""Options that a label shows even at their default, since the name of the system says little without them."""
DENSE, BINSGDM, ONE_BIT_ADAM = "all_reduce", "binsgdm", "one_bit_adam"
EIGHT_BIT = ("int8", "fp8")


class StrategySpec(Struct, frozen=True, kw_only=True):
    """The system that `simnet measure training` runs.

    Attributes:
        system: tag of the strategy, such as "qsgd".
        options: options of the system itself; of BinSGDM its topology, intra_node_dtype, average, rounding and
            overlap.
    """

    system: str
    options: SystemOptions

    @classmethod
    def of_strategy(cls, strategy: Any) -> "StrategySpec":
        """Return the system of a strategy in a scenario.

        Raises:
            ValueError: no real system runs like this strategy.
        """
        kind = str(strategy.__struct_config__.tag)
        system = strategy.system if isinstance(strategy, CompressingStrategy) else kind
        return cls(system=system, options=SystemOptions.parse(_OPTIONS.get(kind, _of_compressing)(strategy)))

    @classmethod
    def of_labels(cls, labels: Mapping[str, Any]) -> "StrategySpec":
        """Return the system of a series of training from its labels."""
        system = str(labels["strategy"])
        if system != BINSGDM:
            return cls(system=system, options=SystemOptions.parse(labels.get("options", {})))
        labelled = {key: labels[key] for key in ("topology", "intra_node_dtype", "average", "rounding")}
        return cls(system=system, options=SystemOptions({**labelled, "overlap": bool(labels["overlap"])}))

    @property
    def argument(self) -> str:
        """The argument of `simnet measure`: "binsgdm:flat,overlap", "qsgd:bits=4,block_size=8192"."""
        if self.system == BINSGDM:
            words = [word for (key, value), word in _BINSGDM_WORDS.items() if self.options[key] == value]
        else:
            words = [f"{key}={value_text(value)}" for key, value in self.options.items()]
        return ":".join(filter(None, [self.system, ",".join(words)]))

    @property
    def kernels_argument(self) -> str:
        """The argument of `simnet measure kernels --system`; empty if its kernels are always timed."""
        return "" if self.system in {DENSE, BINSGDM} else self.argument

    @property
    def is_hierarchical(self) -> bool:
        """Whether the ranks of a node exchange among themselves first, which needs several of them."""
        return str(self.options.get("topology")).startswith("hierarchical")

    @property
    def label(self) -> str:
        """Name in tables: "binsgdm flat, overlap", "qsgd bits=4"."""
        options = self.options
        if self.system != BINSGDM:
            return " ".join(filter(None, [self.system, options.text()]))
        words = [
            str(options["topology"]),
            *(
                [str(options["intra_node_dtype"])]
                if self.is_hierarchical and options["intra_node_dtype"] != "fp32"
                else []
            ),
            *(["average gradients"] if options["average"] == "gradients" else []),
            *(["shaped"] if options["rounding"] == "shaped" else []),
            *(["overlap"] if options["overlap"] else []),
        ]
        return f"{BINSGDM} {', '.join(words)}"

    def strategy(self, bucket_cap: Size, *, is_ring: bool) -> Strategy:
        """Return the strategy that simulates the system.

        Args:
            bucket_cap: bucket size of DDP; 1-bit Adam has no buckets.
            is_ring: whether an all-reduce of any size is a ring, as in gloo.
        """
        options: dict[str, object] = {key: None if value == NONE else value for key, value in self.options.items()}
        if self.system == BINSGDM:
            options |= {"finite_check": "ring"} if is_ring else {}
            # Labels hold every option; the simulator refuses those without an effect.
            options |= {} if self.is_hierarchical else {"intra_node_dtype": None, "average": "updates"}
        where = f"training with {self.label}: unknown to the simulator"
        try:
            kind = STRATEGIES.find(self.system)
        except SimnetError as error:
            raise SimnetError(f"{where}: {error}") from error
        strategy = schema.build(kind, options, where)
        return strategy if self.system == ONE_BIT_ADAM else replace(strategy, bucket_cap=bucket_cap)


_BINSGDM_WORDS: dict[tuple[str, object], str] = {
    ("topology", "flat"): "flat",
    ("intra_node_dtype", "bf16"): "bf16",
    ("intra_node_dtype", "one_bit"): "one_bit",
    ("average", "gradients"): "gradients",
    **{("rounding", rounding): rounding for rounding in ROUNDINGS if rounding != DEFAULT_ROUNDING},
    ("overlap", True): "overlap",
}


def _of_all_reduce(strategy: DenseAllReduce) -> dict[str, object]:
    _check_bucketing(strategy)
    if strategy != DenseAllReduce(bucket_cap=strategy.bucket_cap, algorithm=strategy.algorithm) or not _is_ring(
        strategy
    ):
        raise ValueError("strategies: all_reduce runs as DDP does: fp32, overlapped; drop the other keys")
    return {}


def _of_one_bit_adam(strategy: OneBitAdam) -> dict[str, object]:
    if strategy != OneBitAdam(finite_check=strategy.finite_check):
        raise ValueError("strategies: one_bit_adam runs in its compression stage; drop the other keys")
    return {}


def _of_binsgdm(strategy: BinSGDM) -> dict[str, object]:
    _check_bucketing(strategy)
    if strategy.intra_node_dtype == "fp16":
        raise ValueError("strategies: intra_node_dtype 'fp16' cannot be run; use 'fp32', 'bf16' or 'one_bit'")
    return {
        "topology": strategy.topology,
        "intra_node_dtype": strategy.intra_node_dtype or "fp32",
        "average": strategy.average,
        "rounding": strategy.rounding,
        "overlap": strategy.overlap,
    }


def _is_ring(strategy: Strategy) -> bool:
    """Tell whether all-reduces are those of a lab: rings, named or by default."""
    return getattr(strategy, "algorithm", None) in (None, "ring")


def _of_compressing(strategy: Strategy) -> dict[str, object]:
    kind = strategy.__struct_config__.tag
    if not isinstance(strategy, CompressingStrategy):
        raise ValueError(f"strategies: {kind} is no system of binsgdm; name one, or record a script that does it")
    _check_bucketing(strategy)
    if not strategy.overlap:
        raise ValueError(f"strategies: {kind} runs in DDP's hook, overlapped with backward; drop overlap")
    if not _is_ring(strategy) or getattr(strategy, "coded_bits", None) is not None:
        raise ValueError(f"strategies: {kind} runs with rings and codes of a fixed width; drop algorithm and coding")
    return {
        field.name: getattr(strategy, field.name)
        for field in fields(strategy)
        if field.name not in SIMULATED_ONLY
        and (field.name in ALWAYS_SHOWN or getattr(strategy, field.name) != field.default)
    }


def _of_eight_bit(strategy: EightBitStrategy) -> dict[str, object]:
    """Return the options of ByteGrad, which it is, in a topology that is not ByteGrad's default everywhere."""
    dtype = {} if strategy.byte_dtype == ByteGrad().byte_dtype else {"dtype": strategy.byte_dtype}
    return {"topology": strategy.used_topology} | _of_compressing(strategy) | dtype


_OPTIONS: dict[str, Callable[[Any], dict[str, object]]] = {
    DENSE: _of_all_reduce,
    BINSGDM: _of_binsgdm,
    ONE_BIT_ADAM: _of_one_bit_adam,
    **dict.fromkeys(EIGHT_BIT, _of_eight_bit),
}


def _check_bucketing(strategy: Strategy) -> None:
    if strategy.bucketing != "ddp" or strategy.planner is not None:
        raise ValueError(f"strategies: bucketing {strategy.bucketing!r} cannot be run; use 'ddp'")
