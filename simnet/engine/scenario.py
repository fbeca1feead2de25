"""Scenario files: parts by name or written inline, with keys that replace some of theirs, checked and resolved."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

import simnet.cluster.faults  # noqa: F401 - makes them known
from simnet.cluster.hardware import INLINE, Calibration, Cluster, GpuModel, NamedPart
from simnet.core import files, parsing, schema
from simnet.core.arguments import check_fields, checked
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError, did_you_mean, shown
from simnet.core.parsing import KeyPath
from simnet.core.units import Quantity
from simnet.engine.axes import Axis, Override, PointList, check_apart, read_sweep
from simnet.strategies import AnyStrategy, step_file
from simnet.strategies.base import with_paths_at
from simnet.workload.workload import Adam, Workload

T = TypeVar("T", bound=msgspec.Struct)
MAX_MICRO_BATCHES = 10_000
VARIED_ITERATIONS = 200
"""Iterations of a run in which they differ, where the user does not say: their 95th percentile has ten beyond it."""
PARTS = {"cluster": "clusters", "workload": "workloads", "calibration": "calibrations"}
PART_TYPES: dict[str, type[NamedPart]] = {
    "clusters": Cluster,
    "workloads": Workload,
    "calibrations": Calibration,
    "gpus": GpuModel,
}
ADAM_TEXTS: dict[Adam, str] = {"foreach": "", "fused": "AdamW(fused=True)", "8bit": "bnb.optim.AdamW8bit"}


class RunSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to simulate.

    Attributes:
        fidelity: "folded" simulates one node for all, without faults; "grouped" every rank, and collectives as a whole,
            which holds or nearly does with faults; "exact" every send; "auto" takes the first that holds. The result
            says by how much an approximation may be off.
        grad_accumulation: micro-batches of an iteration, of which the last exchanges gradients; by default 1, or what
            `global_batch` takes.
        global_batch: samples of an iteration on all ranks: a multiple of `cluster.num_nodes` x `cluster.ranks_per_node`
            x `workload.batch_per_rank`, from which `grad_accumulation` follows.
        steps: training steps that the end-to-end time counts.
        iterations: to simulate; by default 1, or 200 where a fault varies or changes in time.
        seed: what faults that vary draw from.
        draws: calibrations drawn from the given intervals, for intervals of the results: 0, or at least 20; by default
            none in Python, and as many as a command finds useful.
    """

    fidelity: Literal["auto", "exact", "grouped", "folded"] = "auto"
    grad_accumulation: Annotated[int, Meta(ge=1, le=MAX_MICRO_BATCHES)] | None = None
    global_batch: Count | None = None
    steps: Count | None = None
    iterations: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    draws: Annotated[int, Meta(ge=0, le=10_000)] | None = None

    def __post_init__(self) -> None:
        if self.global_batch is not None and self.grad_accumulation is not None:
            rule = (
                f"follows from global_batch = {self.global_batch}; drop one of the two, or vary workload.batch_per_rank"
            )
            raise ValueError(f"grad_accumulation: {self.grad_accumulation}: {rule}")


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One question, resolved: everything that `simulate` needs.

    Attributes:
        cluster: the hardware.
        workload: the model.
        strategy: how gradients are exchanged.
        baseline: what stands beside tuned DDP, over which every speedup is; none is needed.
        calibration: what hardware and software take; by default nominal bandwidth and no overhead.
        run: how to simulate.
        name: by default that of its file.
        question: what the experiment asks, for people.
    """

    cluster: Cluster
    workload: Workload
    strategy: AnyStrategy
    baseline: AnyStrategy | None = None
    calibration: Calibration = Calibration()
    run: RunSettings = RunSettings()
    name: str = INLINE
    question: str = ""

    def __post_init__(self) -> None:
        check_fields(self, "Scenario")
        try:
            self.strategy.check_steps(self.run.steps)
        except ValueError as error:
            raise ValueError(f"strategy.{error}") from error
        _ = self.grad_accumulation  # refused here, once

    @property
    def grad_accumulation(self) -> int:
        """Micro-batches of one iteration: as given, or what the global batch takes."""
        if self.run.global_batch is None:
            return self.run.grad_accumulation or 1
        return _micro_batches(self.run.global_batch, self.cluster.world_size, self.workload.batch_per_rank)

    @property
    def num_iterations(self) -> int:
        """Iterations to simulate: as given, or one where all are alike."""
        if self.run.iterations is not None:
            return self.run.iterations
        faults = self.cluster.all_faults
        return VARIED_ITERATIONS if any(fault.varies or fault.next_change_s(0.0) < math.inf for fault in faults) else 1

    @checked
    def replace(self, **changes: object) -> "Scenario":
        """Return the same scenario with other values, each checked as in a file.

        Args:
            changes: values by dotted key, as a file gives them; a part by its name.

        Raises:
            SimnetError: a key or a value does not fit.

        Example:
            >>> scenario = load("bert_base_10gbit")
            >>> larger = scenario.replace(**{"cluster.num_nodes": 16, "cluster.inter_node.bandwidth": "25 Gbit/s"})
            >>> scenario.cluster.world_size, larger.cluster.world_size
            (64, 128)
        """
        return experiment_of(self, changes, origin="replace").at({})

    def without_global_batch(self) -> "Scenario":
        """Return the same scenario whose accumulation stays when its cluster changes."""
        run = replace(self.run, global_batch=None, grad_accumulation=self.grad_accumulation)
        return replace(self, run=run)


class RawScenario(Struct, frozen=True, kw_only=True):
    """A scenario's data with its parts filled in but not checked, and where each key was given."""

    data: Mapping[str, object]
    origins: Mapping[KeyPath, str]

    def with_overrides(self, overrides: Iterable[Override]) -> "RawScenario":
        """Return the scenario with keys set, whole parts first, so that the order of the overrides does not matter.

        Raises:
            SimnetError: a part is unknown, or a key leads into something that is not a table.
        """
        raw = self
        # "cluster=x" and then "cluster.num_nodes=8": the whole part would undo the key inside it.
        for override in sorted(overrides, key=lambda override: len(override.path)):
            raw = raw._with_override(override)
        return raw

    def _with_override(self, override: Override) -> "RawScenario":
        path = override.path
        where = f"{override.origin}: {override.key}"
        origins = {known: origin for known, origin in self.origins.items() if known[: len(path)] != path}
        value = override.value
        if path[0] in PARTS and path[1:] == ("use",):
            raise SimnetError(f"{where}: {value!r}: a {path[0]} is chosen by the key {path[0]!r} itself; drop '.use'")
        if len(path) == 1:
            value, inner = _fill(override.key, value, override.origin, override.directory)
            origins |= inner
        data = parsing.replaced(self.data, path, value, where)
        assert isinstance(data, dict)
        # A table that the key made on its way is the override's too.
        made = parsing.first_missing(self.data, path)
        return RawScenario(data=data, origins=origins | {at: origins.get(at, override.origin) for at in (made, path)})

    def converted(self, struct: type[T]) -> T:
        """Check everything against a struct, and return that.

        Raises:
            SimnetError: something does not fit; the message says where it was given.
        """
        return schema.build(struct, self.data, self.origins)


