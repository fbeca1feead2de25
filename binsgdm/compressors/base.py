"""What every system is.

A system takes this rank's gradients of a bucket to an estimate of their mean over all ranks, the same on every rank, in
a protocol with the others (`binsgdm.comm`). Most systems are a compressor (`binsgdm.compressors.compressor`), under
error feedback (`binsgdm.compressors.error_feedback`) where it is biased.
"""

import inspect
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from binsgdm.comm import GroupName, Protocol, RankContext
from binsgdm.errors import BinsgdmError, listed, shown
from binsgdm.kernels import streams

Shapes = tuple[tuple[int, ...], ...]
AggregationName = Literal["all_reduce", "all_gather", "all_to_all + all_gather", "ring"]
Topology = Literal["all_reduce", "gather", "scatter_reduce", "ring", "hierarchical", "hierarchical_scatter_reduce"]
# Along what a piece of a matrix is cut: "elements" where a system knows no matrices.
Cut = Literal["elements", "rows", "columns"]
_OWN_TOPOLOGIES: Mapping[str, Topology] = {
    "all_reduce": "all_reduce",
    "all_gather": "gather",
    "all_to_all + all_gather": "scatter_reduce",
    "ring": "ring",
}
_NOT_OFFERED = {
    "gather": "its own exchange sends less than a gather of every rank's payload",
    "scatter_reduce": "its payloads cannot be decoded and added up piece by piece",
    "hierarchical_scatter_reduce": "between nodes it has its own exchange",
}
MAX_RANKS = 2**31 - 1
REPAIR = "load what state_dict() returned"
_RANK = ("rank", "world_size")  # arguments of a constructor that are no options of the system
ParameterId = str | int  # name of a parameter, or its number in the order of the model


@dataclass(frozen=True, kw_only=True)
class GradientBucket:
    """This rank's gradients of some tensors, one after the other.

    Attributes:
        values: flat fp32; nobody changes them.
        parameters: whose they are, each once; state is kept by them, since DDP forms its buckets anew.
        shapes: of the tensors, in the same order.
    """

    values: Tensor
    parameters: tuple[ParameterId, ...]
    shapes: Shapes

    def __post_init__(self) -> None:
        if len(self.parameters) != len(self.shapes) or len(set(self.parameters)) != len(self.parameters):
            raise BinsgdmError(
                f"bucket: parameters {list(self.parameters)!r} for {len(self.shapes)} shapes: must be as many; add some"
            )

    @property
    def numels(self) -> list[int]:
        """Elements of each tensor."""
        return numels_of(self.shapes)

    def keep(self) -> None:
        """Keep the values' memory until the current stream has read them."""
        on_device = streams.of(self.values.device)
        on_device.keep(on_device.current(), self.values)


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What travels for one bucket: flat tensors on the gradient's device, in an order that the compressor knows."""

    tensors: tuple[Tensor, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes on the wire."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class Averager(ABC):
    """One rank's end of a system, with its state.

    Attributes:
        common_state: which keys of the state are the same on all ranks of `common_group`, whose ends check it before
            they begin.
        common_group: all ranks, or those that hold the same piece.
    """

    common_state: tuple[str, ...] = ()
    common_group: GroupName = "world"

    @abstractmethod
    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Return an estimate of the mean over all ranks, flat fp32, the same on every rank; refuse alike on all."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state for a checkpoint; every rank saves its own. Empty if there is none."""
        return {}

    def common_values(self) -> dict[str, Any]:
        """Return the part of the state that is the same on all ranks of `common_group`."""
        return {name: value for name, value in self.state_dict().items() if name in self.common_state}

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned."""


class OfClass:
    """An attribute of a class that follows from its others."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self._of = of

    def __get__(self, _: object, kind: type) -> Any:
        return self._of(kind)


def _options_of(kind: type) -> dict[str, Any]:
    # Options are the keywords of the constructor, so that a system states them once.
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.name not in _RANK
    }


