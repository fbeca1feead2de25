"""Campaigns: what a file asks for, in which launches, and what is made of them; no lab is needed."""

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from evidence.lab import campaign, run_campaign
from evidence.lab.__main__ import command
from evidence.lab.campaign import Launch
from evidence.lab.ranks import LaunchResult
from evidence.lab.run_campaign import IdleProbe
from tests.helpers.cli import assert_refused
from tests.helpers.refusals import refused

TEXT = """
models = ["mlp_4m", "my.pkg:build"]
strategies = [{kind = "all_reduce"}, {kind = "binsgdm", topology = "flat"},
    {kind = "binsgdm", intra_node_dtype = "bf16"}]
[[points]]
layouts = ["3x1", "2x2"]
bandwidths = ["50 Mbit/s", "200 Mbit/s"]
[links]
layouts = ["2x1"]
bandwidths = ["100 Mbit/s"]
"""

DENSE, HEAD = 'kind = "all_reduce"', 'models = ["mlp'
OWN_WORK = "own_work_seconds = 1.0\nby_layout = true\nspeed = true\n"
ELSEWHERE = ("../../x", "a/b", "/tmp/x", "..", "-o", "a b", "", "a:b:c", "mlp\\\\4m", "a..b")
FORMS = ("gather", "scatter_reduce", "hierarchical", "hierarchical_scatter_reduce")


def write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


class TestFile:
    def test_a_layout_is_measured_in_place_before_and_after_its_trainings(self, tmp_path: Path) -> None:
        text = "by_layout = true\nspeed = true\nown_work_seconds = 2.0\n" + TEXT
        launches = campaign.launches(campaign.load(write(tmp_path, text)))
        in_place = ["kernels", "messages", "own_work", "model", "model"]
        of_layout = ["beside", *in_place, "training", "training", *in_place]
        assert [launch.part for launch in launches] == ["links", *of_layout * 2]
        assert {launch.layout.text() for launch in launches[1:13]} == {"3x1"}
        assert len({launch.name for launch in launches}) == len(launches)
        assert all("--speed" in launch.arguments for launch in launches)
        names = {launch.name: launch for launch in launches}
        once = campaign.launches(campaign.load(write(tmp_path, "kernel_starts = 1\n" + text)))
        assert set(names) - {launch.name for launch in once} == {"kernels_2_3x1", "kernels_2_2x2"}
        own_work, trained = names["own_work_2_3x1"].arguments, names["training_3x1_50mbit"].arguments
        assert own_work[own_work.index("--max-seconds") + 1] == "2.0"
        assert "--without-messages" in own_work
        assert "--without-messages" not in trained
        strategies = [[word for word in words if word.startswith(("all", "bin"))] for words in (own_work, trained)]
        assert strategies[0] == strategies[1]

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('["3x1", "2x2"]', '["3by1"]', "points.0.layouts: '3by1': write nodes x ranks on each"),
            ('["3x1", "2x2"]', '["0x1"]', "'0x1': write nodes x ranks"),
            ('["3x1", "2x2"]', "[]", "points.0.layouts: is empty; give at least one"),
            ('models = ["mlp_4m", "my.pkg:build"]', "models = []", "models: is empty; give at least one"),
            ("mlp_4m", "my-pkg-build", "'my-pkg-build' and 'my.pkg:build' would share their files"),
            *(("mlp_4m", name, "must be letters, digits") for name in ELSEWHERE),
            ('"100 Mbit/s"', '"100 Mbit"', "links.bandwidths"),
            ('["100 Mbit/s"]', "[]", "links.bandwidths: is empty; give at least one"),
            (
                '["2x1"]\nbandwidths = [',
                '["3x1"]\nbandwidths = ["200 Mbit/s", ',
                "3x1 at 200 Mbit/s: the links are calibrated there",
            ),
            (DENSE, 'kind = "all_reduce", wire_dtype = "bf16"', "all_reduce runs as DDP does"),
            ('intra_node_dtype = "bf16"', 'intra_node_dtype = "fp16"', "intra_node_dtype 'fp16' cannot be run"),
            ('intra_node_dtype = "bf16"', 'bucketing = "fused"', "bucketing 'fused' cannot be run"),
            (DENSE, 'kind = "one_bit_adam", dense_steps = 5', "one_bit_adam runs in its compression"),
            (DENSE, 'kind = "qsgd", overlap = false', "qsgd runs in DDP's hook, overlapped with backward"),
            (DENSE, 'kind = "random_k", ratio = 0.1, algorithm = "tree"', "random_k runs with rings"),
            (DENSE, 'kind = "qsgd", coding = "elias", coded_bits = 2.0', "codes of a fixed width"),
            (DENSE, 'kind = "qsgd"}, {kind = "qsgd", bits = 4', "'qsgd bits=4': is given twice"),
            (DENSE, 'kind = "qsdg"', "qsdg"),
            (HEAD, f'page = "../x"\n{HEAD}', "page"),
            (HEAD, f"own_work_seconds = 1.0\nspeed = true\n{HEAD}", "needs by_layout = true and speed"),
            (HEAD, f"starts = 1\n{OWN_WORK}{HEAD}", "own_work_seconds: needs starts of 2 or more"),
            ("[links]", 'latency = "-1 ms"\n[links]', "latency: '-1 ms': time must be finite and not negative"),
            ("[links]", 'latency = "2 s"\n[links]', "points.0.latency: '2 s': must be from '0 s' to '1 s'"),
            ("[links]", "latency = 5\n[links]", "points.0.latency: 5: write a number and a unit"),
            ("[links]", 'latenzy = "5 ms"\n[links]', "unknown key 'latenzy'. Did you mean 'latency'?"),
            ('["100 Mbit/s"]', '["100 Mbit/s"]\nlatency = "5 ms"', "links: unknown key 'latency'"),
            ("models", "modles", "modles"),
            ("[links]", "[links", "not TOML"),
        ],
    )
    def test_a_mistake_names_its_place(self, old: str, new: str, message: str, tmp_path: Path) -> None:
        assert old in TEXT
        with refused(message):
            campaign.launches(campaign.load(write(tmp_path, TEXT.replace(old, new))))

    @pytest.mark.parametrize(
        ("strategies", "asked", "alone"),
        [
            (
                '{kind = "one_bit_adam"}, {kind = "top_k", k = 5}, {kind = "qsgd"}',
                ["one_bit_adam", "top_k:k=5", "qsgd:bits=4"],
                ["one_bit_adam", "top_k:k=5", "qsgd:bits=4"],
            ),
            (
                ", ".join(f'{{kind = "qsgd", topology = "{form}"}}' for form in FORMS),
                [f"qsgd:topology={form},bits=4" for form in FORMS],
                [f"qsgd:topology={form},bits=4" for form in FORMS[:2]],  # a rank a node has nothing to average in it
            ),
        ],
    )
    def test_systems_and_their_variants_are_trained_and_their_kernels_timed_each(
        self, strategies: str, asked: list[str], alone: list[str], tmp_path: Path
    ) -> None:
        text = TEXT.replace('{kind = "all_reduce"}', strategies)
        names = {launch.name: launch for launch in campaign.launches(campaign.load(write(tmp_path, text)))}
        kernels = names["kernels_2x2"].arguments
        assert [kernels[place + 1] for place, word in enumerate(kernels) if word == "--system"] == asked
        for layout, trained in (("2x2", asked), ("3x1", alone)):
            words = names[f"training_{layout}_50mbit"].arguments
            assert [word for word in words if word.startswith(("one", "top", "qsgd"))] == trained
        plain = campaign.launches(campaign.load(write(tmp_path)))
        assert not any("--system" in launch.arguments for launch in plain), "BinSGDM's kernels are timed anyway"