class Experiment(Struct, frozen=True, kw_only=True):
    """A file that asks a question: a scenario, and the axes along which it varies.

    Attributes:
        name: name of the file.
        question: what the experiment asks.
        where: how messages call the file.
        base: the scenario's data before `overrides` and axes are applied.
        overrides: keys that the user set, by --set or in code.
        axes: in the order of the file; the grid of all their values is swept, the last axis fastest.
        listed: points listed one by one, each of them swept over the whole grid; None without a list.
    """

    name: str
    question: str
    where: str
    base: RawScenario
    overrides: tuple[Override, ...] = ()
    axes: tuple[Axis, ...] = ()
    listed: PointList | None = None

    @property
    def swept_keys(self) -> tuple[str, ...]:
        """Every dotted key that varies, those of listed points first."""
        return (*(self.listed.keys if self.listed else ()), *(axis.key for axis in self.axes))

    @property
    def resolved(self) -> Mapping[str, object]:
        """The data with parts filled in and overrides applied, without axes."""
        return self.base.with_overrides(self.overrides).data

    def at(self, values: Mapping[str, object]) -> Scenario:
        """Return the scenario at one point of the axes; an axis that is not in `values` stays as in the file."""
        return self._raw_at(values).converted(Scenario)

    def each(self, points: Iterable[Mapping[str, object]]) -> Iterator[Scenario | SimnetError]:
        """Yield the scenario at each of several points, as `at` gives it, or the error where it does not hold together.

        Parts equal to those before are not redone.
        """
        # Neighbouring points of a sweep differ in one part: checking the other parts again would take most of the time.
        before: tuple[Mapping[str, object], Scenario] | None = None
        for values in points:
            try:
                raw = self._raw_at(values)
                scenario = before and _with_parts(*before, raw.data)
                before = raw.data, scenario or raw.converted(Scenario)
            except SimnetError as error:
                yield error
            else:
                yield before[1]

    def values_of(self, key: str) -> list[object]:
        """Return the values that the sweep gives to a key; none where the key is not swept."""
        listed = self.listed.values_of(key) if self.listed else ()
        return [*listed, *(value for axis in self.axes if axis.key == key for value in axis.values)]

    def _raw_at(self, values: Mapping[str, object]) -> RawScenario:
        listed = self.listed.overrides(values) if self.listed else ()
        point = [axis.override(values[axis.key]) for axis in self.axes if axis.key in values]
        return self.base.with_overrides([*self.overrides, *listed, *point])


