"""Folders of `simnet measure gpu` of a card that does not exist: SYNTHETIC, for tests and a look at figures alone."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simnet.calibration.card_folder import PARTS
from simnet.strategies.base import every_kernel

NAME = "Synthetic X100 SXM5 80GB HBM3"
LABEL = "Synthetic-X100-80GB"
STEM = "synthetic_x100_80gb"
COPY_BYTES_PER_S = 4.2e12
LAUNCH_S, IDLE_LAUNCH_S = 4e-6, 6e-6
CREATED = "2026-01-02T03:04:05+00:00"
MEASURED_NAMES = {
    "binsgdm_update": "update_",
    "binsgdm_update_quantize": "update_quantize_pack_",
    "quantize": "quantize_pack",
    "binsgdm_update_shape": "update_shape_pack_",
    "shape": "shape_pack_",
    "merge_shaped": "merge_shaped_",
    "mean": "mean_",
    "binsgdm_apply": "unpack_apply_",
    "gather_gradients": "gather",
    "cast": "cast_fp32_bf16",
}
KERNEL_NOTES = (
    "copy: 4,200 GB/s read and written, the fastest size",
    "update_ (triton): 1.90 times its bytes / bandwidth at 268,435,456 elements: 2,900.0 us",
    "systems: ef_sign_sgd: no time was left: give more with --budget",
)
SAMPLES_PER_S = {"bert_base": 1400.0, "resnet50": 1500.0, "gpt2_small": 160.0, "mlp_200k": 9e5}
SPEED = {"fp32": 0.4, "tf32": 1.0, "bf16": 2.2, "fp16": 2.1}


def write(folder: Path, *, parts: tuple[str, ...] = (), sizes: tuple[int, ...] = (16, 18, 20, 22, 24, 26, 28)) -> Path:
    """Write card.json and these parts, by default all."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {"checks": checks, "kernels": lambda: kernels(sizes), "step": step, "models": models,
            "interference": interference, "links": links, "training": training}  # fmt: skip
    others = [part for part in PARTS if part not in made]
    made |= {part: lambda: document([], checks=({"name": "held", "passed": True},)) for part in others}
    chosen = parts or tuple(PARTS)
    save(folder / "card.json", about(chosen))
    for part in chosen:
        save(folder / f"{part}.json", made[part]())
    return folder


