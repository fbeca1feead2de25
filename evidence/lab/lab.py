"""A lab as a context: created on entering, removed on leaving; launches and bandwidths change inside."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from evidence.lab import cables, machine, plan, ranks
from evidence.lab.cpu_quota import CpuQuotas
from evidence.lab.owner import Owner
from evidence.lab.plan import LabSpec
from evidence.lab.ranks import LaunchResult
from evidence.lab.signals import defer_signals, raise_on_signal
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth


class Lab:
    """Nodes on this machine for the duration of a `with` block; a process has one at a time.

    Entering first removes the labs of processes that have ended. In the main thread the first Ctrl-C, SIGTERM or SIGHUP
    raises inside the block, so that leaving the block cleans up; later signals are ignored until then.

    Attributes:
        removed: owners of the labs that entering has removed.

    Example:
        with Lab(LabSpec(num_nodes=4, bandwidth=Bandwidth.parse("1 Gbit/s"))) as lab:
            outcome = lab.launch(["python", "train.py"], timeout_s=300)
            lab.shape(Bandwidth.parse("200 Mbit/s"))
            slower = lab.launch(["python", "train.py"], timeout_s=300)
    """

    def __init__(self, spec: LabSpec) -> None:
        self.spec = spec
        self.removed: list[Owner] = []
        self._prefix = ""
        self._num_launches = 0
        self._quotas: CpuQuotas | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Create the nodes and the network."""
        machine.check()
        self.removed = machine.remove_abandoned()
        owner = Owner.this_process()
        if owner in machine.namespaces():
            raise SimnetError("lab: this process has one already: leave it first, or use another process")
        self._prefix = owner.prefix
        with ExitStack() as stack:
            stack.enter_context(raise_on_signal())
            # Registered before anything is created: a command that fails halfway leaves nothing behind.
            stack.callback(defer_signals()(machine.remove_lab), owner)
            if self.spec.cores_per_rank is not None:
                self._quotas = CpuQuotas(self._prefix, [self.spec.cores_per_rank] * self.spec.world_size)
            for command in plan.create_commands(self.spec, self._prefix):
                machine.run_command(command)
            if self.spec.latency > 0:
                stack.enter_context(cables.laid(self.spec, self._prefix))
            # All commands succeeded: from here on `__exit__` cleans up.
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove all nodes, with every process that still runs in one."""
        self._stack.close()

    def shape(self, bandwidth: Bandwidth | None, nodes: Sequence[int] | None = None) -> None:
        """Set the bandwidth of NICs in each direction, from now on and also while ranks run; None removes the limit.

        Args:
            bandwidth: of each.
            nodes: whose NICs; by default all, spare nodes too.

        Raises:
            SimnetError: the bandwidth is below 1 Mbit/s, or the kernel refuses it.
        """
        shaped = range(self.spec.all_nodes) if nodes is None else nodes
        for command in plan.shape_commands(shaped, self._prefix, bandwidth, self.spec.bandwidth):
            machine.run_command(command)

    def set_cores(self, rank: int, cores: float) -> None:
        """Set the part of a core that a rank may use, from now on and also while it runs.

        Raises:
            SimnetError: the lab sets no limits (`cores_per_rank`), or the part is too small.
        """
        if self._quotas is None:
            raise SimnetError("lab: cores of a rank: need a lab that limits them; give cores_per_rank")
        self._quotas.set_cores(rank, cores)

    @contextmanager
    def running(self, node: int, command: Sequence[str]) -> Iterator[None]:
        """Run a program on a node beside the ranks, silently, and end it on leaving."""
        check_command(command)
        inside = (*plan.inside(self._prefix, node), *command)
        with machine.started(inside, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            yield

    def launch(
        self, command: Sequence[str], *, timeout_s: float | None = None, show_rank_0: bool = False
    ) -> LaunchResult:
        """Run a command as every rank, with the environment that torchrun gives, and wait for all.

        The first rank that fails ends the others. Ranks die with the thread that started them (PR_SET_PDEATHSIG), so
        the calling thread must outlive the launch.

        Args:
            command: program and arguments, run without a shell.
            timeout_s: seconds after which all ranks are stopped; None waits for ever.
            show_rank_0: let rank 0 write to this process's stdout and stderr instead of into the result.
        """
        check_command(command)
        cores = machine.usable_cores() if self.spec.pins_cores else ()
        quotas = self._quotas.entries() if self._quotas else ()
        plans = plan.rank_plans(self.spec, self._prefix, command, self._num_launches, cores, quotas)
        self._num_launches += 1
        return ranks.run(plans, timeout_s=timeout_s, show_rank_0=show_rank_0)


def check_command(command: Sequence[str]) -> None:
    """Check that a command starts with a program."""
    if not command:
        raise SimnetError("lab: no command; write it after --, such as -- python train.py")
    if shutil.which(command[0]) is None:
        raise SimnetError(f"lab: {command[0]!r}: no executable program on the PATH; install it, or give its path")
