"""The benchmark of sweeps on workers: what it sweeps holds together, and its figure is drawn."""

from pathlib import Path

from tests.helpers.needs import needs

needs("psutil")

from benchmarks import sweep_workers
from benchmarks.sweep_workers import Peak
from simnet.engine.scenario import load_experiment


def test_what_is_swept_holds_together(tmp_path: Path) -> None:
    kinds = list(sweep_workers.kinds_of_points(tmp_path))
    assert len({kind.title for kind in kinds}) == len(kinds)
    for kind in kinds:
        experiment = load_experiment(kind.scenario, kind.settings, kind.axes)
        ends = [{key: values[place] for key, values in kind.axes.items()} for place in (0, -1)]
        first, last = map(experiment.at, ends)
        assert first.cluster.inter_node.bytes_per_s < last.cluster.inter_node.bytes_per_s


def test_the_figure_shows_both_forms(tmp_path: Path) -> None:
    found = {"parquet": [Peak(1_000, 100.0, 1.0), Peak(1_000_000, 200.0, 9.0)], "csv": [Peak(1_000, 90.0, 1.0)]}
    sweep_workers.draw_memory(found, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5_000


def test_a_ratio_has_its_median_and_its_ends() -> None:
    assert sweep_workers._ratio([0.9, 1.1, 1.0], [1.0] * 3) == "1.00 (0.90 to 1.10)"
