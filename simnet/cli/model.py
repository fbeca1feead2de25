"""`simnet model`: a workload of any model, counted without its memory."""

import importlib
import shlex
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from simnet.cli import options
from simnet.cli.output import check_file, tell
from simnet.core.errors import SimnetError

LEFT_OUT = ("source", "output", "force", "timed")
"""Parameters that change nothing of what is counted."""


@options.command(
    "model",
    help="Count a training step of a model from its shapes alone, and write a workload.\n\n"
    "SOURCE is module:function, which returns (model, inputs) or (model, inputs, loss) and may take the batch size; "
    "torchvision:NAME or timm:NAME; the config.json of a model of transformers, or "
    "transformers:LlamaConfig:config.json; or a shipped name, such as llama_7b or unet. Nothing is downloaded, and "
    "neither the model's memory nor a GPU is needed.",
    epilog="\b\nExamples:\n"
    "  simnet model my_package.train:build --batch 16 --dtype bf16 --autocast -o my_model.toml\n"
    "  simnet model timm:vit_base_patch16_224 --batch 64 -o vit.toml\n"
    "  simnet model config.json --length 2048 --dtype bf16 -o llama.toml\n"
    "  simnet model torchvision:resnet50 --trace trace.json --batch 32 -o resnet50.toml",
)
@click.argument("source")
@click.option("-o", "--output", type=options.OUTPUT_PATH, required=True, help="Write the workload to this file.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--batch", type=click.IntRange(1, 10**6), help="Samples of a step.  [default: 8]")
@click.option("--length", type=click.IntRange(1, 10**7), help="Tokens of a sequence.  [default: the model's]")
@options.rare("--side", type=click.IntRange(1, 10**5), help="Pixels of a side of an image.  [default: the model's]")
@click.option(
    "--dtype",
    "number_format",
    type=click.Choice(["fp32", "tf32", "bf16", "fp16"]),
    default="fp32",
    show_default=True,
    help="Number format of parameters, gradients and products; tf32 rounds the factors of products of fp32.",
)
@click.option("--autocast", is_flag=True, help="Keep parameters and gradients in fp32, and compute in --dtype.")
@click.option(
    "--optimizer",
    type=click.Choice(["adam", "sgd_momentum"]),
    default="adam",
    show_default=True,
    help="Optimizer, for its time and its memory.",
)
@options.rare(
    "--checkpoint", is_flag=True, help="Keep only the inputs of repeated blocks, and run each again in backward."
)
@options.rare(
    "--attention",
    type=click.Choice(["causal", "full"]),
    default="causal",
    show_default=True,
    help="Count of causal attention what fused kernels compute, or the whole score matrix, as MFU does.",
)
@click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help="Count what is read, written and kept once torch.compile has fused the operators.",
)
@options.rare(
    "--real", is_flag=True, help="Compute with values, in this machine's memory, where shapes depend on them."
)
@click.option(
    "--measurement",
    "--trace",
    "timed",
    multiple=True,
    type=options.INPUT_PATH,
    help="Times of this step: a file of simnet measure model or a trace of torch.profiler; repeatable.",
)
@click.pass_context
def command(
    ctx: click.Context, /, source: str, output: Path, force: bool, timed: tuple[Path, ...], **chosen: Any
) -> None:
    """Run `simnet model`."""
    from simnet.calibration import model_workload
    from simnet.core.files import write_file

    check_file(output)
    if output.exists() and not force:
        raise SimnetError(f"{output}: exists: name another file with -o, or replace it with --force")
    counted = _counted(source, chosen)
    data = model_workload.data_of_count(counted, _command_text(ctx, source))
    if timed:
        data = model_workload.with_times(data, timed)
    write_file(output, model_workload.text(data).encode())
    for note in counted["notes"]:
        tell(f"note: {note}")
    tell(f"wrote {output}: {_summary(counted)}")


def _command_text(ctx: click.Context, source: str) -> str:
    """Return the command that counts the same: "simnet model llama_7b --batch 4"."""
    words = ["simnet", "model", source]
    for param in ctx.command.params:
        assert param.name is not None
        is_named = ctx.get_parameter_source(param.name) == click.core.ParameterSource.COMMANDLINE
        if param.name not in LEFT_OUT and is_named:
            value = ctx.params[param.name]
            words += [param.opts[0]] if value is True else [param.opts[0], str(value)]
    return shlex.join(words)


def _counted(source: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Count a step by the package that knows torch."""
    errors = importlib.import_module("binsgdm.errors")
    try:
        counting = importlib.import_module("binsgdm.recording.step_description")
    except ImportError as error:
        raise SimnetError(f"model: needs torch ({error}): {errors.INSTALL_TORCH}") from error
    try:
        counted: dict[str, Any] = counting.describe_step(source, counting.StepOptions(**chosen))
    except counting.FailedModelError as error:
        tell(_own_traceback(error.__cause__))
        raise SimnetError(str(error)) from error
    except errors.BinsgdmError as error:
        raise SimnetError(str(error)) from error
    return counted


def _own_traceback(error: BaseException) -> str:
    """Return the traceback of the user's own code, without what called it and what of torch it called."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not {"binsgdm", "torch"} & set(Path(frame.filename).parts[-4:])
    ]
    head = ["Traceback (most recent call last):\n"] if frames else []
    return "".join([*head, *traceback.format_list(frames), *traceback.format_exception_only(error)]).rstrip()


def _summary(counted: Mapping[str, Any]) -> str:
    """Return the size of a model in a line."""
    from simnet.core.units import format_bytes

    memory, work = counted["memory"], counted["work"]
    held = sum(memory[key] for key in ("parameters", "gradients", "optimizer"))
    return (
        f"{counted['num_elements']:,} elements in {len(counted['tensors'])} gradients; a sample takes "
        f"{(work['forward_flops'] + work['backward_flops']) / 1e9:,.4g} GFLOP; {format_bytes(held)} of parameters, "
        f"gradients and optimizer, and {format_bytes(memory['activations_per_sample'])} of activations a sample"
    )
