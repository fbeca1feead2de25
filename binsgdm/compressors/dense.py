"""No compression: what every compressing system is compared with."""

from typing import Literal, get_args

import torch

from binsgdm.comm import AllReduceSum, Protocol, RankContext
from binsgdm.compressors.base import GradientBucket, ProtocolSystem, check_choice, check_values
from binsgdm.compressors.compressor import all_reduce_mean

Dtype = Literal["fp32", "bf16"]


class Dense(ProtocolSystem):
    """The mean of the gradients.

    With topology "hierarchical" each rank of a node averages a piece of the bucket between nodes, so that a node sends
    as many bytes as one rank would: what NCCL's rings do not where several ranks share a NIC.

    Args:
        dtype: of what the all-reduce sends: fp32, or bf16 as torch's `bf16_compress_hook` does, which divides first.
    """

    name = "dense"
    title = "full precision"
    source = "PyTorch DDP, Li et al., VLDB 2020"
    wire_format = "gradients in fp32 or bf16"
    aggregation = "all_reduce"
    topologies = ("all_reduce", "hierarchical")

    def __init__(self, *, dtype: Dtype = "fp32") -> None:
        check_choice(f"{self.name}: dtype", dtype, get_args(Dtype))
        self._is_rounded = dtype == "bf16"

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Return the mean over all ranks; see `binsgdm.compressors.base.Averager`."""
        check_values(self.name, bucket.values, bucket.shapes)
        if not self._is_rounded:
            return (yield from all_reduce_mean(bucket.values, context))
        parts = bucket.values.to(torch.bfloat16).div_(context.world_size)
        return (yield AllReduceSum(group="world", sent=parts)).to(torch.float32)