class BatchSettings(NamedTuple):
    """How one rank goes through its samples of a step, and what it keeps meanwhile.

    Attributes:
        batch_per_rank: samples of a micro-batch.
        micro_batches: of a step.
        checkpointing: part of the repeated blocks whose activations are computed again in backward.
        gradient_as_bucket_view: DDP's argument, as in `workload.memory`.
        adam: as in `workload.memory`.
    """

    batch_per_rank: int
    micro_batches: int
    checkpointing: float
    gradient_as_bucket_view: bool = False
    adam: Adam = "foreach"

    def text(self) -> str:
        """Return the settings for people: "micro-batch 1 x 8, all blocks checkpointed"."""
        part = {0.0: "", 1.0: "all blocks checkpointed"}.get(
            self.checkpointing, f"{self.checkpointing:.0%} of the blocks checkpointed".replace("%", " %")
        )
        view = "gradient_as_bucket_view=True" if self.gradient_as_bucket_view else ""
        cut = f"micro-batch {self.batch_per_rank} x {self.micro_batches}"
        return ", ".join(filter(None, (cut, part, view, ADAM_TEXTS[self.adam])))

    def changes(self, other: "BatchSettings") -> dict[str, object]:
        """Return what of other settings differs, by key of a scenario: `{"workload.checkpointing": 0.5}`."""
        keys = {
            "workload.batch_per_rank": "batch_per_rank",
            "run.grad_accumulation": "micro_batches",
            "workload.checkpointing": "checkpointing",
            "workload.memory.gradient_as_bucket_view": "gradient_as_bucket_view",
            "workload.memory.adam": "adam",
        }
        values = {key: getattr(self, field) for key, field in keys.items()}
        return {key: value for key, value in values.items() if value != getattr(other, keys[key])}