class System(ABC):
    """A system that averages gradients: its description, and how one rank's end of it is made.

    A class of one's own has the description as class attributes, is a `binsgdm.compressors.CompressorSystem` or a
    `ProtocolSystem`, and becomes known by `binsgdm.SYSTEMS.register`; `docs/how-to/extend.md` has an example.

    Attributes:
        name: as `compress_gradients`, scenarios and measurements call it.
        title: as its paper names it, for people.
        source: its paper.
        wire_format: what every rank sends.
        aggregation: which collectives move its payloads.
        has_feedback: what it loses comes back with the next gradient.
        topologies: among whom its payloads travel (`binsgdm.compressors.topologies`), its own first.
        averages_in_node: whether its authors average in the node first: then it has the hierarchical topology by
            default where nodes have several ranks.
        cut: along what pieces of a matrix are cut.
        needs_equal_threads: every rank computes the mean with products of matrices, whose last bits depend on the
            number of threads.
        options: by name with their defaults: the keywords of the constructor other than `rank` and `world_size`.
        usual_options: values for options of which one must be given, such as ratio=0.01.
        steady_options: with these every step does the same, so that one can be timed.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    wire_format: ClassVar[str]
    aggregation: ClassVar[AggregationName]
    has_feedback: ClassVar[bool] = False
    topologies: ClassVar[Any] = OfClass(lambda kind: (_OWN_TOPOLOGIES[kind.aggregation], "hierarchical"))
    averages_in_node: ClassVar[bool] = False
    cut: ClassVar[Cut] = "elements"
    needs_equal_threads: ClassVar[bool] = False
    options: ClassVar[Any] = OfClass(_options_of)  # dict[str, Any]
    usual_options: ClassVar[Mapping[str, Any]] = {}
    steady_options: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    @abstractmethod
    def averager(cls, rank: int, world_size: int, options: Mapping[str, Any]) -> Averager:
        """Return one rank's end, in the system's own topology."""

    @classmethod
    def default_topology(cls, ranks_per_node: int) -> Topology:
        """Return the topology that it has on nodes of so many ranks where none is given."""
        first: Topology = cls.topologies[0]
        return "hierarchical" if cls.averages_in_node and ranks_per_node > 1 else first

    @classmethod
    def check_topology(cls, topology: object, options: Mapping[str, Any]) -> None:  # noqa: ARG003
        """Refuse a topology that the system cannot have, or not with these options."""
        if not isinstance(topology, str) or topology not in cls.topologies:
            reason = f" ({why})" if isinstance(topology, str) and (why := _NOT_OFFERED.get(topology)) else ""
            raise BinsgdmError(
                f"{cls.name}: topology: {shown(topology)}: must be one of {list(cls.topologies)}{reason}; "
                "give one of them"
            )


class ProtocolSystem(System, Averager):
    """A system whose messages are its own: the class is one rank's end, and has `mean`.

    Its constructor takes the options by keyword, and `rank` and `world_size` if it needs them.
    """

    @classmethod
    def averager(cls, rank: int, world_size: int, options: Mapping[str, Any]) -> Averager:
        """Return one rank's end."""
        taken = inspect.signature(cls).parameters
        identity = {key: value for key, value in zip(_RANK, (rank, world_size), strict=True) if key in taken}
        return cls(**options, **identity)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned: nothing, unless a class overrides this."""
        check_stateless(self.name, state)


def numel_of(shapes: Shapes) -> int:
    """Return the elements of tensors of these shapes.

    Example:
        >>> numel_of(((2, 3), (4,), ()))
        11
    """
    return sum(map(math.prod, shapes))


def numels_of(shapes: Shapes) -> list[int]:
    """Return the elements of each of these tensors."""
    return list(map(math.prod, shapes))


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of a tensor (n, ...) as a matrix (n, -1); a scalar or a 1-d tensor is one column.

    Example:
        >>> matrix_shape((8, 3, 2, 2)), matrix_shape((5,)), matrix_shape(())
        ((8, 12), (5, 1), (1, 1))
    """
    return shape[0] if shape else 1, math.prod(shape[1:])


def check_values(name: str, values: Tensor, shapes: Shapes) -> None:
    """Refuse values that are sparse or complex, not flat fp32, not as many as the shapes say, or none at all."""
    if values.is_sparse or values.is_complex():
        kind = "sparse" if values.is_sparse else "complex"
        raise BinsgdmError(f"{name}: a {kind} gradient: must be dense and real; leave its parameter out")
    if values.dim() != 1 or values.dtype != torch.float32 or values.numel() != numel_of(shapes):
        raise BinsgdmError(
            f"{name}: {values.dtype} of shape {tuple(values.shape)} for tensors of {numel_of(shapes)} elements: must "
            "be flat float32 with as many; flatten the bucket"
        )
    check_shapes(name, shapes)


def check_shapes(name: str, shapes: Shapes) -> None:
    """Refuse a bucket without elements; single tensors may have none."""
    if numel_of(shapes) == 0:
        raise BinsgdmError(f"{name}: tensors of shapes {shapes}: must have at least one element; leave the bucket out")


def check_payload(name: str, payload: Payload, expected: Sequence[tuple[torch.dtype, int | None]]) -> None:
    """Refuse a payload of another compressor, version or shape; None allows any length."""
    contents = [(tensor.dtype, tensor.numel()) for tensor in payload.tensors]
    fits = len(contents) == len(expected) and all(
        dtype == wanted and (length is None or numel == length)
        for (dtype, numel), (wanted, length) in zip(contents, expected, strict=True)
    )
    if not fits:
        raise BinsgdmError(
            f"{name}: a payload of {contents}: must be {list(expected)}; compress with the same settings and version"
        )


def check_whole(where: str, value: object, *, low: int, high: int | None = None) -> None:
    """Refuse a setting that is not a whole number in [low, high]."""
    # True is an int to Python, but no count.
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        most = f" to {high}" if high is not None else " on"
        raise BinsgdmError(f"{where}: {shown(value)}: must be a whole number from {low}{most}; give one of them")


def is_number(value: object, *, above: float, most: float = sys.float_info.max) -> bool:
    """Tell whether a setting is a finite number above one and at most another."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and above < value <= most  # type: ignore[operator]


def is_share(value: object) -> bool:
    """Tell whether a setting is a number in [0, 1]."""
    return is_number(value, above=-1, most=1) and value >= 0  # type: ignore[operator]


def check_choice(where: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a setting that is none of `choices`."""
    # By type as well: 1 equals True, and an array compares with each choice element by element.
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise BinsgdmError(f"{where}: {shown(value)}: must be one of {list(choices)}; give one of them")


def check_state(where: str, state: object, wanted: Collection[str]) -> None:
    """Refuse a state that is no dictionary of exactly these."""
    if not isinstance(state, Mapping):
        raise BinsgdmError(f"{where}: a state that is a {type(state).__name__}: must be a dictionary; {REPAIR}")
    if set(state) != set(wanted):
        raise BinsgdmError(f"{where}: a state of {listed(state)}: must be {sorted(wanted)}; {REPAIR}")


def check_stateless(name: str, state: object) -> None:
    """Refuse a state for a system that has none."""
    if not isinstance(state, Mapping) or state:
        raise BinsgdmError(
            f"{name}: a state {state_in_words(state)}: this system keeps none; load the state into its own system"
        )


def state_in_words(state: object) -> str:
    """Return what a sentence says of a state that is refused."""
    return f"of {listed(state)}" if isinstance(state, Mapping) else f"that is a {type(state).__name__}"
