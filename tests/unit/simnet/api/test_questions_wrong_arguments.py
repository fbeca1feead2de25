"""Whatever is given to the Python API, in place of one argument: a sentence of its own comes out, or an answer."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot

import simnet
from simnet.core.errors import MAX_MESSAGE
from tests.helpers.refusals import refused

mpl.use("agg")
ANY: Any = simnet
"""For calls that a type checker refuses."""
BERT = "bert_base_10gbit"
NODES, RATE = "cluster.num_nodes", "cluster.inter_node.bandwidth"
KERNELS = Path("tests/golden/card_cpu/kernels.json").resolve()
LOOP: list[Any] = []
LOOP.append(LOOP)


class Broken:
    """An object whose every way to be shown or compared fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, _: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


# Made anew for every call: a generator is empty after the first.
WRONG: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "minus one": lambda: -1,
    "zero": lambda: 0,
    "large": lambda: 10**400,
    "longer than Python shows": lambda: 10**5000,
    "fraction": lambda: 0.5,
    "empty text": lambda: "",
    "escape": lambda: "\x1b[31mred\x1b[0m\n\r\x00",
    "null": lambda: "a\0b",
    "long text": lambda: "x" * 5000,
    "long lines": lambda: "x\n" * 2500,
    "surrogate": lambda: "\ud800",
    "turned text": lambda: "\u202egnp.exe",
    "no number": lambda: "many",
    "text with a slash": lambda: "no/such.toml",
    "empty list": list,
    "empty table": dict,
    "object": object,
    "broken object": Broken,
    "function": lambda: lambda: None,
    "bytes": lambda: b"\xff\xfe",
    "numbers": lambda: np.array([1.5, np.nan]),
    "empty numbers": lambda: np.array([]),
    "matrix": lambda: np.zeros((2, 2)),
    "no dimension": lambda: np.array(-3),
    "objects": lambda: np.array([object(), None]),
    "dates": lambda: np.array(["2020-01-01"], dtype="datetime64[D]"),
    "complex numbers": lambda: np.array([1j]),
    "numpy nan": lambda: np.float32("nan"),
    "series": lambda: pd.Series([None, "x"]),
    "data frame": lambda: pd.DataFrame({"a": [1, 2]}),
    "index": lambda: pd.Index([3, 4]),
    "missing": lambda: pd.NA,
    "nested lists": lambda: [[[1]], ["a", ["b"]]],
    "list without end": lambda: LOOP,
    "table of wrong keys": lambda: {1: 2, None: object()},
    "table of escapes": lambda: {"\x1b[31m": "\x1b", "cluster.\n": [object()]},
    "true": lambda: True,
    "complex number": lambda: 1j,
    "path to nothing": lambda: Path("/dev/null/deep"),
    "folder": lambda: Path("folder"),
    "class": lambda: int,
    "generator": lambda: (value for value in (None, 1)),
    "set": lambda: {1, "a"},
    "exception": lambda: ValueError("\x1b"),
}


def tiny() -> simnet.Scenario:
    """Return a scenario of two ranks whose answers take milliseconds."""
    return simnet.load(BERT, {NODES: 2, "cluster.ranks_per_node": 1, "run.draws": 0})