def settings_of(scenario: Scenario) -> BatchSettings:
    """Return how a scenario cuts its batch, and what it keeps."""
    workload, memory = scenario.workload, scenario.workload.memory
    kept = (memory.gradient_as_bucket_view, memory.adam) if memory else ()
    return BatchSettings(workload.batch_per_rank, scenario.grad_accumulation, workload.checkpointing, *kept)


def with_settings(scenario: Scenario, settings: BatchSettings) -> Scenario:
    """Return a scenario of the same global batch with these settings; those of memory need `workload.memory`."""
    run, memory = scenario.run, scenario.workload.memory
    if run.global_batch is None:
        run = replace(run, grad_accumulation=settings.micro_batches)
    if memory is not None:
        memory = replace(memory, gradient_as_bucket_view=settings.gradient_as_bucket_view, adam=settings.adam)
    workload = replace(
        scenario.workload,
        batch_per_rank=settings.batch_per_rank,
        checkpointing=settings.checkpointing,
        memory=memory,
    )
    return replace(scenario, workload=workload, run=run)


def load(name_or_path: str, overrides: Mapping[str, object] | None = None) -> Scenario:
    """Load a scenario by name or path; a sweep in its file is left out.

    Args:
        name_or_path: name of a shipped experiment, or path of a `.toml` or `.json` file.
        overrides: dotted keys with the values to use instead, also of parts given by name.

    Raises:
        SimnetError: the file cannot be found or read, or something in it does not fit.
    """
    return load_experiment(name_or_path, overrides).at({})


def load_experiment(
    name_or_path: str,
    overrides: Mapping[str, object] | None = None,
    axes: Mapping[str, Sequence[object]] | None = None,
    listed: PointList | None = None,
) -> Experiment:
    """Load an experiment by name or path; its parts are found, but checked only at `Experiment.at`.

    Args:
        name_or_path: name of a shipped experiment, or path of a `.toml` or `.json` file.
        overrides: dotted keys with the values to use instead; such a key is no longer swept.
        axes: more axes, or other values for the axes of the file.
        listed: points to sweep in place of the whole sweep of the file.

    Raises:
        SimnetError: the file or a part of it cannot be found or read, or an axis has no values, or a key is
            given twice.
    """
    path = files.locate("experiments", name_or_path)
    where = files.label(path)
    whole = files.read_file(path)
    data = _scenario_table(whole, path)
    # A result holds its scenario: what was simulated once is simulated again by naming the file of its result.
    is_result = data is not whole
    # Files that a user may well take for a scenario are told apart by name, before any key of theirs is called unknown.
    if {"format", "axes", "points"} <= data.keys():
        raise SimnetError(
            f"{where}: results of a sweep, not a scenario; draw them with: simnet report {where} --figures DIR"
        )
    if data.get("format") == step_file.FORMAT:
        rule = 'name it in a scenario by strategy = { kind = "recorded", file = "..." }, or see it with: simnet show'
        raise SimnetError(f"{where}: a recorded step, not a scenario; {rule} {where}")
    known = [*Scenario.__struct_fields__, "sweep"]
    for key in data:
        if key not in known:
            raise SimnetError(f"{where}: unknown key {key!r}.{did_you_mean(key, known)}")
    in_file = read_sweep(data.pop("sweep"), where, path.parent) if "sweep" in data else ({}, None)
    settings = {**(overrides or {}), **(axes or {})}
    if listed is not None:
        check_apart(settings, listed, "--set")
    swept, points = in_file if listed is None else ({}, listed)
    # Asked for on the command line, an axis replaces that of the file in its place; a new one varies fastest.
    swept |= {key: Axis(key=key, values=tuple(values)) for key, values in (axes or {}).items()}
    return Experiment(
        name=str(data.setdefault("name", path.stem)),
        question=str(data.get("question", "")),
        where=where,
        # The files that a result names are those of its run, whose paths started from the working directory.
        base=with_parts_filled(data, where, Path() if is_result else path.parent),
        overrides=tuple(Override(key=key, value=value) for key, value in (overrides or {}).items()),
        axes=tuple(axis for key, axis in swept.items() if key not in (overrides or {})),
        listed=points and points.without(settings),
    )


