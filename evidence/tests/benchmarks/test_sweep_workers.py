"""The benchmark of sweeps on workers: what it sweeps holds together, and a ratio has its ends."""

from pathlib import Path

from tests.helpers.needs import needs

needs("psutil")

from evidence.benchmarks import sweep_workers
from simnet.engine.scenario import load_experiment


def test_what_is_swept_holds_together(tmp_path: Path) -> None:
    kinds = list(sweep_workers.kinds_of_points(tmp_path))
    assert len({kind.title for kind in kinds}) == len(kinds)
    for kind in kinds:
        experiment = load_experiment(kind.scenario, kind.settings, kind.axes)
        ends = [{key: values[place] for key, values in kind.axes.items()} for place in (0, -1)]
        first, last = map(experiment.at, ends)
        assert first.cluster.inter_node.bytes_per_s < last.cluster.inter_node.bytes_per_s


def test_a_ratio_has_its_median_and_its_ends() -> None:
    assert sweep_workers._ratio([0.9, 1.1, 1.0], [1.0] * 3) == "1.00 (0.90 to 1.10)"
