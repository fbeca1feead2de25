"""One DDP communication hook for every system of the registry; exchanges overlap backward."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from binsgdm.comm import groups as grouping
from binsgdm.comm.arguments import check_arguments
from binsgdm.comm.models import COMPRESSED, check_group, check_hook, group_of, replicated_in
from binsgdm.comm.replicas import check_same_settings
from binsgdm.comm.transport import Sent
from binsgdm.compressors.base import Averager, Topology, check_whole
from binsgdm.compressors.registry import SYSTEMS, canonical, check_options, make
from binsgdm.compressors.topologies import IntraNodeDtype
from binsgdm.errors import BinsgdmError
from binsgdm.parallel.gradient_exchange import GradientExchange, exchange_bucket


def compress_gradients(  # noqa: PLR0913
    model: DistributedDataParallel,
    system: str,
    *,
    seed: int = 0,
    topology: Topology | None = None,
    intra_node_dtype: IntraNodeDtype | None = None,
    ranks_per_node: int | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    on_sent: Callable[[Sent], None] | None = None,
    **options: Any,
) -> "GradientExchange":
    """Let a system average the gradients of a DDP model during backward; its ranks must call it before the first.

    Gradients are whatever the system makes of them: with "sign_sgd" they are +1 and -1. They are computed in fp32 and
    given back in their own dtype. A gradient that is not finite makes those of its bucket (or of its tensor, or block)
    not finite on every rank alike, so that a GradScaler skips the step everywhere. Clip after backward, when gradients
    are the averages that are alike on all ranks.

    A rank that cannot exchange a bucket (a sparse gradient, a residual of another model) raises its sentence in
    backward and closes its connections, so that the others raise in backward, too, with the same sentence, and do not
    wait. After that all ranks have to be started again. (Over NCCL the end of backward waits on the host for what was
    exchanged: only so can a rank learn that another one is gone.)

    Args:
        model: has no communication hook yet.
        system: a name in `binsgdm.SYSTEMS`; "int8" is "byte_grad".
        seed: of the draws, the same on all ranks.
        topology: among whom payloads travel (`binsgdm.compressors.topologies`): one of the system's `topologies`, by
            default what its authors run: the first, or, of "byte_grad" and "ms_top_k" on nodes of several ranks,
            "hierarchical", which sends 1 / ranks_per_node of the bytes between nodes.
        intra_node_dtype: of what travels inside a node with a hierarchical topology: "fp32" (default) or "bf16".
        ranks_per_node: consecutive ranks of the model that are on a node; default LOCAL_WORLD_SIZE from torchrun, of a
            part of all ranks those with equal rank // LOCAL_WORLD_SIZE, else all ranks of the model.
        group: the ranks that exchange; default the `process_group` of the model, whose ranks it must have.
        timeout: of the collectives; a rank that is gone is noticed after it.
        on_sent: called with every collective that this rank takes part in, from the thread that exchanges.
        options: of the system, such as bits=4.

    Returns:
        The exchange, whose state belongs into the checkpoint of its rank.

    Raises:
        BinsgdmError: no DDP model, complex parameters, an unknown system or option, a value out of range, or ranks that
            differ in any of it; on all ranks, also where one alone was given something wrong.

    Example:
        model = DistributedDataParallel(module)
        exchange = compress_gradients(model, "power_sgd", matrix_rank=2)
    """
    system = canonical(system)
    model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
    models = replicated_in(model)
    members = group_of(models, group)
    ranks = grouping.ranks_of(members)
    # A rank that was given something wrong still compares its settings with the others, so that all ranks raise and
    # none waits.
    made: tuple[Averager, int] | None = None
    refused: BinsgdmError | None = None
    try:
        _check_model(model)
        check_group("compress_gradients", group, models)
        check_whole("compress_gradients: seed", seed, low=0, high=2**64 - 1)
        check_arguments("compress_gradients", ranks_per_node=ranks_per_node, timeout=timeout, on_sent=on_sent)
        local = grouping.node_size(ranks_per_node, members, default=len(ranks))
        check_options(system, options)  # here, too: an option may have the name of an argument of make
        end = make(
            system,
            rank=ranks.index(dist.get_rank()),
            world_size=len(ranks),
            ranks_per_node=local,
            topology=topology,
            intra_node_dtype=intra_node_dtype,
            **options,
        )
        made = end, local
    except BinsgdmError as error:
        refused = error
    settings = {
        "system": system,
        "seed": seed,
        "ranks_per_node": made and made[1],
        "topology": topology,
        "intra_node_dtype": intra_node_dtype,
        **options,
    }
    if made is not None and SYSTEMS[system].needs_equal_threads:
        settings["torch.get_num_threads()"] = torch.get_num_threads()
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()  # not yet refused
    device = next((parameter.device for parameter in parameters), None)
    check_same_settings("compress_gradients", settings, refused, members, device)
    if made is None:
        raise AssertionError("check_same_settings raises what this rank refused")
    one, local = made
    groups = grouping.make(local, timeout, device, members)
    used = topology or SYSTEMS[system].default_topology(local)
    exchange = GradientExchange(
        model, one, groups, seed=seed, on_sent=on_sent, settings=_saved_settings(system, seed, used, options)
    )
    model.register_comm_hook(exchange, exchange_bucket)
    setattr(model, COMPRESSED, exchange)
    return exchange


def _saved_settings(system: str, seed: int, topology: Topology, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a state is saved with: who goes on with another does not go on bit for bit."""
    return {"system": system, "seed": seed, "topology": topology, **SYSTEMS[system].options, **options}


def _check_model(model: object) -> None:
    if not isinstance(model, DistributedDataParallel):
        raise BinsgdmError(
            f"compress_gradients: a {type(model).__name__}: must be a DistributedDataParallel model; wrap the module"
        )
    if getattr(model, COMPRESSED, None) is not None:
        raise BinsgdmError("compress_gradients: a model with a system: must have none; wrap the module anew")
    check_hook("compress_gradients", model, COMPRESSED)
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise BinsgdmError(
                f"compress_gradients: {name}: sparse gradients: must be dense; build it with sparse=False"
            )
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise BinsgdmError(f"compress_gradients: {name}: complex: must be real; leave it out of the model")
