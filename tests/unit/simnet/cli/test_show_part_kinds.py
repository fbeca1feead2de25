"""`simnet show` and its former name `simnet list`: the shipped parts."""

from pathlib import Path

import pytest

from simnet.core import files
from simnet.core.registry import tag_of
from simnet.engine.scenario import load_experiment
from simnet.strategies import STRATEGIES
from tests.helpers.cli import assert_refused, run
from tests.helpers.scenario_samples import SWEEP, pod, write


def test_every_kind_is_listed_with_its_parts() -> None:
    listed = run("list").stdout
    assert all(f"{kind}:\n" in listed for kind in files.KINDS)
    assert "BERT-Base" in run("list", "gradients").stdout


def test_every_strategy_is_listed_with_its_title() -> None:
    lines = run("list", "strategies").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:] if line] == [tag_of(one) for one in STRATEGIES]
    assert all(one.title in line for one, line in zip(STRATEGIES, lines[1:], strict=False))
    assert "\n".join(lines) in run("list").stdout


def test_an_unknown_kind_is_refused() -> None:
    assert_refused(run("list", "cluster"), "'cluster': unknown part. Did you mean 'clusters'?")


def test_an_experiment_is_shown_with_its_parts_and_can_be_used_again(file: str, tmp_path: Path) -> None:
    write(tmp_path / "wide.toml", {**pod()["cluster"], "source": "a page"})
    write(tmp_path / "named.toml", pod(cluster="./wide.toml", sweep=SWEEP))
    shown = run("show", str(tmp_path / "named.toml")).stdout
    assert 'source = "a page"' in shown
    (tmp_path / "named.toml").write_text(shown)
    assert run("check", str(tmp_path / "named.toml")).stdout.endswith("ok: experiment, 6 points\n")


@pytest.mark.parametrize("name", files.names("experiments"))
def test_what_is_shown_of_an_experiment_is_the_same_experiment(name: str, tmp_path: Path) -> None:
    (tmp_path / "shown.toml").write_text(run("show", f"experiments/{name}").stdout)
    shown, shipped = load_experiment(str(tmp_path / "shown.toml")), load_experiment(name)
    assert [(axis.key, axis.values) for axis in shown.axes] == [(axis.key, axis.values) for axis in shipped.axes]
    assert shown.at({}) == shipped.at({})


def test_a_part_is_shown_by_kind_and_name() -> None:
    assert run("show", "gradients/bert_base").stdout.startswith("# workloads/gradients/bert_base.json\n")


def test_an_unknown_part_is_refused() -> None:
    assert_refused(run("show", "vgg61"), "'vgg61': unknown part. Did you mean 'vgg16'?")


def test_a_name_of_several_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "names", lambda _: ("same",))
    assert_refused(
        run("show", "same"), "'same': several kinds have this name; write one of clusters/same, workloads/same"
    )