Call = tuple[Callable[..., Any], dict[str, Any]]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """Return functions by name, each with arguments that are right: one of them at a time is replaced."""
    folder = tmp_path_factory.mktemp("written")
    scenario = tiny()
    asked: dict[str, Any] = {"scenario": scenario, "settings": {"workload.batch_per_rank": 16}}
    axes: dict[str, Any] = {NODES: [2, 3]}
    sweep = simnet.sweep(scenario, axes)
    run, fit = simnet.simulate(scenario), simnet.calibrate(KERNELS, accept_poor_fit=True, bootstrap_draws=20)
    crossing = {"over": RATE, "start": "10 Gbit/s", "end": "400 Gbit/s"}
    reached = {"curves": "characters", "at": ["10 Gbit/s"], "same_task": True}
    answers = {
        "run": run,
        "sweep": sweep,
        "crossover": simnet.crossover(scenario, **crossing),  # type: ignore[arg-type]
        "advice": simnet.advise(scenario, systems=["BinSGDM"]),
        "targets": simnet.time_to_target(scenario, **reached),  # type: ignore[arg-type]
        "fit": fit,
        "published": simnet.validate(published=True, sets=["hkbu_bsp"]),
    }
    made = {name: getattr(scenario, name) for name in ("cluster", "workload", "strategy", "baseline", "calibration")}
    swept = {"axes": axes, "points": None, "draws": 0, "jobs": 1, "dask_client": None, "progress": False}
    fitted = dict.fromkeys(("base", "experiment", "trained", "cluster", "batch", "algorithm", "protocol"))
    found: dict[str, Call] = {
        "load": (simnet.load, {"scenario": BERT, "settings": {NODES: 2}}),
        "simulate": (simnet.simulate, asked | {"draws": 0, "lost_time": False, "progress": False}),
        "sweep": (simnet.sweep, asked | swept | {"output": None}),
        "crossover": (simnet.crossover, asked | crossing | {"draws": 0, "tolerance": 1e-2, "progress": False}),
        "advise": (
            simnet.advise,
            asked
            | {"systems": ["BinSGDM"], "steps": (), "convergence": (), "draws": 0, "jobs": 1, "progress": False}
            | {"samples": 1e6, "price_per_gpu_hour": 2.0},
        ),
        "time_to_target": (
            simnet.time_to_target,
            asked
            | reached
            | {"draws": 0, "target": 3.0, "ranks": None, "steps": None, "metric": None}
            | {"price_per_gpu_hour": 1.0, "progress": False},
        ),
        "calibrate": (
            simnet.calibrate,
            {"files": [KERNELS], "hold_out": (), "in_place": (), "workload": False, "bound_percent": 15.0}
            | fitted
            | {"accept_poor_fit": True, "bootstrap_draws": 20},
        ),
        "validate": (
            simnet.validate,
            {"experiment": None, "measurements": (), "published": True, "sets": ["hkbu_bsp"], "model": None}
            | {"nic_gbit_per_s": None, "settings": None, "draws": None, "progress": False},
        ),
        "validate own": (
            simnet.validate,
            {"experiment": BERT, "measurements": [KERNELS], "model": "x", "nic_gbit_per_s": 10.0, "draws": 0},
        ),
        "read_frame": (simnet.read_frame, {"results": folder / "nothing"}),
        "fits": (simnet.fits, {"scenario": scenario, "strategy": scenario.strategy}),
        "Scenario": (simnet.Scenario, made | {"run": scenario.run, "name": "x", "question": "?"}),
        "Scenario.replace": (scenario.replace, {NODES: 4}),
        "SweepAnswer.__getitem__": (lambda index: sweep[index], {"index": 0}),
        "trace": (run.trace, {"path": folder / "step.json", "iterations": 1}),
        "RunAnswer.report": (run.report, {"path": folder / "run.html", "systems": None}),
        "SweepAnswer.report": (sweep.report, {"path": folder / "sweep.html"}),
        "page": (fit.page, {"all_rows": False}),
        "write": (fit.write, {"path": folder / "fit.toml"}),
        "write_workload": (fit.write_workload, {"path": folder / "work.toml"}),
    }
    found |= {f"{name}.plot": (answer.plot, {"ax": None}) for name, answer in answers.items()}
    found |= {
        f"{name}.write_json": (answer.write_json, {"path": folder / "x.json"}) for name, answer in answers.items()
    }
    return found


# Right, and no tiny question: every system, every published set.
LONG = {("advise", "systems"), ("RunAnswer.report", "systems"), ("validate", "sets")}


def fault_of(call: Callable[[], object]) -> str | None:
    """Return what is wrong with how a call ends; None where it answers, or refuses in one printable sentence."""
    try:
        call()
    except simnet.SimnetError as error:
        is_fine = len(str(error)) <= MAX_MESSAGE and str(error).isprintable()
        return None if is_fine else f"message {str(error)!a}"
    except Exception as error:
        return f"{type(error).__name__} {str(error)[:100]!a}"
    return None


