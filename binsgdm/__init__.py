"""BinSGDM, a 1-bit optimizer, with its hierarchical 1-bit all-reduce on torch.distributed.

optimizer = binsgdm.BinSGDM(model.parameters(), lr=7e-4, weight_decay=0.01)  # 0.7 times Adam's lr
binsgdm.attach(optimizer, model)

BinSGDM: the optimizer. attach: lets it exchange signs with all ranks. attach_fsdp: the same for parameters that FSDP2
shards. OneBitAdam, attach_one_bit_adam: 1-bit Adam, likewise. detach: undoes all three. compress_gradients: any
optimizer under DDP, with a compressing system. compress_replicas: any optimizer of sharded parameters, with a system
between nodes. SYSTEMS: the systems by name; register: adds one. LocalSGD, DiLoCo: any optimizer, with an exchange after
some steps. check_replicas: compares all ranks. BinsgdmError: what they raise. PAPER: settings of the paper's form.
record: notes what training steps send, for simnet.
help(binsgdm.attach) and so on says more.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from binsgdm.comm.consistency import check_replicas
    from binsgdm.compressors.registry import SYSTEMS, register
    from binsgdm.errors import BinsgdmError
    from binsgdm.optimizers.binsgdm import BinSGDM
    from binsgdm.optimizers.local_steps import DiLoCo, LocalSGD
    from binsgdm.optimizers.one_bit_adam import OneBitAdam
    from binsgdm.optimizers.settings import PAPER
    from binsgdm.parallel.compressed_replicas import compress_replicas
    from binsgdm.parallel.ddp import attach, attach_one_bit_adam, detach
    from binsgdm.parallel.ddp_hook import compress_gradients
    from binsgdm.parallel.fsdp import attach_fsdp
    from binsgdm.recording.recording import record

__all__ = [
    "PAPER", "SYSTEMS", "BinSGDM", "BinsgdmError", "DiLoCo", "LocalSGD", "OneBitAdam", "attach", "attach_fsdp",
    "attach_one_bit_adam", "check_replicas", "compress_gradients", "compress_replicas", "detach", "record", "register",
]  # fmt: skip

_HOMES = {
    "PAPER": "binsgdm.optimizers.settings",
    "SYSTEMS": "binsgdm.compressors.registry",
    "BinSGDM": "binsgdm.optimizers.binsgdm",
    "BinsgdmError": "binsgdm.errors",
    "DiLoCo": "binsgdm.optimizers.local_steps",
    "LocalSGD": "binsgdm.optimizers.local_steps",
    "OneBitAdam": "binsgdm.optimizers.one_bit_adam",
    "attach": "binsgdm.parallel.ddp",
    "attach_fsdp": "binsgdm.parallel.fsdp",
    "attach_one_bit_adam": "binsgdm.parallel.ddp",
    "check_replicas": "binsgdm.comm.consistency",
    "compress_gradients": "binsgdm.parallel.ddp_hook",
    "compress_replicas": "binsgdm.parallel.compressed_replicas",
    "detach": "binsgdm.parallel.ddp",
    "record": "binsgdm.recording.recording",
    "register": "binsgdm.compressors.registry",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import binsgdm` works without torch."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'binsgdm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
