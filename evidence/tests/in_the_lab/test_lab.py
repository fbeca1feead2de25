"""Labs that really run: the rates of their NICs, and that nothing of them is left however they end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer

import pytest

from evidence import ROOT
from evidence.lab import machine
from evidence.lab.lab import Lab
from evidence.lab.plan import LabSpec
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration

NAMESPACES = Path("/var/run/netns")
TRANSFER = str(Path(__file__).with_name("transfer.py"))
GOODPUT = 1448 / 1514  # payload of an Ethernet frame of TCP with time stamps, of all its bytes
# Computes for two seconds, and says which part of a core it had.
BUSY = """
import time
parts = []
for _ in range(16):
    begun, used = time.perf_counter(), time.process_time()
    while time.perf_counter() < begun + 0.2: pass
    parts.append((time.process_time() - used) / (time.perf_counter() - begun))
print(max(parts))
"""
CONNECT = """
import socket, time
while True:
    try:
        socket.create_connection(("10.77.0.2", 5000), 5)
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
"""
# Rank 0 writes the shortest of twenty round trips of one byte.
ROUND_TRIP = """
import os, socket, time
if os.environ["RANK"] == "1":
    server = socket.create_server(("10.77.0.2", 5000))
    peer, _ = server.accept()
    while got := peer.recv(1): peer.sendall(got)
else:
    while True:
        try:
            peer = socket.create_connection(("10.77.0.2", 5000), 5)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    found = []
    for _ in range(20):
        begun = time.perf_counter()
        peer.sendall(b"x"); peer.recv(1)
        found.append(time.perf_counter() - begun)
    print(min(found))
