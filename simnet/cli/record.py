"""`simnet record`: the command of `binsgdm.recording`."""

from simnet.cli.binsgdm_commands import adopted

command = adopted("binsgdm.recording.command", "record")
