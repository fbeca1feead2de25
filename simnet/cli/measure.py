"""`simnet measure`: the commands of `binsgdm.measure`."""

from simnet.commands.of_binsgdm import adopted

command = adopted("binsgdm.measure.command", "measure")
