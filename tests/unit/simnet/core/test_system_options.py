"""Options of a system are values."""

import tomllib

import pytest

from simnet.cluster.hardware import Calibration
from simnet.core.errors import SimnetError
from simnet.core.system_options import SystemOptions
from simnet.engine.raw_scenario import RawScenario
from simnet.engine.scenario import build, to_dict

TABLE = '[kernels.qsgd_encode]\ntime_per_element = "1 ns"\noptions = {options}\n'
OPTIONS = "{ bits = 4, block_size = 8192, warm = true }"


def calibration(options: str) -> Calibration:
    data = {"name": "mine", **tomllib.loads(TABLE.format(options=options))}
    return RawScenario(data=data, origins={(): "mine.toml"}).converted(Calibration)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("4", "4: write a table of options, such as { bits = 4 }"),
        ('"bits=4"', "'bits=4': write a table of options, such as { bits = 4 }"),
        ("{ bits = [4] }", "bits: [4]: an option is a number, true, false or text"),
        ("{ bits = nan }", "bits: nan: must be finite"),
        ("{ bits = -inf }", "bits: -inf: must be finite"),
    ],
)
def test_what_is_no_table_of_plain_values_is_refused(options: str, said: str) -> None:
    with pytest.raises(SimnetError) as refused:
        calibration(options)
    assert str(refused.value) == f"mine.toml: kernels.qsgd_encode.options: {said}"


def test_a_resolved_scenario_keeps_the_table() -> None:
    link = {"bandwidth": "25 Gbit/s", "latency": "5 us"}
    times = {"forward": "1 ms", "backward": "2 ms", "optimizer": "1 ms"}
    made = build(
        {
            "cluster": {"num_nodes": 2, "ranks_per_node": 1, "intra_node": link, "inter_node": link},
            "workload": {"gradient": "4 MB", **times},
            "strategy": "all_reduce",
            "calibration": tomllib.loads(TABLE.format(options=OPTIONS)),
        }
    )
    plain = to_dict(made)
    assert plain["calibration"]["kernels"]["qsgd_encode"]["options"] == {"bits": 4, "block_size": 8192, "warm": True}
    assert build(plain) == made


def test_text_for_people() -> None:
    assert SystemOptions.parse({"bits": 4, "k": None, "warm": True}).text() == "bits=4 k=none warm=true"
