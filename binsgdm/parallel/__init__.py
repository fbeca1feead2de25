"""Join an optimizer or a system to DDP and FSDP2."""
