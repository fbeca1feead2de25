"""All systems that average gradients, by name: one list of classes, each with its own description.

A system of one's own is a `CompressorSystem` or a `ProtocolSystem`, made known by `SYSTEMS.register`, in this process:
every rank registers it. A package lets its systems be found without an import by an entry point of the group
"binsgdm.systems", whose name is that of the system. `docs/how-to/extend.md` has an example of each.
"""

import difflib
import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any, TypeVar, get_args

from binsgdm.compressors.base import MAX_RANKS, Averager, System, Topology, check_choice, check_whole
from binsgdm.compressors.compressor import CompressorSystem
from binsgdm.compressors.dense import Dense
from binsgdm.compressors.low_rank import Atomo, GradZip, PowerSGD
from binsgdm.compressors.marsit import Marsit
from binsgdm.compressors.quantizers import NUQSGD, QSGD, ByteGrad, QSGDInf
from binsgdm.compressors.signs import MajorityVote, OneBitSGD, ScaledSign, TernGrad
from binsgdm.compressors.sparse import MSTopK, RandomK, TopK
from binsgdm.compressors.topologies import BETWEEN_NODES, Hierarchical, IntraNodeDtype, ScatterReduce
from binsgdm.errors import BinsgdmError, shown

ENTRY_POINTS = "binsgdm.systems"  # group in which other packages name their systems
# Arguments of functions that take a system's options as keywords as well: an option of this name could not be given.
RESERVED = {
    "model", "system", "seed", "ranks_per_node", "timeout", "on_sent", "name", "options", "topology",
    "intra_node_dtype",
}  # fmt: skip

AnySystem = TypeVar("AnySystem", bound=type[System])


class SystemRegistry(Mapping[str, type[System]]):
    """Systems by name, in the order in which they came.

    Those of other packages are loaded when a name is asked for that is not known otherwise, or the whole list is. One
    that cannot be loaded is left out: `refusal` has the reason, and a look at the whole list warns of it.
    """

    def __init__(self, systems: Iterable[type[System]]) -> None:
        self._systems: dict[str, type[System]] = {}
        self._refused: dict[str, str] = {}
        for system in systems:
            self.register(system)

    def register(self, system: AnySystem) -> AnySystem:
        """Make a system known by its name, in this process; a decorator for its class, above that of a dataclass.

        A class of the same module and name replaces the former, as in a notebook.
        """
        _check(system)
        other = self._systems.get(system.name, system)
        # The same class again is an edited notebook cell that ran twice.
        if (other.__module__, other.__qualname__) != (system.__module__, system.__qualname__):
            raise BinsgdmError(
                f"register: {system.__qualname__}: name {system.name!r} is that of {other.__qualname__} of "
                f"{other.__module__}; give another"
            )
        self._systems[system.name] = system
        return system

    def remove(self, system: type[System]) -> None:
        """Forget a system, as a test does that has added it."""
        self._systems.pop(system.name, None)

    def __getitem__(self, name: str) -> type[System]:
        if name not in self._systems:
            self._load(name)
        if refusal := self.refusal(name):
            raise KeyError(refusal)
        return self._systems[name]

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and name not in self._systems:
            self._load(name)
        return name in self._systems

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(tuple(self._systems))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def refusal(self, name: object) -> str:
        """Return why another package's system could not be loaded; empty if there is none of this name."""
        reason = self._refused.get(str(name), "")
        return f"{reason}; fix or remove that package" if reason else ""

    def _load(self, name: str | None = None) -> None:
        """Load the entry point of a name, or all that are not loaded; each is tried once."""
        for point in metadata.entry_points(group=ENTRY_POINTS):
            if point.name in self._systems or point.name in self._refused or name not in (None, point.name):
                continue
            try:
                system = point.load()
                if (declared := getattr(system, "name", None)) != point.name:
                    raise BinsgdmError(f"its name is {declared!r}, and must be that of the entry point")
                self.register(system)
            except Exception as error:  # whatever another package does, the rest goes on
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                self._refused[point.name] = f"system: {point.name!r}: {point.value} cannot be loaded ({reason})"
                if name is None:  # a caller that asks for one name gets its reason from `refusal`
                    warnings.warn(self._refused[point.name], stacklevel=3)


def _check(system: object) -> None:
    """Refuse a class without the description of a system."""
    if not (inspect.isclass(system) and issubclass(system, System)):
        raise BinsgdmError(
            f"register: {system!r}: must be a class of CompressorSystem or ProtocolSystem; see help(binsgdm.register)"
        )
    where = f"register: {system.__qualname__}"
    for name in ("name", "title", "source", "wire_format", "aggregation"):
        value = getattr(system, name, None)
        if not isinstance(value, str) or not value:
            raise BinsgdmError(f"{where}: {name}: {value!r}: must be text; set it in the class")
    if not system.name.isidentifier():
        raise BinsgdmError(f"{where}: name: {system.name!r}: must be letters, digits and _; such as 'top_k'")
    if inspect.isabstract(system):
        missing = ", ".join(sorted(system.__abstractmethods__))
        raise BinsgdmError(f"{where}: has no {missing}: a system must have it; see help(binsgdm.compressors.base)")
    for option, default in system.options.items():
        if option in RESERVED or default is inspect.Parameter.empty:
            raise BinsgdmError(
                f"{where}: option {option!r}: must have a default and another name than {', '.join(sorted(RESERVED))}"
            )


