"""The plan of a lab, its owner, and what the command refuses; nothing here needs root."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from evidence.lab import cables, machine, plan
from evidence.lab.__main__ import command
from evidence.lab.lab import check_command
from evidence.lab.owner import Owner
from evidence.lab.plan import LabSpec
from evidence.lab.ranks import LaunchResult
from evidence.lab.signals import raise_on_signal
from simnet.cli.main import main
from simnet.core.units import Bandwidth, Duration
from tests.helpers.needs import needs
from tests.helpers.refusals import refused

GBIT = Bandwidth.parse("1 Gbit/s")


def spec(num_nodes: int = 2, **more: Any) -> LabSpec:
    return LabSpec(num_nodes=num_nodes, **more)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run `python -m evidence.lab` and return the one line it refuses with."""
    with pytest.raises(SystemExit) as left:
        main(arguments, command, "evidence.lab")
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.count("\n") == 1
    return said


class TestPlan:
    def test_every_command_acts_inside_the_namespaces_of_the_lab(self) -> None:
        commands = plan.create_commands(spec(3, bandwidth=GBIT), "simnet-1-2-3")
        names = {"simnet-1-2-3-switch", *(f"simnet-1-2-3-node{node}" for node in range(3))}
        assert {command[3] for command in commands if command[:3] == ("ip", "netns", "add")} == names
        others = [command for command in commands if command[:3] != ("ip", "netns", "add")]
        assert all(command[0] in {"ip", "tc"} and command[1] == "-n" and command[2] in names for command in others)

    def test_with_a_latency_both_ends_are_taps_and_all_else_is_alike(self) -> None:
        plain, delayed = (plan.create_commands(spec(2, **more), "lab") for more in ({}, {"latency": Duration(5e-3)}))
        added = [" ".join(command) for command in delayed if command not in plain]
        tap = "mode tap vnet_hdr"
        assert added == [
            f"ip -n lab-{name} tuntap add {nic} {tap}"
            for node in range(2)
            for name, nic in ((f"node{node}", "eth0"), ("switch", f"port{node}"))
        ]
        assert len(plain) + 2 == len(delayed)

    def test_both_ends_of_every_nic_are_shaped(self) -> None:
        lines = [" ".join(command) for command in plan.shape_commands(range(2), "lab", GBIT)]
        how = "root tbf rate 1000000000bit burst 250000 latency 20ms"
        ends = [("lab-node0", "eth0"), ("lab-node1", "eth0"), ("lab-switch", "port0"), ("lab-switch", "port1")]
        assert lines[1::2] == [f"tc -n {name} qdisc replace dev {nic} {how}" for name, nic in ends]

    @pytest.mark.parametrize(("mbit_per_s", "burst", "packet"), [(1, 32768, 16384), (400, 100000, 50000)])
    def test_a_packet_is_at_most_half_a_burst(self, mbit_per_s: float, burst: int, packet: int) -> None:
        lines = [" ".join(command) for command in plan.shape_commands(range(1), "lab", Bandwidth(mbit_per_s * 1e6 / 8))]
        assert lines[0] == f"ip -n lab-node0 link set eth0 gso_max_size {packet}"
        assert f"burst {burst} " in lines[1]

    def test_packets_that_are_queued_fit_into_the_bucket_of_a_slower_nic(self) -> None:
        slower = plan.shape_commands(range(1), "lab", Bandwidth(15e6), Bandwidth(37.5e6))
        assert slower[1][slower[1].index("burst") + 1] == str(round(1.1 * 37.5e6 * 2e-3 / 2))
        faster = plan.shape_commands(range(1), "lab", Bandwidth(75e6), Bandwidth(37.5e6))
        assert faster == plan.shape_commands(range(1), "lab", Bandwidth(75e6))

    @pytest.mark.parametrize(
        ("wrong", "rule"),
        [
            ({"num_nodes": 0}, "nodes: 0: must be from 1 to 254"),
            ({"num_nodes": 255}, "nodes: 255: must be from 1 to 254"),
            ({"ranks_per_node": 0}, "ranks_per_node: 0: must be at least 1"),
            ({"threads_per_rank": 0}, "threads_per_rank: 0: must be at least 1"),
            ({"latency": Duration(-1e-3)}, "latency: '-1 ms': must be from '0 s' to '1 s'"),
            ({"latency": Duration(1.5)}, "latency: '1.5 s': must be from '0 s' to '1 s'"),
            ({"bandwidth": Bandwidth.parse("0.9 Mbit/s")}, "bandwidth: '0.9 Mbit/s': must be at least '1 Mbit/s'"),
        ],
    )
    def test_a_wrong_spec_is_refused(self, wrong: dict[str, Any], rule: str) -> None:
        with refused(start=f"lab: {rule}"):
            spec(**{"num_nodes": 2, **wrong})


