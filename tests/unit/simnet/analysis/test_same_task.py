"""Curves of another model than the workload's are refused."""

import pytest

from simnet.analysis.convergence import Convergence, load
from simnet.analysis.same_task import check_same_task
from simnet.core.errors import SimnetError
from tests.helpers.time_to_target_samples import scenario, write_trainings


@pytest.fixture
def measured(tmp_path):
    def read(num_parameters: int | None) -> Convergence:
        return load(str(write_trainings(tmp_path / "t.json", num_parameters=num_parameters)))

    return read


def test_curves_of_an_unknown_model_are_refused(measured):
    with pytest.raises(SimnetError, match=r"num_parameters: missing: .* of 10,000,000 parameters; add --same-task"):
        check_same_task(measured(None), scenario())


@pytest.mark.parametrize("name", ["characters", "digits", "mnist_5k"])
def test_every_shipped_file_says_of_which_model_it_is(name):
    found = load(name)
    assert 1e3 < found.num_parameters < 1e6
    with pytest.raises(SimnetError, match="must be of the model that is simulated"):
        check_same_task(found, scenario())
