"""The strategies: what an iteration does with its gradients, one file a family.

Those that compress gradients carry the names and options of `binsgdm.compressors`. Other packages add theirs by
`STRATEGIES.register`, or by an entry point of the group `simnet.strategies`; what an author needs is here, too.
"""

from simnet.strategies.base import (
    STRATEGIES,
    AnyStrategy,
    Choices,
    DenseAllReduce,
    DenseStage,
    Exchange,
    Planner,
    Strategy,
    register,
)
from simnet.strategies.binsgdm import BinSGDM
from simnet.strategies.compressing import (
    CompressingStrategy,
    GatheredPayload,
    GatheringStrategy,
    gathering_kernel_costs,
)
from simnet.strategies.compressors import (
    NUQSGD,
    QSGD,
    Atomo,
    ByteGrad,
    EFSignSGD,
    Fp8AllReduce,
    GradZip,
    Int8AllReduce,
    Marsit,
    MSTopK,
    OneBitSGD,
    PowerSGD,
    QSGDInf,
    RandomK,
    SignSGD,
    TernGrad,
    TopK,
)
from simnet.strategies.fsdp import FullShard, HybridShard
from simnet.strategies.local_steps import DiLoCo, LocalSGD
from simnet.strategies.one_bit_adam import OneBitAdam
from simnet.strategies.recorded import RecordedStep
from simnet.strategies.zero import Zero1, Zero2
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import KernelCost

# In this order they are listed and, where equal, preferred.
for _kind in (
    *(DenseAllReduce, Zero1, Zero2, FullShard, BinSGDM, HybridShard, OneBitAdam),
    *(OneBitSGD, SignSGD, EFSignSGD, TernGrad, QSGD, QSGDInf, NUQSGD, ByteGrad, Int8AllReduce, Fp8AllReduce, Marsit),
    *(PowerSGD, GradZip, Atomo, TopK, MSTopK, RandomK, LocalSGD, DiLoCo, RecordedStep),
):
    register(_kind)

__all__ = [
    "NUQSGD",
    "QSGD",
    "STRATEGIES",
    "AnyStrategy",
    "Atomo",
    "BinSGDM",
    "Bucket",
    "ByteGrad",
    "Choices",
    "CompressingStrategy",
    "DenseAllReduce",
    "DenseStage",
    "DiLoCo",
    "EFSignSGD",
    "Exchange",
    "Fp8AllReduce",
    "FullShard",
    "GatheredPayload",
    "GatheringStrategy",
    "GradZip",
    "HybridShard",
    "Int8AllReduce",
    "KernelCost",
    "LocalSGD",
    "MSTopK",
    "Marsit",
    "OneBitAdam",
    "OneBitSGD",
    "Planner",
    "PowerSGD",
    "QSGDInf",
    "RandomK",
    "RecordedStep",
    "SignSGD",
    "Strategy",
    "TernGrad",
    "TopK",
    "Zero1",
    "Zero2",
    "gathering_kernel_costs",
    "register",
]