"""
# The sleep is there before the file says so: who waits for the file may kill at once and count what is left.
SLEEPER = "sleep 1000 & echo $$ > {folder}/$RANK.new; mv {folder}/$RANK.new {folder}/$RANK; wait"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts `python -m evidence.lab run` and waits until every rank sleeps."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str = SLEEPER, name: str = "lab") -> subprocess.Popen[str]:
        folder = tmp_path / name
        folder.mkdir()
        command = ["run", "--nodes", "2", "--", "sh", "-c", script.format(folder=folder)]
        lab = subprocess.Popen(
            [sys.executable, "-m", "evidence.lab", *command],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(lab)
        until(lambda: (folder / "0").exists() and (folder / "1").exists())
        return lab

    yield start
    for lab in started:
        lab.terminate()
        lab.wait(timeout=30)
    machine.remove_abandoned()
    for lab in started:
        lab.communicate()


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; that it takes long is no failure, that it takes half a minute is one."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def left_of(lab: subprocess.Popen[str]) -> list[str]:
    return [path.name for path in NAMESPACES.glob("simnet-*") if f"-{lab.pid}-" in path.name]


def is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in {"Z", "X"}


def ranks_of(folder: Path) -> list[int]:
    return [int((folder / str(rank)).read_text()) for rank in range(2)]


def inside(name: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
    return [int(pid) for pid in done.stdout.split()]


def fastest(lab: Lab, direction: str, num_bytes: int) -> float:
    """Return the best rate of five transfers: what the shaper lets through, however busy the machine is."""
    outcome = lab.launch([sys.executable, TRANSFER, direction, str(num_bytes), "5"], timeout_s=60)
    outcome.raise_if_failed()
    return max(map(float, outcome.outputs[0].split()))


@pytest.mark.timed
def test_a_nic_sends_and_receives_at_its_bandwidth_and_at_a_new_one() -> None:
    with Lab(LabSpec(num_nodes=3, bandwidth=Bandwidth.parse("200 Mbit/s"))) as lab:
        for direction in ("gather", "scatter"):
            assert fastest(lab, direction, 2_500_000) == pytest.approx(GOODPUT * 25e6, rel=0.15), direction
        lab.shape(Bandwidth.parse("100 Mbit/s"))
        assert fastest(lab, "gather", 1_250_000) == pytest.approx(GOODPUT * 12.5e6, rel=0.15)
        lab.shape(None)
        assert fastest(lab, "gather", 2_500_000) > 50e6


@pytest.mark.timed
def test_a_latency_is_waited_for_one_way_and_the_bandwidth_stays() -> None:
    spec = LabSpec(num_nodes=2, bandwidth=Bandwidth.parse("100 Mbit/s"), latency=Duration(15e-3))
    with Lab(spec) as lab:
        outcome = lab.launch([sys.executable, "-c", ROUND_TRIP], timeout_s=60)
        outcome.raise_if_failed()
        assert 0.030 <= float(outcome.outputs[0]) < 0.045
        assert fastest(lab, "gather", 5_000_000) == pytest.approx(GOODPUT * 12.5e6, rel=0.2)


@pytest.mark.timed
def test_one_nic_gets_slower_while_data_flows_through_it_and_nothing_is_stuck() -> None:
    with Lab(LabSpec(num_nodes=3, bandwidth=Bandwidth.parse("400 Mbit/s"))) as lab:
        slower = Timer(1.2, lab.shape, (Bandwidth.parse("40 Mbit/s"), [1]))
        slower.start()
        outcome = lab.launch([sys.executable, TRANSFER, "gather", "5000000", "12"], timeout_s=60)
        slower.join()
        outcome.raise_if_failed()
        rates = [float(rate) for rate in outcome.outputs[0].split()]
    # Rank 0 receives from both others at once, so that the slow one decides.
    assert max(rates) == pytest.approx(GOODPUT * 50e6, rel=0.2)
    assert max(rates[-3:]) == pytest.approx(2 * GOODPUT * 5e6, rel=0.2)


@pytest.mark.timed
def test_a_rank_has_the_part_of_a_core_that_is_set() -> None:
    with Lab(LabSpec(num_nodes=2, cores_per_rank=0.4)) as lab:
        lab.set_cores(1, 0.2)
        outputs = lab.launch([sys.executable, "-c", BUSY], timeout_s=60).outputs
    # The most of sixteen short times: on a busy machine a rank often gets less than its part, and never more.
    for most, part in zip(map(float, outputs), (0.4, 0.2), strict=True):
        assert 0.6 * part < most < 1.15 * part
    assert not list(Path("/sys/fs/cgroup").rglob("simnet-*-rank*"))


def test_a_program_runs_on_a_spare_node_until_it_is_left(tmp_path: Path) -> None:
    with Lab(LabSpec(num_nodes=1, spare_nodes=1)) as lab:
        (spare,) = [path.name for path in NAMESPACES.glob(f"simnet-*-{os.getpid()}-*-node1")]
        with lab.running(1, [sys.executable, "-m", "http.server", "5000", "--directory", str(tmp_path)]):
            assert lab.launch([sys.executable, "-c", CONNECT], timeout_s=30).exit_code == 0
            (pid,) = inside(spare)
        assert not is_running(pid)


def test_nothing_is_left_after_a_run() -> None:
    before = set(NAMESPACES.glob("*"))
    with Lab(LabSpec(num_nodes=2)) as lab:
        assert len(set(NAMESPACES.glob("*")) - before) == 3
        assert lab.launch(["true"]).exit_code == 0
    assert set(NAMESPACES.glob("*")) == before


def test_a_process_that_a_rank_has_hidden_does_not_outlive_the_lab(tmp_path: Path) -> None:
    hide = f"setsid sh -c 'echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 1000' &"
    script = f"{hide} while [ ! -e {tmp_path}/pid ]; do sleep 0.01; done"
    with Lab(LabSpec(num_nodes=1)) as lab:
        assert lab.launch(["sh", "-c", script]).exit_code == 0
        hidden = int((tmp_path / "pid").read_text())
        assert is_running(hidden)
    assert not is_running(hidden)


def test_the_first_rank_that_fails_ends_the_others_and_is_shown(start: Callable[..., subprocess.Popen[str]]) -> None:
    lab = start("touch {folder}/$RANK; [ $RANK = 0 ] && sleep 1000; sleep 0.1; echo out of luck; exit 7")
    said = lab.communicate(timeout=30)[1]
    assert lab.returncode == 7
    assert "[rank 1] out of luck" in said
    assert "rank 1 failed first, with exit code 7" in said
    assert left_of(lab) == []


def test_a_timeout_stops_every_rank() -> None:
    with Lab(LabSpec(num_nodes=2)) as lab:
        outcome = lab.launch(["sh", "-c", "echo here; [ $RANK = 0 ] || sleep 1000"], timeout_s=2.0)
        assert (outcome.exit_code, outcome.unfinished_ranks) == (124, (1,))
        assert outcome.last_lines() == ["[rank 1] here"]
        assert lab.launch(["true"]).exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_ranks_and_lab(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    lab = start()
    lab.send_signal(number)
    said = lab.communicate(timeout=30)
    assert lab.returncode == 128 + number, said
    assert left_of(lab) == []
    assert not any(map(is_running, ranks_of(tmp_path / "lab")))


def test_impatience_does_not_stop_the_clean_up(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    lab = start("trap '' TERM; " + SLEEPER)
    while lab.poll() is None and left_of(lab):
        lab.send_signal(signal.SIGINT)
        time.sleep(0.001)
    lab.communicate(timeout=30)
    assert lab.returncode in {130, -signal.SIGINT}
    assert left_of(lab) == []
    assert not any(map(is_running, ranks_of(tmp_path / "lab")))


def test_a_start_removes_what_a_killed_lab_has_left_and_nothing_else(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    other = f"simnet-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", other], check=True)
    stranger = subprocess.Popen(["ip", "netns", "exec", other, "sleep", "1000"])
    alive, killed = start(name="alive"), start(name="killed")
    try:
        killed.kill()
        killed.wait()
        names = left_of(killed)
        assert len(names) == 3
        until(lambda: not any(map(is_running, ranks_of(tmp_path / "killed"))))
        orphans = [pid for name in names for pid in inside(name)]
        assert len(orphans) == 2
        with Lab(LabSpec(num_nodes=1)) as lab:
            assert [owner.pid for owner in lab.removed] == [killed.pid]
            assert left_of(killed) == []
            assert not any(map(is_running, orphans))
        assert len(left_of(alive)) == 3
        assert all(map(is_running, ranks_of(tmp_path / "alive")))
        assert (NAMESPACES / other).exists()
        assert is_running(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()
        subprocess.run(["ip", "netns", "delete", other], check=True)


def test_a_second_lab_in_a_process_is_refused() -> None:
    with Lab(LabSpec(num_nodes=1)) as lab:
        with pytest.raises(SimnetError, match="this process has one already"), Lab(LabSpec(num_nodes=1)):
            pass
        assert lab.launch(["true"]).exit_code == 0
    with Lab(LabSpec(num_nodes=1)):
        pass


def test_a_set_up_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(NAMESPACES.glob("*"))
    run = machine.run_command

    def fails_at_the_shaper(command: tuple[str, ...]) -> None:
        run((*command[:-1], "nonsense") if command[0] == "tc" else command)

    monkeypatch.setattr(machine, "run_command", fails_at_the_shaper)
    with pytest.raises(SimnetError, match=r"'tc .* failed"), Lab(LabSpec(num_nodes=2)):
        pass
    assert set(NAMESPACES.glob("*")) == before