@pytest.mark.slow
def test_whatever_is_given_in_place_of_an_argument_only_an_own_error_comes_out(
    calls: dict[str, Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some of it is the name of a file
    Path("folder").mkdir()
    tried, faults = 0, []
    for name, (function, right) in calls.items():
        for key in right:
            for title, make in WRONG.items():
                if (name, key) in LONG and title.startswith("empty "):
                    continue
                tried += 1
                fault = fault_of(lambda: function(**right | {key: make()}))  # noqa: B023 - called at once
                faults += [f"{name}: {key}: {title}: {fault}"] if fault else []
        pyplot.close("all")
    assert faults == []
    assert tried > 4_900


def test_every_argument_of_every_public_function_is_tried(calls: dict[str, Call]) -> None:
    tried = {name: set(right) for name, (_, right) in calls.items()}
    tried["validate"] |= tried["validate own"]
    functions = [name for name in simnet.__all__ if inspect.isfunction(getattr(simnet, name))]
    untried = {name: set(inspect.signature(getattr(simnet, name)).parameters) - tried[name] for name in functions}
    assert untried == {name: set() for name in functions}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ANY.simulate(BERT, draws=-1), "simulate: draws: -1: must be a whole number of at least 0"),
        (lambda: ANY.simulate(BERT, draw=0), "Did you mean 'draws'?"),
        (lambda: ANY.sweep(BERT, {NODES: 8}), "sweep: axes: 'cluster.num_nodes': 8: write a list"),
        (lambda: ANY.sweep(BERT, {NODES: [2]}, settings={NODES: [object]}), "sweep: settings: 'cluster.num_nodes'"),
        (lambda: ANY.advise(BERT, systems="BinSGD"), "advise: systems: 'BinSGD': unknown system. Did you mean"),
        (lambda: ANY.crossover(BERT, over=NODES, start=2, end=2), "crossover: start: 2: equals end"),
        (lambda: ANY.read_frame(np.array([1])), "read_frame: results: [1]: give a path"),
        (lambda: ANY.load(Path("none.toml")), "load: scenario: 'none.toml': no such file"),
        (lambda: ANY.load("none\x1b"), "load: scenario: 'none\\x1b': unknown experiment"),
        (lambda: ANY.calibrate([]), "calibrate: no files"),
        (lambda: simnet.load(BERT).replace(**{"cluster.nodes": 2}), "replace: cluster: unknown key 'nodes'"),
        (lambda: ANY.simulate(BERT, {"run.draws": 20}, draws=30), "draws: 30: has no effect with run.draws"),
        (
            lambda: ANY.simulate({"cluster": 1}),
            "simulate: scenario: {'cluster': 1}: give a name or a path, or a Scenario",
        ),
        (lambda: ANY.sweep(BERT, points=[{NODES: 2}, {"strategy": "fsdp"}]), "points[1]"),
        (lambda: ANY.sweep(simnet.load(BERT)), "nothing to sweep"),
        (lambda: ANY.time_to_target(BERT, "characters", at=[], same_task=True), "must hold a bandwidth"),
        (lambda: ANY.time_to_target(BERT, "characters", at=["1"]), "time_to_target: at: '1'"),
        (lambda: ANY.Scenario(**dict.fromkeys(("cluster", "workload", "strategy"), 1)), "Scenario: cluster: 1"),
    ],
)
def test_a_message_names_function_and_argument(call: Callable[[], object], message: str) -> None:
    with refused(message):
        call()


@pytest.mark.slow
def test_numbers_texts_and_tables_of_numpy_and_pandas_are_what_they_hold() -> None:
    scenario, rows = tiny(), pd.DataFrame({NODES: [2, 3], "workload.batch_per_rank": [8, 16]})
    nodes = ANY.sweep(scenario, {NODES: [2, 3]}).to_frame()
    for values in (np.array([2, 3]), pd.Series([2, 3]), pd.Index([2, 3]), rows[NODES].to_numpy(), range(2, 4)):
        assert ANY.sweep(scenario, {NODES: values}).to_frame().equals(nodes)
    listed = ANY.sweep(scenario, points=rows)
    assert [listed[np.int64(place)].num_nodes for place in (0, -1)] == [2, 3]
    row = ANY.simulate(scenario, rows.iloc[1], draws=np.int32(0), lost_time=np.bool_(False))
    assert row.num_nodes == 3
    assert scenario.replace(**{NODES: np.int64(3)}).cluster.num_nodes == 3
    assert ANY.crossover(scenario, over=NODES, start=np.int64(2), end=np.float64(8).astype(int)).trials


@pytest.mark.slow
def test_a_name_alone_is_a_list_of_one_and_a_path_does_where_a_file_is_meant() -> None:
    scenario = tiny()
    only = ANY.advise(scenario, systems="BinSGDM")
    assert only.systems == ANY.advise(scenario, systems=["BinSGDM"]).systems
    assert only.systems == ANY.advise(scenario, systems=np.array(["BinSGDM"])).systems
    at = ANY.time_to_target(scenario, "characters", at="10 Gbit/s", same_task=True)
    assert [one.bandwidth.text() for one in at.bandwidths] == ["10 Gbit/s"]
    assert ANY.validate(published=True, sets="hkbu_bsp").comparisons
    base = Path(ANY.load.__code__.co_filename).parents[2] / "scenarios/calibrations/a100_tcp_estimate.toml"
    assert ANY.calibrate(KERNELS, base=base, accept_poor_fit=True, bootstrap_draws=np.int64(20)).parts
    assert ANY.load(BERT, {"calibration": base}).calibration.name == base.stem
