"""Read files and folders that hold the times of every rank: measurements of one training, or traces of one run."""

import re
from collections.abc import Sequence
from pathlib import Path

from simnet.calibration import rank_samples, run_traces, sources
from simnet.calibration.rank_samples import RankSamples
from simnet.core.errors import SimnetError

_NAME = re.compile(r"\.json(\.gz)?$")
_GIVE = "files of simnet measure training, or the traces of torch.profiler of all ranks"


def read(paths: Sequence[Path], ranks_per_node: int | None = None) -> RankSamples:
    """Read the times of every rank.

    Args:
        paths: measurement files, or traces; a folder stands for the .json and .json.gz files in it.
        ranks_per_node: of traces that do not say it; None to find it there.

    Raises:
        SimnetError: a file cannot be read or is of another kind, the files do not belong together, hold one rank only,
            or too few steps.
    """
    files = [file for path in paths for file in (_of_folder(path) if path.is_dir() else [path])]
    read_files = sources.read(files, [kind for kind in sources.KINDS if kind.attribute in {"files", "traces"}])
    measured, traces = read_files.files, [trace for trace, _ in read_files.traces]
    if measured and traces:
        raise SimnetError(f"{traces[0].where}: a trace, but {measured[0][0]} is a measurement: give one kind of file")
    if measured and ranks_per_node is not None:
        raise SimnetError(f"--ranks-per-node: has no effect on {measured[0][0]}, which says it; drop it")
    samples = rank_samples.of_training(measured) if measured else run_traces.samples_of(traces, ranks_per_node)
    rank_samples.check_enough(samples)
    return samples


def _of_folder(folder: Path) -> list[Path]:
    try:
        files = sorted(path for path in folder.iterdir() if _NAME.search(path.name) and path.is_file())
    except OSError as error:
        raise SimnetError(f"{folder}: cannot be read: {error.strerror}") from error
    if not files:
        raise SimnetError(f"{folder}: no .json or .json.gz file in it; give {_GIVE}")
    return files
