"""Find the model that a text names, and build it with a batch: shipped, of a library, or the user's own function."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from binsgdm.errors import BinsgdmError, shown
from binsgdm.recording import transformers_models
from binsgdm.recording.model_zoo import LLAMAS, NAMES, SEED, UNET_ORIGIN, Task, unet_task
from binsgdm.recording.shipped_models import (
    COUNTED,
    SHIPPED,
    WITH_GRADIENTS,
    declare_torchvision_operators,
    what_is_missing,
)

LIBRARIES = ("torchvision", "timm", "transformers")
_FIXED_SIDES = ("vit_", "deit", "beit", "swin", "mixer")
"""Models of timm that are made for one size of images."""


class ModelOptions(NamedTuple):
    """What of a batch can be chosen.

    Attributes:
        batch: samples.
        length: tokens of a sequence; None for what the model was made for, at most 1024 of a config.
        side: pixels of a side of an image; None for what the model was made for.
    """

    batch: int = 1
    length: int | None = None
    side: int | None = None


class FoundModel(NamedTuple):
    """A model that can be built.

    Attributes:
        title: for people.
        build: makes the module with its batch, on the current default device.
        library: that defines it, if it is not torch alone.
        origin: what is built, as code, or where its sizes come from.
        takes: which of "length" and "side" change it.
        has_own_batch: it is the user's function, which takes no batch.
        notes: what a reader should know of how it is made.
    """

    title: str
    build: Callable[[], Task]
    library: str = ""
    origin: str = ""
    takes: tuple[str, ...] = ()
    has_own_batch: bool = False
    notes: tuple[str, ...] = ()


def find(source: str, options: ModelOptions) -> FoundModel:
    """Return the model of a text.

    Args:
        source: a shipped name, `torchvision:NAME`, `timm:NAME`, `transformers:config.json`, a config's path, or
            `module:function`.
        options: of the batch.
    """
    home, _, name = source.partition(":")
    if home not in LIBRARIES and (source.endswith(".json") or Path(source, "config.json").is_file()):
        home, name = "transformers", source
    if home in LIBRARIES and name:
        _need(home)
        builders = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}
        return builders[home](name, options)
    if name:
        return _own(source, home, name, options)
    return _shipped(source, options)


def build(name: str, batch: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Task:
    """Build the model of a text with its batch, from a fixed seed and therefore the same on all ranks."""
    try:
        found = find(name, ModelOptions(batch))
        torch.manual_seed(SEED)
        with torch.device(device):
            task = found.build()
    except BinsgdmError as error:
        raise BinsgdmError(f"--model {error}") from error

    def cast(given: Tensor) -> Tensor:
        return given.to(dtype) if dtype != torch.float32 and given.is_floating_point() else given

    keywords = {key: cast(given) for key, given in task.keywords.items()}
    inputs = tuple(map(cast, task.inputs))
    return replace(task, module=task.module.to(device, dtype), inputs=inputs, keywords=keywords)


def _need(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise BinsgdmError(f"{library}: is not installed: pip install {library} (of the version that goes with torch)")


def _shipped(name: str, options: ModelOptions) -> FoundModel:
    of_libraries = {one.name: one for one in (*WITH_GRADIENTS, *COUNTED)} | {
        one.workload: one.definition for one in SHIPPED
    }
    if name == "unet":
        return FoundModel("U-Net", lambda: unet_task(options.batch, options.side), origin=UNET_ORIGIN, takes=("side",))
    if name in NAMES:
        return FoundModel(name, lambda: as_task(NAMES[name](options.batch)))
    if name in LLAMAS:
        size = LLAMAS[name]
        return FoundModel(
            size.title, lambda: size.task(options.batch, options.length), origin=size.source, takes=("length",)
        )
    if name not in of_libraries:
        for names, find_it in _image_models():
            if name in names:
                return find_it(name, options)
        images = [one for names, _ in _image_models() for one in names]
        known = [*of_libraries, *LLAMAS, "unet", *NAMES, *images]
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}" if near else f"such as {', '.join(sorted(known)[:6])}"
        raise BinsgdmError(
            f"{shown(name)}: no shipped model ({hint}): write module:function, torchvision:NAME, timm:NAME or the path "
            "of a config of transformers"
        )
    definition = of_libraries[name]
    if missing := what_is_missing(definition):
        raise BinsgdmError(f"{name}: needs {definition.library}: {missing}")
    return FoundModel(
        definition.title, lambda: definition.build(options.batch), definition.library, definition.expression
    )


def _image_models() -> Iterator[tuple[list[str], Callable[[str, ModelOptions], FoundModel]]]:
    """Yield the names of the models of each image library that is installed, and what finds one of them."""
    for library, home, find_it in (("torchvision", "torchvision.models", _torchvision), ("timm", "timm", _timm)):
        if importlib.util.find_spec(library) is not None:
            declare_torchvision_operators()
            yield importlib.import_module(home).list_models(), find_it


def _torchvision(name: str, options: ModelOptions) -> FoundModel:
    declare_torchvision_operators()
    models = importlib.import_module("torchvision").models
    _check_known("torchvision", name, models.list_models())

    side = options.side or _side_of(models, name)

    def build() -> Task:
        known = inspect.signature(models.get_model_builder(name)).parameters
        settings: dict[str, Any] = {"weights_backbone": None} if "weights_backbone" in known else {}
        if options.side and name.startswith("vit_"):
            settings["image_size"] = side
        return _of_images(models.get_model(name, weights=None, **settings), options.batch, side)

    return FoundModel(f"{name} (torchvision)", build, "torchvision", takes=("side",))


def _side_of(models: Any, name: str) -> int:
    """Return the pixels of a side of the images that the weights of a model of torchvision were trained with."""
    transforms = next(iter(models.get_model_weights(name))).transforms
    crop = getattr(transforms, "keywords", {}).get("crop_size", 224)
    return int(crop if isinstance(crop, int) else crop[0])


def _timm(name: str, options: ModelOptions) -> FoundModel:
    declare_torchvision_operators()
    timm = importlib.import_module("timm")
    _check_known("timm", name, timm.list_models())

    def build() -> Task:
        settings = {"img_size": options.side} if options.side and name.startswith(_FIXED_SIDES) else {}
        module = timm.create_model(name, pretrained=False, **settings)
        return _of_images(module, options.batch, options.side or module.default_cfg["input_size"][-1])

    return FoundModel(f"{name} (timm)", build, "timm", takes=("side",))


def _check_known(library: str, name: str, known: list[str]) -> None:
    if name not in known:
        near = get_close_matches(name, known, n=1)
        raise BinsgdmError(
            f"{library}:{name}: no such model of {library}{f'; did you mean {near[0]!r}' if near else ''}: see its "
            "list_models()"
        )


def _of_images(module: nn.Module, batch: int, side: int) -> Task:
    return as_task((module.train(), torch.randn(batch, 3, side, side)))


def _transformers(name: str, options: ModelOptions) -> FoundModel:
    declare_torchvision_operators()
    title, build, takes, notes = transformers_models.of_config(name, options.batch, options.length, options.side)
    return FoundModel(title, lambda: as_task(build()), "transformers", takes=takes, notes=notes)


def _own(source: str, home: str, name: str, options: ModelOptions) -> FoundModel:
    """Return the model of a function of the user, which takes the batch or nothing."""
    function = _function(source, home, name)
    takes_batch = _takes_batch(function)

    def build() -> Task:
        made = function(options.batch) if takes_batch else function()
        try:
            return as_task(made)
        except BinsgdmError as error:
            raise BinsgdmError(f"{source}: {error}") from error

    return FoundModel(source, build, has_own_batch=not takes_batch)


def _function(source: str, home: str, name: str) -> Callable[..., Any]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name not in _with_parents(home):
            raise  # of the user's own module
        raise BinsgdmError(f"{source}: no module {home!r}: run where it can be imported, or set PYTHONPATH") from error
    finally:
        sys.path.pop(0)
    found = getattr(module, name, None)
    if not callable(found):
        raise BinsgdmError(f"{source}: {home} has no function {name!r}{_near(name, module)}")
    return found  # type: ignore[no-any-return]


def _with_parents(home: str) -> list[str]:
    parts = home.split(".")
    return [".".join(parts[: number + 1]) for number in range(len(parts))]


def _near(function: str, module: ModuleType) -> str:
    """Return the function of a module that is meant, or some that it has."""
    known = [
        name for name, one in vars(module).items() if inspect.isfunction(one) and one.__module__ == module.__name__
    ]
    near = get_close_matches(function, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; it has {', '.join(sorted(known)[:5])}" if known else "; name one that returns (module, inputs)"


def _takes_batch(function: Callable[..., Any]) -> bool:
    return any(
        one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        for one in inspect.signature(function).parameters.values()
    )


def as_task(made: Any) -> Task:
    """Return a task from (module, inputs) or (module, inputs, loss); inputs are a tensor, a tuple, or named in a dict.

    Without a loss that of the library is taken, `output.loss`, else the mean of what the module returns.
    """
    parts = made if isinstance(made, tuple) else (made,)
    if not 2 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise BinsgdmError(f"returned {type(made).__name__}: must return (module, inputs) or (module, inputs, loss)")
    module, inputs = parts[:2]
    loss = parts[2] if len(parts) == 3 else mean_of_output
    if isinstance(inputs, Mapping):
        return Task(module=module, inputs=(), keywords=dict(inputs), loss=loss)
    return Task(module=module, inputs=inputs if isinstance(inputs, tuple) else (inputs,), loss=loss)


def mean_of_output(output: Any) -> Tensor:
    """Return the loss that a library computes, else the mean of what a module returns."""
    found = getattr(output, "loss", None)
    if isinstance(found, Tensor):
        return found
    tensors = [one for one in torch.utils._pytree.tree_leaves(output) if isinstance(one, Tensor)]
    numbers = [one for one in tensors if one.is_floating_point()]
    if not numbers:
        raise BinsgdmError(f"the module returns {type(output).__name__}, no tensor: return (module, inputs, loss)")
    return torch.stack([one.float().mean() for one in numbers]).sum()
