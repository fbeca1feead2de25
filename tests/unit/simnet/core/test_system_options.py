"""Options of a system are values."""

import tomllib

import pytest

from simnet.cluster.hardware import Calibration
from simnet.core.system_options import SystemOptions
from simnet.engine.scenario import RawScenario, build, to_dict
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import pod

TABLE = '[kernels.qsgd_encode]\ntime_per_element = "1 ns"\noptions = {options}\n'


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
    data = {"name": "mine", **tomllib.loads(TABLE.format(options=options))}
    with refused(start=f"mine.toml: kernels.qsgd_encode.options: {said}"):
        RawScenario(data=data, origins={(): "mine.toml"}).converted(Calibration)


def test_a_resolved_scenario_keeps_the_table() -> None:
    table = tomllib.loads(TABLE.format(options="{ bits = 4, block_size = 8192, warm = true }"))
    made = build(pod(calibration=table))
    plain = to_dict(made)
    assert plain["calibration"]["kernels"]["qsgd_encode"]["options"] == {"bits": 4, "block_size": 8192, "warm": True}
    assert build(plain) == made
    assert SystemOptions.parse({"bits": 4, "k": None, "warm": True}).text() == "bits=4 k=none warm=true"
