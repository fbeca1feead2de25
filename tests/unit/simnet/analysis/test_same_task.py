"""Curves of another model than the workload's are refused."""

import pytest

from simnet.analysis.convergence import Convergence, load
from simnet.analysis.same_task import check_same_task, is_same_task
from simnet.core.errors import SimnetError
from tests.helpers.time_to_target_samples import NUM_PARAMETERS, scenario, write_trainings


@pytest.fixture
def measured(tmp_path):
    def read(num_parameters: int | None) -> Convergence:
        return load(str(write_trainings(tmp_path / "t.json", num_parameters=num_parameters)))

    return read


@pytest.mark.parametrize(("factor", "is_same"), [(1, True), (1.04, True), (0.96, True), (1.06, False), (0.94, False)])
def test_a_model_is_known_by_its_number_of_parameters(factor, is_same, measured):
    assert is_same_task(measured(round(factor * NUM_PARAMETERS)), scenario()) == is_same


def test_curves_of_a_smaller_model_are_refused_in_a_sentence_with_the_repair(measured):
    with pytest.raises(SimnetError) as caught:
        check_same_task(measured(121_153), scenario())
    for said in ("a made-up task: ", "121,153 parameters", "10,000,000 parameters", "--same-task"):
        assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_curves_of_an_unknown_model_are_refused(measured):
    with pytest.raises(SimnetError, match=r"num_parameters: missing: .* of 10,000,000 parameters; add --same-task"):
        check_same_task(measured(None), scenario())


@pytest.mark.parametrize("name", ["characters", "digits", "mnist_5k"])
def test_every_shipped_file_says_of_which_model_it_is(name):
    found = load(name)
    assert 1e3 < found.num_parameters < 1e6
    with pytest.raises(SimnetError, match="must be of the model that is simulated"):
        check_same_task(found, scenario())
