"""What a result is sensitive to, in words."""

import pytest
from msgspec.structs import replace

from simnet.engine.result import Influence, RunResult
from simnet.engine.scenario import load
from simnet.engine.simulation import simulate
from simnet.report import influences


@pytest.fixture(scope="module")
def result() -> RunResult:
    found = simulate(load("bert_base_10gbit", {"run.draws": 20}))
    return replace(found, hangs_on=(influence("calibration.codec_efficiency", (0.25, 4.0), (5.0, 11.0)),))


def influence(key: str, interval: tuple[float, float], values: tuple[float, float]) -> Influence:
    return Influence(key=key, interval=interval, values=values)


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (influence("calibration.codec_efficiency", (0.25, 4.0), (5.0, 11.0)), "if the codec is 4 times slower: 5.00x"),
        (
            influence("calibration.inter_node.efficiency", (0.5, 2.0), (10.0, 20.0)),
            "if links between nodes are 2 times faster: 20.0x",
        ),
        (
            influence("calibration.inter_node.efficiency", (1.0, 1.04), (10.4, 9.0)),
            "if links between nodes are 1.04 times faster: 9.00x",
        ),
        (
            influence("workload.compute", (1.0, 1.4), (10.4, 7.0)),
            "if compute takes 1.4 times as long: 7.00x",
        ),
        (
            influence("calibration.kernels.compress.time_per_element", (0.9, 3.0), (10.4, 7.0)),
            "if kernel compress takes 3 times as long: 7.00x",
        ),
        (
            influence("calibration.libraries.mpi.poll_cost", (0.9, 3.0), (10.4, 7.0)),
            "if poll cost of mpi takes 3 times as long: 7.00x",
        ),
    ],
)
def test_a_sentence_names_the_end_that_changes_most(result: RunResult, one: Influence, told: str) -> None:
    assert influences.sentence(replace(result, hangs_on=(one,))) == told


def test_a_time_is_told_where_there_is_no_speedup(result: RunResult) -> None:
    alone = replace(
        result, baseline=None, speedup=None, hangs_on=(influence("workload.compute", (1.0, 2.0), (0.08, 0.15)),)
    )
    assert influences.sentence(alone) == "if compute takes 2 times as long: 150 ms"


def test_a_name_of_a_user_steers_no_terminal(result: RunResult) -> None:
    one = influence("calibration.kernels.\x1b[31mx.time_per_element", (0.5, 2.0), (5.0, 11.0))
    assert "\x1b" not in influences.sentence(replace(result, hangs_on=(one,)))
