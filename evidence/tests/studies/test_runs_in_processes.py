"""A run of a study with a process for each rank: the same batches and evaluations as with all ranks in one process."""

from dataclasses import replace

import pytest

from tests.helpers.needs import needs

needs("torch", "sklearn")

from torch.multiprocessing import ProcessRaisedException

from evidence.studies.run import Run, perform

ADAM = Run(
    study="margins", task="digits", system="dense", trial={"optimizer": "adam", "lr": 7e-3}, ranks=2, steps=30, seed=3
)


@pytest.mark.slow
def test_binsgdm_learns_on_nodes_of_two_ranks() -> None:
    # What is the optimizer's and what is of attach may stand in either.
    trial = {"optimizer": "binsgdm", "lr": 4e-3, "beta": 0.95, "gain": 1.5, "average": "gradients"}
    options = {"intra_node_dtype": "bf16", "rounding": "shaped"}
    run = replace(ADAM, system="binsgdm", trial=trial, options=options, ranks_per_node=2, in_processes=True)
    assert perform(run)["values"][0] < 2.0  # a guess has 2.3


def test_a_rank_that_fails_says_why() -> None:
    with pytest.raises(ProcessRaisedException, match="runs with all ranks in one process only"):
        perform(replace(ADAM, system="top_k", in_processes=True))
