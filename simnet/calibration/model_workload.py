"""Write a model whose training step was counted as a workload file."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from simnet.calibration import sources, trained_workload, workload_file
from simnet.calibration.card_folder import card_label
from simnet.core.errors import SimnetError
from simnet.core.parsing import parse_toml
from simnet.core.schema import build
from simnet.core.units import Duration, Size
from simnet.workload import training_step
from simnet.workload.workload import Workload

DIGITS = 5
"""Of counts: they hold for fewer."""
TIMES = ("forward", "backward", "optimizer")
Data = dict[str, Any]


def data_of_count(count: Mapping[str, Any], command: str) -> Data:
    """Return a workload in file form: gradients in ready order, work and memory of a step.

    Args:
        count: what `binsgdm.recording` has counted.
        command: that counts it again.
    """
    work = {key: _digits(value) if isinstance(value, float) else value for key, value in count["work"].items()}
    data = {
        "title": f"{count['title']}, {count['batch']} samples a rank",
        "source": _source(count, command),
        "dtype": count["dtype"],
        "batch_per_rank": count["batch"],
        **({"tokens_per_sample": count["tokens_per_sample"]} if count["tokens_per_sample"] else {}),
        "tensors": _rows(count["tensors"]),
        "work": work,
        "memory": _memory(count["memory"]),
    }
    workload(data)
    return data


def _memory(sizes: Mapping[str, Any]) -> Data:
    """Return the sizes of a step, and what checkpointing makes of them."""
    made: Data = {key: Size(_digits(size)).text() for key, size in sizes.items() if not isinstance(size, Mapping)}
    if again := sizes.get("checkpointed"):
        kept = Size(_digits(again["activations_per_sample"])).text()
        recomputed = min(max(_digits(again["recomputed"]), 0.0), 1.0)
        made["checkpointed"] = again | {"activations_per_sample": kept, "recomputed": recomputed}
    return made


def _source(count: Mapping[str, Any], command: str) -> str:
    """Return how a workload was made: its command stands first, so that it can be run again."""
    origin = f": {count['origin']}" if count["origin"] else ""
    sample = f"; a sample is {count['sample']}" if count["sample"] else ""
    return f"{command} ({count['versions']}){origin}{sample}"


def workload(data: Data) -> Workload:
    """Return the workload of data in file form."""
    counted = build(Workload, {"name": "counted", **data}, "the counted workload")
    training_step.num_elements(counted)
    return counted


def with_times(data: Data, paths: Sequence[Path]) -> Data:
    """Return a workload with the times of files of `simnet measure model`, or of traces of torch.profiler.

    Times of a GPU become a compute row of it, so that others are still estimated; times of a CPU hold as they are.

    Raises:
        SimnetError: the files hold no step, or that of another model or batch.
    """
    read = sources.read(paths)
    if read.traces:
        gpu = read.traces[0][0].gpu
        text = trained_workload.text_of_traces(read.traces, data["batch_per_rank"], workload(data))
    elif any(map(workload_file.has_model, read.measurements)):
        gpu = read.gpu
        text = workload_file.text_of_model(read.files)
    else:
        raise SimnetError(
            f"{paths[0]}: neither a model of simnet measure model nor a trace of torch.profiler; give one of these"
        )
    times = parse_toml(text, str(paths[0]))
    _check_same_model(data, times, paths[0])
    timed = data | ({"tensors": times["tensors"]} if "tensors" in times else {})
    timed |= {key: times[key] for key in ("fitted_to",) if key in times}
    timed |= _row(data, times, card_label(gpu)) if gpu else _plain_times(times)
    workload(timed)
    return timed


def _check_same_model(data: Data, times: Data, path: Path) -> None:
    if times["batch_per_rank"] != data["batch_per_rank"]:
        raise SimnetError(
            f"{path}: {times['batch_per_rank']} samples: the model was counted with {data['batch_per_rank']}; count it "
            f"with --batch {times['batch_per_rank']}"
        )
    timed, counted = (training_step.num_elements(workload(table)) for table in ({**data, **_gradients(times)}, data))
    if abs(timed / counted - 1) > trained_workload.BYTES_TOLERANCE:
        raise SimnetError(
            f"{path}: {timed:.4g} elements of gradients: the model has {counted:.4g}; give times of this model"
        )


def _gradients(times: Data) -> Data:
    return {"tensors": times["tensors"]} if "tensors" in times else {}


def _row(data: Data, times: Data, gpu: str) -> Data:
    """Return the compute row of a GPU."""
    step_s = sum(Duration.parse(times[key]) for key in ("forward", "backward"))
    interval = times.get("intervals", {}).get("compute")
    row = {
        "gpu": gpu,
        "precision": data["work"]["precision"],
        "batch": data["batch_per_rank"],
        "step": Duration(step_s).text(),
        "optimizer": data["work"]["optimizer"],
        "includes_optimizer": False,
        **({"interval": interval} if interval else {}),
        "kind": "measured",
        "source": times["source"],
    }
    return {"compute": [row]}


def _plain_times(times: Data) -> Data:
    phases = {key: times[key] for key in (*TIMES, "intervals") if key in times}
    return phases | {"source": times["source"]}


def text(data: Data) -> str:
    """Return a workload as TOML, one tensor a line, so that a change is a readable diff."""
    plain = {key: value for key, value in data.items() if not isinstance(value, list | dict)}
    tables = {key: value for key, value in data.items() if isinstance(value, dict)}
    lists = {key: value for key, value in data.items() if isinstance(value, list) and key != "tensors"}
    listed = ["tensors = [", *(f"    {_inline(row)}," for row in data["tensors"]), "]", ""]
    return tomli_w.dumps(plain) + "\n".join(listed) + "\n" + tomli_w.dumps(tables | lists)


def _rows(tensors: Iterable[tuple[str, Sequence[int], float]]) -> list[Data]:
    """Return a row for each tensor, or for several in a row that are alike."""
    rows: list[Data] = []
    shares = [(name, list(shape) or [1], _digits(flops)) for name, shape, flops in tensors]
    # Where no tensor has FLOPs, backward goes evenly over all of them.
    has_none = not any(flops for *_, flops in shares)
    for name, shape, flops in shares:
        share = 1.0 if has_none else flops
        # Layers repeat: tensors that are alike stand in one row with their number.
        last = rows[-1] if rows else {}
        if (last.get("shape"), last.get("backward_share")) == (shape, share):
            last["count"] = last.get("count", 1) + 1
        else:
            rows.append({"name": name, "shape": shape, "backward_share": share})
    return rows


def _inline(row: Data) -> str:
    """Return a table in one line."""
    return "{ " + ", ".join(f"{key} = {_value(value)}" for key, value in row.items()) + " }"


def _value(value: object) -> str:
    if isinstance(value, str):
        return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _digits(value: float) -> float:
    if not math.isfinite(value):
        raise SimnetError(f"the counted workload: {value}: must be finite; give a smaller batch")
    return float(f"{value:.{DIGITS}g}")
