"""Full precision: what every compressing system is compared with."""

from binsgdm.exchange import Protocol, RankContext
from binsgdm.systems.base import GradientBucket, ProtocolSystem, check_values
from binsgdm.systems.carriers import reduced_mean


class Dense(ProtocolSystem):
    """The mean of the gradients, in fp32."""

    name = "dense"
    title = "full precision"
    source = "PyTorch DDP, Li et al., VLDB 2020"
    travels = "gradients in fp32"
    carrier = "all_reduce"

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Return the mean over all ranks; see `binsgdm.systems.base.End`."""
        check_values(self.name, bucket.values, bucket.shapes)
        return (yield from reduced_mean(bucket.values, context))
