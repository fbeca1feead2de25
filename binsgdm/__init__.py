"""BinSGDM, a 1-bit optimizer, with its hierarchical 1-bit all-reduce on torch.distributed.

optimizer = binsgdm.BinSGDM(model.parameters(), lr=7e-4, weight_decay=0.01)  # 0.7 times Adam's lr
binsgdm.attach(optimizer, model)

BinSGDM: the optimizer. attach: lets it exchange signs with all ranks. attach_fsdp: the same for parameters that FSDP2
shards. detach: undoes both. compress_replicas: any optimizer of such parameters, with a system between nodes. LocalSGD,
DiLoCo: any optimizer, with an exchange after some steps. check_replicas: compares all ranks. BinsgdmError: what they
raise. PAPER: settings of the paper's form. record: notes what training steps send, for simnet.
help(binsgdm.attach) and so on says more.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from binsgdm.comm.replicas import check_replicas
    from binsgdm.errors import BinsgdmError
    from binsgdm.optimizers.binsgdm import BinSGDM
    from binsgdm.optimizers.diloco import DiLoCo
    from binsgdm.optimizers.local_sgd import LocalSGD
    from binsgdm.optimizers.settings import PAPER
    from binsgdm.parallel.compressed_replicas import compress_replicas
    from binsgdm.parallel.ddp import attach, detach
    from binsgdm.parallel.fsdp import attach_fsdp
    from binsgdm.recording.recording import record

__all__ = [
    "PAPER", "BinSGDM", "BinsgdmError", "DiLoCo", "LocalSGD", "attach", "attach_fsdp", "check_replicas",
    "compress_replicas", "detach", "record",
]  # fmt: skip

_HOMES = {
    "PAPER": "binsgdm.optimizers.settings",
    "BinSGDM": "binsgdm.optimizers.binsgdm",
    "BinsgdmError": "binsgdm.errors",
    "DiLoCo": "binsgdm.optimizers.diloco",
    "LocalSGD": "binsgdm.optimizers.local_sgd",
    "attach": "binsgdm.parallel.ddp",
    "attach_fsdp": "binsgdm.parallel.fsdp",
    "check_replicas": "binsgdm.comm.replicas",
    "compress_replicas": "binsgdm.parallel.compressed_replicas",
    "detach": "binsgdm.parallel.ddp",
    "record": "binsgdm.recording.recording",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import binsgdm` works without torch."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'binsgdm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
