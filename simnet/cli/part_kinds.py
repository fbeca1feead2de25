"""Find the kind of part that a name or a file on the command line stands for."""

from simnet.core import files
from simnet.core.errors import SimnetError, did_you_mean
from simnet.engine.raw_scenario import PART_TYPES


def find(name: str) -> tuple[str, str]:
    """Return the kind and the name (or path) that NAME, KIND/NAME or a path stands for.

    Raises:
        SimnetError: there is no such part or file, or several kinds have one of this name.
    """
    kind, _, rest = name.partition("/")
    if kind in files.KINDS and rest in files.names(kind):
        return kind, rest
    if files.is_path(name):
        return _kind_of(files.read("experiments", name)), name
    kinds = [kind for kind in files.KINDS if name in files.names(kind)]
    if len(kinds) > 1:
        raise SimnetError(
            f"{name!r}: several kinds have this name; write one of {', '.join(f'{kind}/{name}' for kind in kinds)}"
        )
    if not kinds:
        known = {known for kind in files.KINDS for known in files.names(kind)}
        raise SimnetError(f"{name!r}: unknown part.{did_you_mean(name, known)}")
    return kinds[0], name


def _kind_of(data: dict[str, object]) -> str:
    """Return the kind of part whose keys a file has most of, if it is no experiment."""
    if data.keys() & {"cluster", "workload", "scenario", "strategy", "sweep", "points"}:
        return "experiments"
    if data.get("format") == "simnet-convergence":
        return "convergence"
    if "forward_flops_per_sample" in data:
        return "gradients"
    shared = {kind: len(data.keys() & set(part.__struct_encode_fields__)) for kind, part in PART_TYPES.items()}
    return max(shared, key=lambda kind: shared[kind])
