"""What a result is sensitive to, in words."""

from typing import Any

from msgspec.structs import replace

from simnet.analysis.tune import compared
from simnet.engine.result import Influence
from simnet.engine.scenario import load
from simnet.report import result_page


def test_a_sentence_names_the_end_that_changes_most() -> None:
    result = compared(load("bert_base_10gbit", {"run.draws": 20}))

    def told(key: str, interval: tuple[float, float], values: tuple[float, float], **changes: Any) -> str:
        one = Influence(key=key, interval=interval, values=values)
        return result_page.sensitivity_sentence(replace(result, sensitive_to=(one,), **changes))

    links, kernel = "calibration.inter_node.efficiency", "calibration.kernels.{}.time_per_element"
    for key, interval, values, said in (
        ("calibration.codec_efficiency", (0.25, 4.0), (2.0, 6.0), "encode and decode (2.00x if 4 times slower)"),
        (links, (0.5, 2.0), (4.0, 20.0), "links between nodes (20.0x if 2 times faster)"),
        (links, (1.0, 1.04), (4.9, 9.0), "links between nodes (9.00x if 1.04 times faster)"),
        ("workload.compute", (1.0, 1.4), (4.9, 7.0), "compute (7.00x if 1.4 times as long)"),
        (kernel.format("compress"), (0.9, 3.0), (4.9, 7.0), "kernel compress (7.00x if 3 times as long)"),
        (kernel.format("\x1b[31mx"), (0.9, 3.0), (4.9, 7.0), "kernel ?[31mx (7.00x if 3 times as long)"),
        (
            "calibration.libraries.mpi.poll_cost",
            (0.9, 3.0),
            (4.9, 7.0),
            "poll cost of mpi (7.00x if 3 times as long)",
        ),
    ):
        assert told(key, interval, values) == said
    alone = told("workload.compute", (1.0, 2.0), (0.08, 0.15), baseline=None, speedup=None)
    assert alone == "compute (150 ms if 2 times as long)"
