"""Full precision: what every compressing system is compared with."""

from binsgdm.comm import Protocol, RankContext
from binsgdm.compressors.aggregation import all_reduce_mean
from binsgdm.compressors.base import GradientBucket, ProtocolSystem, check_values


class Dense(ProtocolSystem):
    """The mean of the gradients, in fp32."""

    name = "dense"
    title = "full precision"
    source = "PyTorch DDP, Li et al., VLDB 2020"
    wire_format = "gradients in fp32"
    aggregation = "all_reduce"
    topologies = ("all_reduce",)

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Return the mean over all ranks; see `binsgdm.compressors.base.Averager`."""
        check_values(self.name, bucket.values, bucket.shapes)
        return (yield from all_reduce_mean(bucket.values, context))