def save(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def about(parts: tuple[str, ...], **changed: Any) -> dict[str, Any]:
    return {
        "what": "simnet card",
        "format": 1,
        "created": CREATED,
        "command": "simnet measure gpu -o out/gpu",
        "device": "cuda",
        "quick": False,
        "card": {
            "name": NAME,
            "compute_capability": "9.0",
            "memory_bytes": 80 * 10**9,
            "num_cards": 1,
            "l2_bytes": 50 * 2**20,
        },
        "software": {"torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "driver": "580.1"},
        "is_shared": False,
        "other_processes": [],
        "notes": [],
        "parts": {part: {"status": "done", "reason": "", "seconds": 12.5} for part in parts},
    } | changed


def document(
    series: list[dict[str, Any]], *, notes: tuple[str, ...] = (), checks: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    setup = {"backend": "", "device": "cuda", "num_nodes": 1, "ranks_per_node": 1, "threads_per_rank": 8,
             "ranks_on_machine": 1}  # fmt: skip
    return {
        "what": "simnet measurements",
        "format": 1,
        "created": CREATED,
        "command": "made by tests/helpers/card_samples.py",
        "hardware": {
            "machine": "x86_64",
            "processor": "",
            "cores": 16,
            "memory_bytes": 2**37,
            "gpu": NAME,
            "num_gpus": 1,
        },
        "software": {"system": "Linux", "python": "3.12", "torch": "2.11.0"},
        "setups": [setup],
        "series": series,
        **({"notes": list(notes)} if notes else {}),
        **({"checks": list(checks)} if checks else {}),
    }


def times(seconds: float, seed: str, count: int = 9) -> list[float]:
    """Return repetitions around a time, some percent apart."""
    source = random.Random(seed)
    return [seconds * math.exp(source.gauss(0.0, 0.01)) for _ in range(count)]


def one(kind: str, name: str, seconds: float, **labels: Any) -> dict[str, Any]:
    values = times(seconds, f"{kind} {name} {labels}")
    return {"kind": kind, "name": name, "setup": 0, "unit": "s", "labels": labels, "values": values}


def bandwidth_share(name: str) -> float:
    """Return which share of the copies' bandwidth a made-up kernel reaches."""
    return 0.95 if name in {"cast", "adamw", "gather_gradients"} else random.Random(name).uniform(0.3, 0.95)


def kernels(sizes: tuple[int, ...]) -> dict[str, Any]:
    return document([*_copies(sizes), *_kernels(sizes)], notes=KERNEL_NOTES)


def _copies(sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    for power in sizes:
        seconds = LAUNCH_S + 8 * 2**power / COPY_BYTES_PER_S
        yield one("kernel", "copy", seconds, num_elements=2**power, dtype="float32", kernels="torch")
    for name, kernels_, factor in (
        ("copy", "torch", 1),
        ("update_", "triton", 5),
        ("cast_fp32_bf16", "torch", 1.2),
        ("merge", "reference", 90),
    ):
        labels = {"num_elements": 2 ** sizes[0], "dtype": "float32", "kernels": kernels_, "timing": "launch"}
        yield one("kernel", f"launch_{name}", factor * IDLE_LAUNCH_S, **labels)


def _kernels(sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    for cost in every_kernel().values():
        measured, share = MEASURED_NAMES.get(cost.name, cost.name), bandwidth_share(cost.name)
        vectors = 8 if cost.name in {"merge", "merge_shaped", "mean"} else 4 if cost.name.endswith("_decode") else 0
        own = measured in MEASURED_NAMES.values() or cost.name in {"merge", "mean"}
        for power in sizes:
            labels: dict[str, Any] = {"num_elements": 2**power // (vectors or 1), "dtype": "float32"}
            labels |= {"kernels": "triton" if own else "torch"} | ({"num_vectors": vectors} if vectors else {})
            seconds = 2 * LAUNCH_S + cost.bytes_of_each(vectors or 1) * 2**power / (COPY_BYTES_PER_S * share)
            yield one("kernel", measured, seconds, **labels)


def step() -> dict[str, Any]:
    series = []
    for millions, tensors in ((25, 160), (110, 200), (350, 390)):
        labels = {"num_elements": millions * 10**6, "num_tensors": tensors, "layout": f"made_{millions}m"}
        for name, factor, peak, state in (("adamw", 1.0, 8, 8), ("binsgdm", 1.2, 12, 9), ("one_bit_adam", 2.5, 28, 16)):
            seconds = factor * (2e-5 + 28 * millions * 1e6 / COPY_BYTES_PER_S)
            series.append(one("optimizer_step", "step", seconds, optimizer=name, **labels))
            for kind, each in (("peak", peak), ("state", state)):
                row = one("memory", kind, 1.0, optimizer=name, **labels)
                series.append(row | {"unit": "B", "values": [each * millions * 1e6]})
    return document(series)


def models() -> dict[str, Any]:
    series = []
    for model, rate in SAMPLES_PER_S.items():
        for precision, speed in SPEED.items():
            for batch in (16,) if precision == "fp32" else (8, 16, 64):
                labels = {"model": model, "batch": batch, "dtype": "float32", "precision": precision}
                seconds = batch / (rate * speed) * (1 + 4 / batch)
                series += [
                    one("model", "forward", 0.35 * seconds, **labels),
                    one("model", "backward", 0.65 * seconds, **labels),
                ]
    return document(series, notes=("models: bert_large: out of memory: fp32 at 64 samples: left out",))


def interference() -> dict[str, Any]:
    labels = {"model": "transformer_25m", "batch": 32, "collective": "copy"}
    alone, beside = (
        one("interference", f"backward_{name}", seconds, **labels)
        for name, seconds in (("alone", 0.02), ("beside", 0.0232))
    )
    return document([alone, beside])


def checks() -> dict[str, Any]:
    rows = [
        {"name": f"{kernel}, float32", "passed": True, "count": 640, "detail": ""}
        for kernel in ("update_", "merge", "quantize_pack")
    ]
    failed = {
        "name": "mean_, bfloat16",
        "passed": False,
        "count": 64,
        "detail": "2^20 elements, offset 3: 5 bits differ",
    }
    return document([], checks=(*rows, failed))


def links() -> dict[str, Any]:
    labels = {"group": "intra_node", "group_size": 2, "dtype": "float32", "num_groups": 1}
    sizes = ((2**20, 4e-5), (2**28, 2e-3))
    return document([one("collective", "all_reduce", seconds, message_bytes=size, **labels) for size, seconds in sizes])


def training() -> dict[str, Any]:
    rows = tuple(
        {"name": name, "passed": True, "count": 1, "detail": detail}
        for name, detail in (
            ("resume, bf16", "400 steps, to the bit"),
            ("replicas over 1 rank", "NCCL"),
            ("characters, fp32", "loss 1.62"),
        )
    )
    labels = {
        "model": "transformer_1m",
        "batch": 32,
        "topology": "flat",
        "intra_node_dtype": "fp32",
        "average": "updates",
        "rounding": "random",
        "overlap": 0,
        "bucket_cap_mb": 25.0,
    }
    return document([one("training", "step", 0.008, strategy="binsgdm", **labels)], checks=rows)