class TestRun:
    PROBES: tuple[float, ...] = ()

    def run(self, folder: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int]) -> list[str]:
        """Run with launches that end with these codes, and with 0 when they are used up; return what was told."""
        exit_codes = iter(codes)

        def launched(launch: Launch, place: Path) -> LaunchResult:
            code = next(exit_codes, 0)
            if not code:
                launch.path(place).write_text("{}")
            return LaunchResult(exit_code=code, elapsed_s=1.0, outputs=("", ""), failed_rank=1 if code else None)

        monkeypatch.setattr(run_campaign, "_launched", launched)
        probes = iter(self.PROBES)
        watch = partial(IdleProbe, probe=lambda: next(probes, 1.0), sleep=lambda _: None)
        monkeypatch.setattr(run_campaign, "IdleProbe", watch)
        lines: list[str] = []
        loaded = campaign.load(write(folder))
        place = folder / "out"
        place.mkdir(exist_ok=True)
        run_campaign.run(campaign.launches(loaded), place, lines.append)
        return lines

    def test_a_launch_that_fails_is_tried_once_more_and_then_the_campaign_stops_and_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "once more" in self.run(tmp_path, monkeypatch, [0, 7])[1]
        (tmp_path / "out" / "links_2x1_100mbit.json").unlink()
        with refused("rank 1 failed first, with exit code 7"):
            self.run(tmp_path, monkeypatch, [7, 7])
        assert len(self.run(tmp_path, monkeypatch, [])) == 2

    def test_a_machine_that_stays_slow_is_waited_for_a_while_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.PROBES = (1.0,) * 3 + (2.0,) * 20_000
        lines = self.run(tmp_path, monkeypatch, [])
        assert sum("waiting" in line for line in lines) == 3 * 19
        assert len(list((tmp_path / "out").iterdir())) == 19

    def test_a_folder_is_of_one_campaign(self, tmp_path: Path) -> None:
        for _ in range(2):
            run_campaign.check_folder(tmp_path / "out", "a", "campaign.toml")
        (tmp_path / "file").write_text("")
        for name, text, message in (
            ("out", "b", "holds another campaign"),
            ("", "a", "not empty, and without"),
            ("file", "a", "file: cannot be used"),
        ):
            with refused(message):
                run_campaign.check_folder(tmp_path / name, text, "campaign.toml")

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["run"], "give --nodes N and -- COMMAND..., or CAMPAIGN.toml"),
            (["run", "mine.toml"], "-o: missing; name a directory"),
            (["run", "--nodes", "2", "-o", "x", "--", "true"], "-o, --patience: need a campaign"),
            (["report", "none"], "campaign.toml: no such file"),
            (["report", "half"], "19 of 19 measurements are missing, such as links_2x1_100mbit.json"),
        ],
    )
    def test_a_mistake_at_the_command_line_is_one_line(
        self, args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        write(tmp_path)
        Path("half").mkdir()
        Path("half/campaign.toml").write_text(TEXT)
        assert_refused(CliRunner().invoke(command, args), message)
