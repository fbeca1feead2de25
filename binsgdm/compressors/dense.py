"""Full precision: what every compressing system is compared with."""

from collections.abc import Mapping
from typing import Any, ClassVar

from binsgdm.compressors.base import GradientBucket, check_values
from binsgdm.compressors.carriers import reduced_mean
from binsgdm.compressors.feedback import check_stateless
from binsgdm.exchange import Conversation, Place


class Dense:
    """The mean of the gradients, in fp32."""

    name: ClassVar[str] = "dense"

    def mean(self, bucket: GradientBucket, place: Place) -> Conversation:
        """Return the mean over all ranks; see `binsgdm.compressors.base.System`."""
        check_values(self.name, bucket.values, bucket.shapes)
        return (yield from reduced_mean(bucket.values, place))

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take nothing."""
        check_stateless(self.name, state)