BUILT_IN: tuple[type[System], ...] = (
    Dense, OneBitSGD, MajorityVote, ScaledSign, TernGrad, QSGD, QSGDInf, NUQSGD, ByteGrad, Marsit, PowerSGD, GradZip,
    Atomo, TopK, MSTopK, RandomK,
)  # fmt: skip
# Systems that average gradients. BinSGDM and 1-bit Adam are optimizers: their messages hold momenta.
SYSTEMS = SystemRegistry(BUILT_IN)


register = SYSTEMS.register
ALIASES = {"int8": "byte_grad"}
"""What else a system is called, as DiLoCo's `exchange` and the simulator's tables call it."""


def canonical(name: str) -> str:
    """Return the name in `SYSTEMS` of a system that has another one, too."""
    return ALIASES.get(name, name) if isinstance(name, str) else name


@contextmanager
def registered(*systems: type[System]) -> Iterator[None]:
    """Make systems known for a while, as a test does."""
    for system in systems:
        SYSTEMS.register(system)
    try:
        yield
    finally:
        for system in systems:
            SYSTEMS.remove(system)


def make(  # noqa: PLR0913
    name: str,
    *,
    rank: int,
    world_size: int,
    ranks_per_node: int = 1,
    topology: Topology | None = None,
    intra_node_dtype: IntraNodeDtype | None = None,
    **options: Any,
) -> Averager:
    """Return one rank's end of a system.

    Args:
        name: in `SYSTEMS` or `ALIASES`.
        rank: this rank.
        world_size: all ranks.
        ranks_per_node: ranks of each node, which are numbered node by node.
        topology: one of the system's `topologies`; by default what its authors run: the first, or, of some systems on
            nodes of several ranks, "hierarchical".
        intra_node_dtype: of what travels inside a node with a hierarchical topology; by default "fp32".
        options: as the system's class takes them; the same on all ranks.

    Example:
        >>> make("qsgd", rank=0, world_size=4, bits=8).compressor.bits
        8
    """
    name = canonical(name)
    check_options(name, options)
    check_whole(f"{name}: world_size", world_size, low=1, high=MAX_RANKS)
    check_whole(f"{name}: rank", rank, low=0, high=world_size - 1)
    check_whole(f"{name}: ranks_per_node", ranks_per_node, low=1)
    system = SYSTEMS[name]
    topology = system.default_topology(ranks_per_node) if topology is None else topology
    system.check_topology(topology, options)
    if topology not in BETWEEN_NODES:
        if intra_node_dtype is not None:
            raise BinsgdmError(
                f"{name}: intra_node_dtype: {shown(intra_node_dtype)}: has no effect with topology "
                f"{topology!r}; drop one of them"
            )
        return _among_equals(system, topology, options, rank, world_size)
    intra_node_dtype = "fp32" if intra_node_dtype is None else intra_node_dtype
    check_choice(f"{name}: intra_node_dtype", intra_node_dtype, get_args(IntraNodeDtype))
    if world_size % ranks_per_node:
        raise BinsgdmError(
            f"{name}: ranks_per_node: {shown(ranks_per_node)}: must divide the world size {world_size}; "
            "give the ranks of one node"
        )
    exchange = BETWEEN_NODES[topology] or system.topologies[0]
    between = _among_equals(system, exchange, options, rank // ranks_per_node, world_size // ranks_per_node)
    return Hierarchical(
        between, system.cut, intra_node_dtype, rank=rank, world_size=world_size, ranks_per_node=ranks_per_node
    )


def _among_equals(
    system: type[System], topology: str, options: Mapping[str, Any], rank: int, world_size: int
) -> Averager:
    """Return one rank's end in a topology that knows no nodes."""
    if topology == "scatter_reduce" and issubclass(system, CompressorSystem):
        return ScatterReduce(system(**options), rank=rank, world_size=world_size)
    return system.averager(rank, world_size, options)


def check_options(name: object, options: Iterable[str]) -> None:
    """Check that there is a system of this name, and that it takes these options, whatever their values."""
    if not isinstance(name, str) or name not in SYSTEMS:
        if refusal := SYSTEMS.refusal(name):
            raise BinsgdmError(refusal)
        raise BinsgdmError(f"system: {shown(name)}: unknown{_nearest(name, SYSTEMS)}; known are {', '.join(SYSTEMS)}")
    taken = SYSTEMS[name].options
    for option in options:
        if option not in taken:
            known = ", ".join(taken) or "none"
            raise BinsgdmError(f"{name}: {option}: unknown option{_nearest(option, taken)}; it takes {known}")


def _nearest(name: object, known: Mapping[str, Any]) -> str:
    matches = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    return f", did you mean {matches[0]!r}?" if matches else ""
