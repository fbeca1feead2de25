"""`simnet record`: the command of `binsgdm.recording`."""

from simnet.commands.of_binsgdm import adopted

command = adopted("binsgdm.recording.command", "record")
