"""A lab while it is there: made on entering, shaped and launched on inside, removed on leaving."""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from simnet.errors import SimnetError
from simnet.lab import machine, plan, ranks
from simnet.lab.owner import Owner
from simnet.lab.plan import LabSpec
from simnet.lab.ranks import LaunchResult
from simnet.lab.signals import defer_signals, raise_on_signal
from simnet.units import Bandwidth


class Lab:
    """Nodes on this machine, for the time of a `with` block; one at a time in a process.

    Entering first removes what labs of ended processes have left. In the main thread the first Ctrl-C, SIGTERM or
    SIGHUP raises inside the block, so that leaving it cleans up; those that follow are ignored until then.

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
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Make the nodes and the network.

        Raises:
            SimnetError: this machine cannot hold a lab, or this process has one already.
        """
        machine.check()
        self.removed = machine.remove_abandoned()
        owner = Owner.this_process()
        if owner in machine.namespaces():
            raise SimnetError("lab: this process has one already: leave it before the next, or use another process")
        self._prefix = owner.prefix
        with ExitStack() as stack:
            stack.enter_context(raise_on_signal())
            stack.callback(_remove, owner)
            for command in plan.create_commands(self.spec, self._prefix):
                machine.run_command(command)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove everything, with every process that is still inside a node.

        Raises:
            SimnetError: something could not be removed.
        """
        self._stack.close()

    def shape(self, bandwidth: Bandwidth | None) -> None:
        """Give every NIC another bandwidth in each direction; None leaves them unshaped.

        Raises:
            SimnetError: it is below 1 Mbit/s, or the kernel refuses it.
        """
        for command in plan.shape_commands(self.spec.num_nodes, self._prefix, bandwidth):
            machine.run_command(command)

    def launch(
        self, command: Sequence[str], *, timeout_s: float | None = None, show_rank_0: bool = False
    ) -> LaunchResult:
        """Run a command as every rank, with the environment that torchrun gives, and wait.

        The first rank that fails ends the others. To be called in a thread that outlives the launch.

        Args:
            command: program and arguments; no shell is between.
            timeout_s: seconds after which all ranks are stopped; None waits for ever.
            show_rank_0: let rank 0 write to this process's stdout and stderr instead of into the outcome.

        Raises:
            SimnetError: there is no such program.
        """
        check_command(command)
        cores = machine.usable_cores() if self.spec.pins_cores else ()
        plans = plan.rank_plans(self.spec, self._prefix, command, self._num_launches, cores)
        self._num_launches += 1
        return ranks.run(plans, timeout_s=timeout_s, show_rank_0=show_rank_0)


def check_command(command: Sequence[str]) -> None:
    """Check that a command names a program.

    Raises:
        SimnetError: it is empty, or there is no such program.
    """
    if not command:
        raise SimnetError("lab: no command: write it after --, such as -- python train.py")
    if shutil.which(command[0]) is None:
        raise SimnetError(f"lab: {command[0]!r}: no such program on the PATH, or it is not executable")


def _remove(owner: Owner) -> None:
    with defer_signals():
        names = machine.namespaces().get(owner, [])
        machine.remove_namespaces(names)
