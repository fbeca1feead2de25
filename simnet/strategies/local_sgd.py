"""Local SGD: parameters are averaged after some steps."""

from typing import ClassVar

from msgspec.structs import replace

from simnet.cluster.topology import Topology
from simnet.collectives import algorithms
from simnet.core.bounded_types import BYTES_PER_ELEMENT, Dtype
from simnet.strategies.all_reduce import HIERARCHICAL
from simnet.strategies.base import Exchange, Strategy, choose_all_reduce, register
from simnet.strategies.compressing import COPY
from simnet.strategies.local_steps import LocalStepsStrategy, OuterExchange
from simnet.strategies.program import Kernel, Program
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step

AVERAGED_COPIES = 4
"""Of all parameters, that binsgdm.LocalSGD holds at once: flat, their sum, the mean, the check that it is finite."""


@register
class LocalSGD(LocalStepsStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="local_sgd"):
    """Average all parameters after every few steps that each worker takes alone.

    Source: Stich, Local SGD, ICLR 2019, https://arxiv.org/abs/1805.09767; Lin et al., post-local SGD, ICLR 2020,
    https://arxiv.org/abs/1808.07217, which is `workers` = "node"; PeriodicModelAverager of PyTorch 2.13, which
    sends all parameters in one message.

    Attributes:
        wire_dtype: number format in which parameters travel.
    """

    title: ClassVar[str] = "local SGD"
    kernels: ClassVar[tuple[KernelCost, ...]] = (COPY,)

    wire_dtype: Dtype = "fp32"

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return it with the numbers of steps that papers keep the quality of."""
        return {f"{cls.title} {steps}": (cls(inner_steps=steps, algorithm=algorithms.AUTO),) for steps in (4, 8)}

    def trains_as(self, other: Strategy) -> bool:
        """Tell whether a training with another strategy says how one with this goes: with as many steps."""
        return isinstance(other, LocalSGD) and other.inner_steps == self.inner_steps

    def topology_variants(self) -> tuple[Strategy, ...]:
        """Return it with the fastest all-reduce that NCCL has, and with the one that sums inside the node first."""
        return (self, replace(self, algorithm=HIERARCHICAL)) if self.algorithm == algorithms.AUTO else (self,)

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds: after the optimizer's step, copies of all parameters while they are averaged."""
        held = self.held_by_worker(model, topology)
        averaged = AVERAGED_COPIES * step.num_elements * BYTES_PER_ELEMENT[self.wire_dtype]
        return replace(held, update=max(held.update, averaged))

    def program(self, step: Step, topology: Topology) -> Program:
        """Return a period of steps.

        Raises:
            SimnetError: the algorithm does not exist for this cluster.
        """
        return self.period(step, topology, self._average(step, topology), steps=self.inner_steps)

    def _average(self, step: Step, topology: Topology) -> OuterExchange:
        """Put all parameters into one message, average it, and put it back."""
        num_elements = step.num_elements
        collective, label = choose_all_reduce(
            self.algorithm, topology, num_elements * BYTES_PER_ELEMENT[self.wire_dtype]
        )
        flatten = Kernel(name=COPY.name, part="encode", num_elements=num_elements)
        exchange = Exchange((collective,), collective.message_bytes, label)
        return OuterExchange((flatten,), exchange, (replace(flatten, part="decode"),))
