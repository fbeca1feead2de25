"""Strategies as `simnet measure` takes and labels them: to words that can be run, and back from labels."""

from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import fields

from simnet import schema
from simnet.options import NONE, Options
from simnet.strategies import AllReduce, AnyCompressing, AnyStrategy, BinSGDM, OneBitAdam, Strategy
from simnet.units import Size

MIB = 2**20
SIMULATED_ONLY = {field.name for field in fields(Strategy)} | {"algorithm", "coded_bits", "dense", "dense_steps"}
"""Options that are not of the system itself: how it is bucketed, carried and counted."""
ALWAYS_TOLD = {"bits", "matrix_rank"}
"""Options without which the name of a system says little, told even where they are the default."""


def words(strategy: AnyStrategy) -> str:
    """Return a strategy as simnet measure training takes it: "binsgdm:flat,overlap", "qsgd:bits=4,block_size=8192".

    Raises:
        ValueError: it is one that cannot be run.
    """
    if isinstance(strategy, OneBitAdam):
        if strategy != OneBitAdam(agreement=strategy.agreement):
            raise ValueError("strategies: one_bit_adam runs in its compression stage; drop the other keys")
        return "one_bit_adam"
    if strategy.bucketing != "ddp" or strategy.planner is not None:
        raise ValueError(f"strategies: bucketing {strategy.bucketing!r} cannot be run; use 'ddp'")
    if isinstance(strategy, AllReduce):
        if strategy != AllReduce(bucket_cap=strategy.bucket_cap):
            raise ValueError("strategies: all_reduce runs as DDP does: fp32, overlapped; drop the other keys")
        return "all_reduce"
    return _binsgdm(strategy) if isinstance(strategy, BinSGDM) else _compressing(strategy)


def kernels(strategy: AnyStrategy) -> str:
    """Return what simnet measure kernels has to time for a strategy as its `--system`; empty where it always does."""
    return "" if isinstance(strategy, AllReduce | BinSGDM) else words(strategy)


def of_labels(labels: Mapping[str, Any], *, is_ring: bool) -> AnyStrategy:
    """Return what a series of training is labelled with.

    Args:
        labels: of the series.
        is_ring: all-reduces are rings whatever their size, as gloo's.

    Raises:
        SimnetError: a strategy that is not known.
    """
    cap = Size(round(float(labels["bucket_cap_mb"]) * MIB))
    if labels["strategy"] == "all_reduce":
        return AllReduce(bucket_cap=cap)
    if labels["strategy"] == "one_bit_adam":
        return OneBitAdam(agreement=True)
    if labels["strategy"] != "binsgdm":
        return _of_system(str(labels["strategy"]), Options.parse(labels.get("options", "")), cap)
    agreement: Literal["ring", "auto"] = "ring" if is_ring else "auto"
    options: dict[str, Any] = {"overlap": bool(labels["overlap"]), "bucket_cap": cap, "agreement": agreement}
    if labels["topology"] == "flat":
        return BinSGDM(topology="flat", **options)
    options |= {"intra": labels["intra"], "average": labels.get("average") or "updates"}
    return BinSGDM(**options)


def text_of(labels: Mapping[str, Any]) -> str:
    """Return the same for people: "binsgdm flat, overlap", "qsgd bits=4"."""
    kind = str(labels["strategy"])
    if kind != "binsgdm":
        return " ".join(filter(None, [kind, Options.parse(labels.get("options", "")).text()]))
    options = [str(labels["topology"])]
    options += [str(labels["intra"])] if labels["topology"] != "flat" and labels["intra"] != "fp32" else []
    options += ["average gradients"] if labels.get("average") == "gradients" else []
    options += ["overlap"] if labels["overlap"] else []
    return f"binsgdm {', '.join(options)}"


def _binsgdm(strategy: BinSGDM) -> str:
    if strategy.intra == "fp16":
        raise ValueError("strategies: intra 'fp16' cannot be run; use 'fp32', 'bf16' or 'one_bit'")
    options = [
        *(["flat"] if strategy.topology == "flat" else []),
        *([strategy.intra] if strategy.intra in {"bf16", "one_bit"} else []),
        *(["gradients"] if strategy.average == "gradients" else []),
        *(["overlap"] if strategy.overlap else []),
    ]
    return ":".join(["binsgdm", ",".join(options)] if options else ["binsgdm"])


def _compressing(strategy: AnyCompressing) -> str:
    kind = str(strategy.__struct_config__.tag)
    if not strategy.overlap:
        raise ValueError(f"strategies: {kind} runs in DDP's hook, beside backward; drop overlap")
    if getattr(strategy, "algorithm", "ring") != "ring" or getattr(strategy, "coded_bits", None) is not None:
        raise ValueError(f"strategies: {kind} runs with rings and codes of a fixed width; drop algorithm and coding")
    given = {
        field.name: getattr(strategy, field.name)
        for field in fields(strategy)
        if field.name not in SIMULATED_ONLY
        and (field.name in ALWAYS_TOLD or getattr(strategy, field.name) != field.default)
    }
    options = ",".join(f"{key}={_text(value)}" for key, value in given.items())
    return f"{kind}:{options}" if options else kind


def _text(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _of_system(kind: str, options: Options, cap: Size) -> AnyCompressing:
    given = {key: None if value == NONE else value for key, value in options.items()}
    where = f"training with {kind} {options.text()}: is not known to the simulator"
    found = schema.build(cast("type[AnyCompressing]", AnyCompressing), {"kind": kind, **given}, where)
    return msgspec.structs.replace(found, bucket_cap=cap)