def experiment_of(
    scenario: Scenario,
    overrides: Mapping[str, object] | None = None,
    axes: Mapping[str, Sequence[object]] | None = None,
    listed: PointList | None = None,
    *,
    origin: str = "settings",
) -> Experiment:
    """Return an experiment around a resolved scenario.

    Args:
        scenario: where all values start from.
        overrides: dotted keys with the values to use instead.
        axes: values of keys that vary.
        listed: points that vary.
        origin: what messages name where a value does not fit.

    Raises:
        SimnetError: a key is given twice, or an axis has no values.
    """
    settings = {**(overrides or {}), **(axes or {})}
    if listed is not None:
        check_apart(settings, listed, origin)
    return Experiment(
        name=scenario.name,
        question=scenario.question,
        where=scenario.name,
        base=RawScenario(data=to_dict(scenario), origins={(): scenario.name}),
        overrides=tuple(Override(key=key, value=value, origin=origin) for key, value in (overrides or {}).items()),
        axes=tuple(Axis(key=key, values=tuple(values)) for key, values in (axes or {}).items()),
        listed=listed,
    )


def check_part(kind: str, name: str) -> NamedPart:
    """Check a cluster, workload or calibration on its own, and return it.

    Args:
        kind: key of `PART_TYPES`.
        name: name of a shipped part, or path of a file.

    Raises:
        SimnetError: it cannot be found or read, or something in it does not fit.
    """
    part, label = _named_part(kind, name, "", Path())
    return checked_part(kind, part, label)


def checked_part(kind: str, table: Mapping[str, object], where: str) -> NamedPart:
    """Check the data of a part, and return it.

    Args:
        kind: key of `PART_TYPES`.
        table: the data, filled in.
        where: how messages call the part.
    """
    return RawScenario(data=table, origins={(): where}).converted(PART_TYPES[kind])


def with_parts_filled(data: Mapping[str, object], where: str, directory: Path) -> RawScenario:
    """Fill in the parts of data in file form."""
    filled: dict[str, object] = {}
    origins: dict[KeyPath, str] = {(): where}
    for key, value in data.items():
        filled[key], inner = _fill(key, value, where, directory)
        origins |= inner
    return RawScenario(data=filled, origins=origins)


def _fill(key: str, value: object, where: str, directory: Path) -> tuple[object, dict[KeyPath, str]]:
    """Return the data of a top-level key with names replaced by what they stand for, and where its keys were given."""
    # A strategy has no file of its own: its name is its kind.
    if key in schema.BY_NAME:
        return ({"kind": value} if isinstance(value, str) else with_paths_at(value, directory)), {}
    if key not in PARTS:
        return value, {}
    changes = dict(value) if isinstance(value, Mapping) else {}
    use = changes.pop("use", None) if isinstance(value, Mapping) else value
    if use is None:
        return _with_gradients_at(changes, directory), {}
    if not isinstance(use, str):
        raise SimnetError(f"{where}: {key}: {shown(use)}: write the name of a {key} in quotes, or a table")
    part, label = _named_part(PARTS[key], use, f"{where}: {key}", directory)
    origins = {(key,): label} | {(key, *path): where for path in parsing.leaves(changes)}
    return parsing.merged(part, changes) if changes else part, origins


def _named_part(kind: str, name: str, where: str, directory: Path) -> tuple[dict[str, object], str]:
    try:
        path = files.locate(kind, name, directory)
    except SimnetError as error:
        raise SimnetError(f"{where}: {error}" if where else str(error)) from error
    return _read_part(path, files.file_stamp(path)), files.label(path)


