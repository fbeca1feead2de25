"""`simnet measure`: the commands of `binsgdm.bench`."""

from simnet.cli.binsgdm_commands import adopted

command = adopted("binsgdm.bench.command", "measure")
