"""The strategies: what an iteration does with its gradients, as a scenario names it.

Those that compress gradients carry the names and options of `binsgdm.compressors.registry`.
"""

from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct, field

from simnet.units import Bandwidth, Duration, Size
from simnet.values import Count, Dtype

Algorithm = Literal["auto", "ring", "tree", "halving_doubling", "hierarchical"]
Ratio = Annotated[float, Meta(gt=0.0, le=1.0)]


class DenseStage(NamedTuple):
    """Iterations without compression: what they do, and how many of a training's steps they are."""

    strategy: "AllReduce"
    steps: int


class Planner(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a merging rule believes an all-reduce to take: `start_up` + bytes / `bandwidth`, right or wrong."""

    start_up_s: Duration = field(name="start_up")
    bytes_per_s: Bandwidth = field(name="bandwidth")
    source: str = ""

    def __post_init__(self) -> None:
        if self.bytes_per_s < 1:
            raise ValueError(f"bandwidth: {self.bytes_per_s.text()!r}: must be at least 1 B/s")


class Strategy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """How gradients are bucketed, and whether their exchange overlaps backward.

    `bucketing`: "ddp" closes a bucket when its gradients reach `bucket_cap` (PyTorch's rule; without a `bucket_cap`
    its default, a first bucket of 1 MiB and then 25 MiB), "per_tensor" one bucket a tensor, "fused" one bucket of all,
    "mg_wfbp" merges tensors where the start-up cost of an all-reduce outweighs waiting (Shi et al. 2019), as `planner`
    believes that cost to be, or as it is.
    """

    bucketing: Literal["ddp", "per_tensor", "fused", "mg_wfbp"] = "ddp"
    bucket_cap: Size | None = None
    overlap: bool = True
    planner: Planner | None = None

    def __post_init__(self) -> None:
        if self.planner is not None and self.bucketing != "mg_wfbp":
            raise ValueError(f"planner: has no effect with bucketing {self.bucketing!r}; drop one of them")
        if self.bucket_cap is not None and self.bucketing != "ddp":
            raise ValueError(f"bucket_cap: has no effect with bucketing {self.bucketing!r}; drop one of them")
        if self.bucket_cap is not None and self.bucket_cap < 1:
            raise ValueError(f"bucket_cap: {self.bucket_cap.text()!r}: must be at least 1 B")

    def dense_stage(self, steps: int | None) -> DenseStage | None:  # noqa: ARG002
        """Return the iterations without compression of a training of so many steps; None if there never are any."""
        return None


class AllReduce(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="all_reduce"):
    """Average gradients without compression, as DDP does, sent as `payload` numbers (default: as they are)."""

    payload: Dtype | None = None
    algorithm: Algorithm = "ring"


class BinSGDM(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="binsgdm"):
    """Average 1-bit updates; hierarchical: reduce-scatter in the node, 1 bit between nodes, all-gather in the node.

    `average` says what is averaged in the node: the ranks' updates m / b, or their gradients, of which the node then
    has one pair of momenta, each rank its slice. `agreement` is the all-reduce of a few bytes after the last bucket, in
    which all ranks agree that the step counts before parameters move.
    """

    topology: Literal["hierarchical", "flat"] = "hierarchical"
    intra: Literal["fp32", "fp16", "bf16", "one_bit"] | None = None
    average: Literal["updates", "gradients"] = "updates"
    agreement: Algorithm = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topology == "flat" and self.intra is not None:
            raise ValueError("intra: has no effect with topology 'flat'; drop one of them")
        if self.average == "gradients" and (self.topology == "flat" or self.intra == "one_bit"):
            raise ValueError(
                "average: gradients are averaged with topology 'hierarchical' and intra of 16 or 32 bits only"
            )


class OneBitAdam(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="one_bit_adam"):
    """Exchange error-compensated 1-bit momentum over all ranks after backward (Tang et al. 2021), after a dense stage.

    `topology` "hierarchical", of this project, averages momenta in the node in fp32 first. `agreement`: before the
    exchange all ranks gather a byte for the step and one for each tensor, to agree that the step counts, as `binsgdm`
    does and DeepSpeed does not. `dense` is, if not given, one all-reduce of all gradients after backward, as `binsgdm`
    does it. `iteration_s` is that of the compression stage; with `run.steps` the end-to-end time counts `dense_steps`
    at the time of an iteration with `dense`.
    """

    topology: Literal["flat", "hierarchical"] = "flat"
    agreement: bool = True
    dense_steps: Annotated[int, Meta(ge=0)] = 0
    dense: AllReduce = AllReduce(bucketing="fused", overlap=False)
    bucketing: Literal["ddp", "per_tensor", "fused", "mg_wfbp"] = "fused"
    overlap: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap or self.bucketing != "fused":
            raise ValueError("overlap: 1-bit Adam exchanges one fused momentum after backward; drop this key")

    def dense_stage(self, steps: int | None) -> DenseStage:  # noqa: ARG002
        """Return the first steps."""
        return DenseStage(self.dense, self.dense_steps)


class Compressing(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the systems that compress gradients share: encode a bucket, exchange, decode."""


class Quantizing(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Levels of the norm of a block; codes of `bits` bits, packed, and an fp32 norm a block.

    With `coding` "elias" the length depends on the values: `coded_bits` is what was measured per element, and a gather
    of the lengths comes before that of the payloads.
    """

    bits: Annotated[int, Meta(ge=2, le=8)] = 4
    block_size: Annotated[int, Meta(ge=1, le=1_048_576)] = 8192
    coding: Literal["packed", "elias"] = "packed"
    coded_bits: Annotated[float, Meta(gt=0.0, le=64.0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.coding == "elias") != (self.coded_bits is not None):
            if self.coded_bits is None:
                raise ValueError("coded_bits: missing; coding 'elias' needs what was measured, in bits per element")
            raise ValueError(f"coded_bits: {self.coded_bits}: has no effect with coding {self.coding!r}; drop it")


class QSGD(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="qsgd"):
    """QSGD with the L2 norm (Alistarh et al., NeurIPS 2017): unbiased, gathered by all."""


class QSGDInf(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="qsgd_inf"):
    """QSGD with the maximum norm."""


class NUQSGD(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="nuqsgd"):
    """QSGD with levels 1, 1/2, 1/4 and so on of the norm (Ramezani-Kebrya et al., JMLR 2021)."""

    bits: Annotated[int, Meta(ge=2, le=7)] = 4
    with_zero: bool = True


class SignSGD(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="sign_sgd"):
    """SignSGD with majority vote (Bernstein et al., ICML 2018): one bit an element each way, each rank counts some."""


class EFSignSGD(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ef_sign_sgd"):
    """EF-SignSGD (Karimireddy et al., ICML 2019): signs and the mean magnitude of what shares it, gathered by all."""

    scale_per: Literal["tensor", "bucket"] = "tensor"


class OneBitSGD(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="one_bit_sgd"):
    """1-bit SGD (Seide et al., Interspeech 2014): signs and two means a column of each matrix, gathered by all."""


class TernGrad(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="terngrad"):
    """TernGrad (Wen et al., NeurIPS 2017): five elements a byte and a scale a tensor, gathered by all."""


class Sparsifying(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keep a `ratio` of each bucket's elements, or `k` of them."""

    ratio: Ratio | None = None
    k: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.ratio is None) == (self.k is None):
            raise ValueError("ratio: give either ratio or k")

    def num_kept(self, num_elements: float) -> float:
        """Return how many of a bucket's elements travel."""
        wanted = float(self.k) if self.k is not None else max(1.0, round((self.ratio or 0.0) * num_elements))
        return min(wanted, num_elements)


class TopK(Sparsifying, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="top_k"):
    """Values of largest magnitude with their indices, gathered by all."""


class MSTopK(Sparsifying, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ms_top_k"):
    """The same found by counting instead of sorting (Shi et al., MLSys 2021)."""


class RandomK(Sparsifying, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="random_k"):
    """Values that all ranks draw alike, added up by an all-reduce; unbiased, or with error feedback."""

    unbiased: bool = False
    algorithm: Algorithm = "ring"


class LowRank(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thin factors of each matrix, and the other tensors as they are, averaged by all-reduces."""

    matrix_rank: Annotated[int, Meta(ge=1, le=65_536)] = 4
    algorithm: Algorithm = "ring"


class PowerSGD(LowRank, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="power_sgd"):
    """PowerSGD (Vogels et al., NeurIPS 2019): two all-reduces a bucket, the second waits for the first."""


class GradZip(LowRank, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="grad_zip"):
    """GradZip (Cho et al., NeurIPS 2019 workshop): one factor a step; the mean of the two turns is simulated."""


class Atomo(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="atomo"):
    """ATOMO on singular vectors (Wang et al., NeurIPS 2018): `budget` triplets a matrix on average, gathered by all."""

    budget: Annotated[float, Meta(gt=0.0, le=65_536.0)] = 3.0


class Marsit(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="marsit"):
    """Marsit (Wu et al., DAC 2022): one bit an element on every hop of a ring, or of the rings of a torus.

    `scale` is what a sign stands for (none: the mean magnitude, which ranks gather in either case). Every `sync_period`
    steps all average in full precision (none: never). `iteration_s` is that of a 1-bit step; with `run.steps` the
    end-to-end time counts those of full precision.
    """

    sync_period: Count | None = 100
    torus: bool = False
    scale: Annotated[float, Meta(gt=0.0)] | None = None

    def dense_stage(self, steps: int | None) -> DenseStage | None:
        """Return every `sync_period`-th step."""
        if self.sync_period is None:
            return None
        dense = AllReduce(
            algorithm="hierarchical" if self.torus else "ring",
            bucketing=self.bucketing,
            bucket_cap=self.bucket_cap,
            overlap=self.overlap,
            planner=self.planner,
        )
        return DenseStage(dense, (steps or 0) // self.sync_period)


AnyCompressing = (
    QSGD | QSGDInf | NUQSGD | SignSGD | EFSignSGD | OneBitSGD | TernGrad | TopK | MSTopK | RandomK | PowerSGD | GradZip
    | Atomo | Marsit
)  # fmt: skip
AnyStrategy = AllReduce | BinSGDM | OneBitAdam | AnyCompressing
