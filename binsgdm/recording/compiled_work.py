"""What a step moves between its products once torch.compile has fused its operators: counted, nothing is compiled.

The step is traced as one graph, forward and backward; torch.compile's own partitioner chooses what is kept for backward
and what is computed again; its scheduler fuses. All knows shapes alone. The scheduler is that for a CPU, since
the one for a GPU asks the GPU for its sizes.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

from torch import Tensor
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch._inductor import ir
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.nn.utils.stateless import _reparametrize_module

from binsgdm.recording.fake_tensors import as_on_a_gpu, storage_of
from binsgdm.recording.model_zoo import Task
from binsgdm.recording.operator_work import is_product


class CompiledWork(NamedTuple):
    """What kernels but products, convolutions and attention move, and what is kept for backward but what is given.

    Backward moves also what it computes again.
    """

    forward_bytes: float
    backward_bytes: float
    activation_bytes: int


def compiled_work(build: Callable[[], Task], forward_in: AbstractContextManager[Any] | None = None) -> CompiledWork:
    """Return what the compiled step of a model moves.

    Args:
        build: makes the model with its batch, on the current default device.
        forward_in: context of forward, such as autocast.

    Raises:
        Exception: whatever tracing raises of a step that is no single graph, such as one that reads values.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # That a graph holds fake constants matters to generated code alone.
    fake_constants = patch("torch._dynamo.utils.assert_no_fake_params_or_buffers", lambda _: None)
    with tracing(TracingContext(mode)), mode, as_on_a_gpu(), fake_constants:
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch about itself; as_on_a_gpu restores them
        task = build()
        joint = _joint_graph(task, forward_in)
        with V.set_fake_mode(mode):
            # As torch.compile does before it cuts the graph in two: what is folded here is never moved.
            joint_graph_passes(joint)
        forward, backward = min_cut_rematerialization_partition(joint, _inputs(joint), num_fwd_outputs=1)
        return CompiledWork(
            forward_bytes=_bytes_but_products(forward, mode, is_backward=False),
            backward_bytes=_bytes_but_products(backward, mode, is_backward=True),
            activation_bytes=_kept_bytes(forward),
        )


def _joint_graph(task: Task, forward_in: AbstractContextManager[Any] | None) -> GraphModule:
    """Trace forward and backward."""
    module = task.module
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}

    def loss_of(*parameters: Tensor) -> tuple[Tensor]:
        named = dict(zip(trained, parameters, strict=True))
        with _reparametrize_module(module, named), forward_in or nullcontext():
            return (task.loss_of(module),)

    parameters: Any = [*trained.values()]
    joint: Any = aot_export_joint_simple(loss_of, parameters, trace_joint=True, decompositions=select_decomp_table())
    _take_constants_as_inputs(joint)
    return joint  # type: ignore[no-any-return]


def _take_constants_as_inputs(graph: GraphModule) -> None:
    """Make an input of each tensor that a graph holds: buffers, the batch, what a loss compares with."""
    inputs: dict[Any, Node] = {}
    first = next(iter(graph.graph.nodes))
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        if node.target not in inputs:
            with graph.graph.inserting_before(first):
                inputs[node.target] = graph.graph.placeholder(f"constant{node.target}")
            inputs[node.target].meta["val"] = getattr(graph, node.target)
        node.replace_all_uses_with(inputs[node.target])
        graph.graph.erase_node(node)
    graph.recompile()


def _inputs(graph: GraphModule) -> list[Any]:
    return [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]


def _bytes_but_products(graph: GraphModule, mode: FakeTensorMode, *, is_backward: bool) -> float:
    """Return what the fused kernels of a graph read and write, without products."""
    lowering = GraphLowering(graph, example_inputs=_inputs(graph), is_backward=is_backward, is_inference=False)
    with V.set_graph_handler(lowering), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
        lowering.run(*_inputs(graph))
        lowering._update_scheduler()  # which fuses: without it every operator would write its result
        moved = 0.0
        for kernel in lowering.scheduler.nodes:
            operator = getattr(kernel.node, "op_overload", None)  # that fused ones have none of
            # Some only name one of the results of another.
            if not isinstance(kernel.node, ir.MultiOutput) and (operator is None or not is_product(operator)):
                moved += kernel.get_read_write_buffers_sizes()
        return moved


def _kept_bytes(forward: GraphModule) -> int:
    """Return the bytes of what forward computes and backward takes: what all its outputs but the loss are views of."""
    (output,) = (node for node in forward.graph.nodes if node.op == "output")
    values = [node.meta.get("val") for node in output.args[0][1:] if isinstance(node, Node)]
    kept = {storage_of(value): value.untyped_storage().nbytes() for value in values if isinstance(value, Tensor)}
    # What was given to forward is there anyway, whoever needs it later.
    return sum(kept[storage] for storage in kept.keys() - {*map(storage_of, _inputs(forward))})