def test_a_latency_that_this_machine_cannot_make_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("Linux", "cc")
    for name, rule in (
        ("none", ": needs root and a kernel with TUN and TAP devices"),
        ("nonsense", "cable.c does not compile"),
        ("no compiler", "'no-such-compiler': not on the PATH; install a C compiler"),
    ):
        if name == "nonsense":
            (tmp_path / "cable.c").write_text(name)
            monkeypatch.setattr(cables, "SOURCE", tmp_path / "cable.c")
        if name == "no compiler":
            monkeypatch.setattr(cables, "COMPILER", "no-such-compiler")
        with refused(rule, start="lab: latency: "), cables.laid(spec(latency=Duration(1e-3)), "simnet-none"):
            pass


class TestOwner:
    def test_it_is_read_back_from_the_names_of_its_namespaces(self) -> None:
        owner = Owner(pid_namespace=4026531836, pid=12, started_ticks=345)
        assert Owner.of_namespace(plan.switch_name(owner.prefix)) == owner
        assert Owner.of_namespace(plan.node_name(owner.prefix, 17)) == owner

    def test_only_a_process_that_has_ended_is_gone_and_one_of_another_container_may_not_have(self) -> None:
        needs("Linux")
        owner = Owner.this_process()
        assert not owner.has_ended()
        ended = subprocess.Popen(["true"])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert replace(owner, pid=ended.pid).has_ended()  # a zombie
        ended.wait()
        assert replace(owner, pid=ended.pid).has_ended()
        assert replace(owner, started_ticks=owner.started_ticks - 1).has_ended(), "a later process of the same id"
        assert not replace(owner, pid_namespace=owner.pid_namespace + 1, started_ticks=0).has_ended()


class TestOutcome:
    def test_a_timeout_names_the_ranks_that_were_stopped(self) -> None:
        outcome = LaunchResult(exit_code=124, elapsed_s=60.0, outputs=("a", "b", "c"), unfinished_ranks=(0, 2))
        assert "not finished after 60 s, ranks 0, 2 were stopped" in outcome.failure()
        assert outcome.last_lines() == ["[rank 0] a", "[rank 2] c"]


class TestSignals:
    def test_sigterm_becomes_an_exception_inside_and_nothing_after(self) -> None:
        with pytest.raises(SystemExit) as left, raise_on_signal():
            signal.raise_signal(signal.SIGTERM)
        assert left.value.code == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_what_follows_the_first_does_not_disturb_the_clean_up(self) -> None:
        done: list[str] = []

        def work() -> None:
            with raise_on_signal():
                try:
                    signal.raise_signal(signal.SIGINT)
                finally:
                    signal.raise_signal(signal.SIGINT)
                    signal.raise_signal(signal.SIGTERM)
                    done.append("whole")

        with pytest.raises(KeyboardInterrupt):
            work()
        assert done == ["whole"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_the_handler_of_another_stays(self) -> None:
        came: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
        try:
            with raise_on_signal():
                signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, before)
        assert came == [signal.SIGTERM]


class TestRefusals:
    @pytest.fixture(autouse=True)
    def as_root_with_every_tool(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(machine.shutil, "which", lambda name: f"/bin/{name}")

    def test_what_the_machine_lacks(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        asked = ("run", "--nodes", "2", "--", "true")
        for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("setpriv", "util-linux")):
            monkeypatch.setattr(machine.shutil, "which", lambda name, lost=tool: None if name == lost else "/bin/x")
            assert f"'{tool}': not on the PATH; install {package}" in refusal(capsys, *asked)
        monkeypatch.setattr(machine.shutil, "which", lambda name: None)
        with refused("'nosuch': no executable program on the PATH"):
            check_command(["nosuch"])
        monkeypatch.setattr(machine.shutil, "which", lambda name: f"/bin/{name}")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        for arguments in (asked, ("clean",)):
            assert "network namespaces need root: run it with sudo" in refusal(capsys, *arguments)
        monkeypatch.setattr(sys, "platform", "darwin")
        assert "'darwin': needs Linux" in refusal(capsys, *asked)

    @pytest.mark.parametrize(
        ("kernel_says", "advice"),
        [
            ("mount --make-shared /run/netns failed: Operation not permitted", "--privileged"),
            ("mkdir /run/netns failed: Permission denied", "--privileged"),
            ("Error: Specified qdisc kind is unknown.", "sch_tbf"),
            ("Error: Unknown device type.", "veth"),
        ],
    )
    def test_what_the_kernel_refuses_comes_with_advice(self, kernel_says: str, advice: str) -> None:
        with refused(kernel_says, advice):
            machine.run_command(("sh", "-c", f"echo '{kernel_says}' >&2; exit 1"))

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--nodes", "2"], "no command; write it after --"),
            (["--nodes", "0", "--", "true"], "nodes: 0: must be from 1 to 254"),
            (["--nodes", "2", "--bandwidth", "5", "--", "true"], "--bandwidth: '5': write a number and a unit"),
            (["--nodes", "2", "--timeout", "5", "--", "true"], "--timeout: '5': write a number and a unit"),
            (["--nodes", "2", "--timeout", "0 s", "--", "true"], "--timeout: '0 s': must be above zero"),
            (["--", "true"], "give --nodes N and -- COMMAND"),
        ],
    )
    def test_wrong_options(self, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert said in refusal(capsys, "run", *arguments)
