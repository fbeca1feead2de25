"""The one form of a result: what is none is refused."""

import json

import pytest

from simnet.core import schema
from simnet.core.errors import SimnetError
from simnet.engine.result import RunResult, to_json
from tests.helpers.report_samples import run_result


@pytest.mark.parametrize(
    ("key", "value"), [("world_size", 7), ("speedup", 0.0), ("result", {}), ("intervals", {"speedup": [1.0]})]
)
def test_what_no_figure_can_be_drawn_of_is_refused_wherever_it_is_read(key: str, value: object) -> None:
    data = json.loads(to_json(run_result().without_spans())) | {key: value}
    with pytest.raises(SimnetError, match=f"^result: .*{key}"):
        schema.decode(RunResult, json.dumps(data).encode(), "result")