@lru_cache(maxsize=64)
def _read_part(path: Path, _state: tuple[int, ...]) -> dict[str, object]:
    """Read a part; a sweep asks for the same file at every point, and whoever gets the table does not change it."""
    return {"name": path.stem, **_with_gradients_at(files.read_file(path), path.parent)}


def _with_gradients_at(part: dict[str, object], directory: Path) -> dict[str, object]:
    """Return a part whose relative path of a gradients file, if it has one, starts from the working directory."""
    gradients = part.get("gradients")
    if isinstance(gradients, str) and files.is_path(gradients):
        return part | {"gradients": str(directory / gradients)}
    return part


def build(mapping: Mapping[str, object], where: str = "scenario") -> Scenario:
    """Return the scenario that data in file form describe.

    Args:
        mapping: as a scenario file gives it; not changed.
        where: how messages call it.
    """
    return with_parts_filled(mapping, where, Path()).converted(Scenario)


def to_dict(scenario: Struct) -> dict[str, object]:
    """Return a scenario in file form, resolved and with all defaults, quantities as text; `build` reads it back."""
    plain = _without_none(msgspec.to_builtins(scenario, enc_hook=_write_quantity))
    assert isinstance(plain, dict)
    return plain


def encode(scenario: Struct) -> bytes:
    """Return a scenario, or what holds some, as JSON: quantities as text, absent values as null."""
    return msgspec.json.encode(scenario, enc_hook=_write_quantity)


def _with_parts(old_data: Mapping[str, object], old: Scenario, data: Mapping[str, object]) -> Scenario | None:
    """Return a scenario with the parts that are other data than before, None if that does not do.

    Where a part does not fit, the whole is to be read again: only that names the place.
    """
    others = [key for key in {**old_data, **data} if data.get(key) is not old_data.get(key)]
    tables = {key: table for key in others if key in PARTS and isinstance(table := data.get(key), Mapping)}
    # Something else than a part changed, such as `run`: the whole is read again.
    if len(tables) < len(others):
        return None
    try:
        parts = {key: checked_part(PARTS[key], table, "") for key, table in tables.items()}
        return replace(old, **parts)
    except (SimnetError, ValueError):  # the latter of what contradicts the other parts
        return None


def _scenario_table(data: dict[str, object], path: Path) -> dict[str, object]:
    """Return the scenario of a file: all of it, or what stands under "scenario" in a result of `simnet simulate`."""
    inner = data.get("scenario")
    if path.suffix != ".json" or not isinstance(inner, dict):
        return data
    return {key: _without_none(value) for key, value in inner.items() if value is not None}


@lru_cache(maxsize=4096, typed=True)
def _write_quantity(quantity: object) -> str:
    assert isinstance(quantity, Quantity)
    return quantity.text()


def _without_none(data: object) -> object:
    """Return plain data without absent values, and with lists for tuples, as it comes back from a file."""
    if isinstance(data, dict):
        return {key: _without_none(value) for key, value in data.items() if value is not None}
    return [_without_none(item) for item in data] if isinstance(data, list | tuple) else data


def _micro_batches(global_batch: int, world_size: int, batch_per_rank: int) -> int:
    """Return the micro-batches of one iteration.

    Raises:
        ValueError: the ranks do not divide the batch, or take it in too many parts; the sentence begins with the key.
    """
    at_once = world_size * batch_per_rank
    taken = f"{world_size} ranks x {batch_per_rank} samples"
    if global_batch % at_once:
        repair = "change it, workload.batch_per_rank or the number of ranks"
        raise ValueError(f"run.global_batch: {global_batch}: must be a multiple of {taken} = {at_once}; {repair}")
    count = global_batch // at_once
    if count > MAX_MICRO_BATCHES:
        repair = "raise workload.batch_per_rank"
        raise ValueError(
            f"run.global_batch: {global_batch}: {count} micro-batches of {taken}: at most {MAX_MICRO_BATCHES}; {repair}"
        )
    return count
