"""Cables with a latency between nodes and switch: a small program in C, since not every kernel has netem."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evidence.lab import machine, plan
from evidence.lab.plan import LabSpec
from simnet.core.errors import SimnetError

SOURCE = Path(__file__).with_name("cable.c")
COMPILER = "cc"


@contextmanager
def laid(spec: LabSpec, prefix: str) -> Iterator[None]:
    """Compile `cable.c`, and run it between the nodes and the switch of a lab that was just created."""
    if shutil.which(COMPILER) is None:
        raise SimnetError(f"lab: latency: {COMPILER!r}: not on the PATH; install a C compiler, such as gcc")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "cable")
        built = subprocess.run(
            (COMPILER, "-O2", "-o", program, SOURCE),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise SimnetError(f"lab: latency: {SOURCE.name} does not compile: {' '.join(built.stderr.split())[:500]}")
        nodes = [plan.node_name(prefix, node) for node in range(spec.all_nodes)]
        command = (str(program), str(round(spec.latency * 1e9)), plan.switch_name(prefix), *nodes)
        with machine.started(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            if line != "ready":
                raise SimnetError(
                    f"lab: latency: {line or 'no TAP device'}: needs root and a kernel with TUN and TAP devices"
                )
            yield
