"""ZeRO-2: gradients and the state of the optimizer are sharded, parameters are not."""

from typing import ClassVar

from simnet.strategies.base import register
from simnet.strategies.sharded_update import ShardedUpdate


@register
class Zero2(ShardedUpdate, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="zero2"):
    """Shard gradients and the optimizer's state over all ranks (ZeRO-2): every micro-batch scatters its gradients.

    Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020,
    https://arxiv.org/abs/1910.02054, section 5; DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py, for what waits
    at the end of a backward. Differs: DeepSpeed shares out all parameters as one array, so that a bucket goes to the
    one or two ranks that own it; here each rank owns a part of every bucket, as in Megatron's distributed optimizer.
    """

    title: ClassVar[str] = "ZeRO-2"
    reduces_every_micro_batch: ClassVar[bool] = True
