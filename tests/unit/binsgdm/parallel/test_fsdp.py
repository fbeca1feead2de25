"""Groups of the ranks that hold the same shard: one of each node, which exchange as if there were nothing else."""

from datetime import timedelta
from typing import Any

from tests.helpers.needs import needs

needs("torch")

from binsgdm.comm.groups import Groups
from binsgdm.parallel.fsdp import of_same_shard


def test_ranks_of_the_same_shard_are_one_a_node_and_a_step_counts_on_all_ranks() -> None:
    world, intra_node, inter_node = ("all", "of this node", "of this shard")
    kept: Any = {"made": (world, intra_node, inter_node), "uses_nccl": False, "timeout": timedelta(seconds=7)}
    whole: Any = {"world": world, "intra_node": intra_node, "inter_node": inter_node, "rank": 5, "world_size": 6}
    made = of_same_shard(Groups(**whole, ranks_per_node=2, ranks=(2, 3, 6, 7, 10, 11), **kept))
    found: Any = {"world": inter_node, "intra_node": inter_node, "inter_node": inter_node, "rank": 2, "world_size": 3}
    assert made == Groups(**found, ranks_per_node=1, ranks=(3, 7, 11), finite_check=world, **kept)
