"""`make gpu`: the Python that it finds, what it does with it, and what it says where it finds none."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("python3", "python3.14", "python3.13", "python3.12", "python3.11", "python")
# A Python of which only the words of its command line are seen. KIND says what it can import: "cuda" has torch with
# CUDA and all else, "plain" what measuring needs, "bare" torch with CUDA alone, "cpu" everything but CUDA, "none"
# nothing. Only "cuda" has pytest, or what stands for it.
FAKE = """#!/bin/sh
kind=KIND
case "$*" in
    *torch.version.cuda*) [ $kind = cuda ] || [ $kind = bare ] || [ $kind = plain ] ; exit ;;
    "-c "*pytest*) [ $kind = cuda ] ; exit ;;
    *"platform.python_version"*) echo "a Python of the test" ; exit ;;
    "-c "*simpy*) [ $kind = cuda ] || [ $kind = cpu ] ; exit ;;
    "-c "*) [ $kind = cuda ] || [ $kind = plain ] ; exit ;;
    "-m pytest"*) echo "NAME: ${CUDA_VISIBLE_DEVICES-all cards}: $*" >> LOG ; exit ${TEST_CODE:-0} ;;
    "-m binsgdm measure"*) echo "measures" >&2 ; echo "NAME: $*" >> LOG ; exit ${MEASURE_CODE:-0} ;;
    "-m pip download"*) echo "NAME: asks" >> LOG ; sleep ${INDEX_S:-0} ; exit ${INDEX_CODE:-1} ;;
    "-m simnet measure gpu --card"*) echo "NAME: $*" >> LOG ; exit 0 ;;
esac
echo "NAME: $*" >> LOG
exit 1
"""


class Machine:
    """A machine with some Pythons, and with or without a card."""

    def __init__(self, folder: Path, *, has_card: bool = True, **kinds: str) -> None:
        self.folder, self.log = folder, folder / "log"
        self.has_card = has_card
        (folder / "bin").mkdir()
        (folder / "venv" / "bin").mkdir(parents=True)
        for name in NAMES:
            self.add(folder / "bin" / name, kinds.get(name.replace(".", "_"), "none"))
        self.add(folder / "venv" / "bin" / "python", kinds.get("venv", "none"))
        self.add(
            folder / "bin" / "nvidia-smi", "none", "#!/bin/sh\n[ $1 = -L ]\n" if has_card else "#!/bin/sh\nexit 9\n"
        )

    def add(self, path: Path, kind: str, text: str = FAKE) -> Path:
        path.write_text(
            text.replace("KIND", kind)
            .replace("LOG", str(self.log))
            .replace("NAME", path.parts[-1 - ("venv" in path.parts) * 2])
        )
        path.chmod(0o755)
        return path

    def run(self, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        known: Mapping[str, str] = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin", "VENV": str(self.folder / "venv"),
            "GPU_DEVICES": str(self.folder / "none"), "HOME": str(self.folder), "PYTHON": "",
        }  # fmt: skip
        command = ["sh", str(ROOT / ".ci" / "gpu.sh"), str(self.folder / "gpu"), *args]
        given = {**known, **environment}
        return subprocess.run(command, env=given, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)

    def done(self, *, tests: bool = False) -> list[str]:
        """Return who did what, without the folder; with tests or without."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.replace(f"{self.folder}/", "") for line in lines if tests or "-m pytest" not in line]


MEASURED = "-m binsgdm measure gpu -o gpu"
BASE = "--base a100_tcp_estimate"
CARD = "simnet measure gpu --card"
MADE = f"-m {CARD} gpu {BASE} -o gpu-card"


def test_the_target_hands_over_what_it_is_given() -> None:
    given = ["make", "-n", "gpu", "GPU_ARGS=--only=kernels", "PYTHON=python3.12", "VENV=there"]
    done = subprocess.run(given, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "VENV='there' PYTHON='python3.12'" in done.stdout
    assert "sh .ci/gpu.sh out/gpu --only=kernels" in done.stdout


def test_the_first_python_with_cuda_measures_and_calibrates(tmp_path):
    machine = Machine(tmp_path, venv="cpu", python3="cpu", python3_12="cuda")
    done = machine.run("--only=kernels")
    assert done.returncode == 0, done.stderr
    assert machine.done() == [f"python3.12: {MEASURED} --only=kernels", f"python3.12: {MADE}"]
    assert done.stderr.startswith("make gpu: a Python of the test (python3.12)")


@pytest.mark.parametrize(("kind", "measures"), [("cuda", "named"), ("cpu", "python3")])
def test_a_python_that_is_named_comes_first_where_it_can_measure(kind, measures, tmp_path):
    machine = Machine(tmp_path, venv="cuda", python3="cuda") if kind == "cuda" else Machine(tmp_path, python3="cuda")
    named = machine.add(tmp_path / "named", kind)
    done = machine.run(PYTHON=str(named))
    assert done.returncode == 0
    assert machine.done()[0] == f"{measures}: {MEASURED}"
    refusal = f"make gpu: {named} is no Python from 3.11 on whose torch has CUDA: taking another"
    assert (refusal in done.stderr) == (kind == "cpu")


TESTS = (
    "-m pytest -q -W default -p no:cacheprovider -m gpu tests/gpu tests/unit/binsgdm/kernels --checks gpu/checks.json"
)


@pytest.mark.parametrize("code", [0, 1])
def test_the_card_is_tested_before_it_is_measured_whatever_the_tests_say(code, tmp_path):
    machine = Machine(tmp_path, python3="cuda")
    done = machine.run(TEST_CODE=str(code))
    assert done.returncode == code
    assert machine.done(tests=True) == [f"python3: all cards: {TESTS}", f"python3: {MEASURED}", f"python3: {MADE}"]
    assert ("make gpu: tests have failed on this card: do not trust its times" in done.stderr) == bool(code)


@pytest.mark.parametrize(
    ("args", "was_tested", "expected"),
    [(["--only=kernels"], False, 0), (["--quick"], True, 0), (["--force"], True, 1), (["--quick"], False, 1)],
)
def test_a_card_is_tested_once_a_folder_and_not_for_one_part(args, was_tested, expected, tmp_path):
    machine = Machine(tmp_path, python3="cuda")
    (tmp_path / "gpu").mkdir()
    if was_tested:
        (tmp_path / "gpu" / "checks.json").write_text("{}")
    assert machine.run(*args).returncode == 0
    assert len(machine.done(tests=True)) - len(machine.done()) == expected


@pytest.mark.parametrize(("code", "expected"), [("1", 2), ("2", 1), ("130", 1)])
def test_a_part_that_fails_leaves_a_calibration_and_any_other_end_none(code, expected, tmp_path):
    machine = Machine(tmp_path, python3="cuda")
    assert machine.run(MEASURE_CODE=code).returncode == int(code)
    assert len(machine.done()) == expected


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ({"has_card": False, "python3": "cuda"}, "no GPU: no driver has made a device here: run it on a machine with"),
        ({"python3": "cpu"}, "torch cannot be installed: install a torch with CUDA, or name a Python that has one"),
        ({"python3": "bare"}, "python3 has torch, but click or numpy is missing and cannot be installed: put them on"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(kinds, said, tmp_path):
    machine = Machine(tmp_path, **kinds)
    done = machine.run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(f"make gpu: {said}")
    assert not [line for line in machine.done() if "binsgdm" in line]


@pytest.mark.parametrize("fails", ["", "transformers"])
def test_where_no_torch_has_cuda_one_is_installed_with_what_the_models_need(fails, tmp_path):
    machine = Machine(tmp_path)
    (tmp_path / "venv-gpu" / "bin").mkdir(parents=True)
    installing = """#!/bin/sh
case "$*" in
    *torch.version.cuda*) exit 1 ;;
    *__version__.split*) echo 11 ;;
    *"platform.python_version"*) echo "a Python of the test" ;;
    "-m pip install"*) shift 5 ; echo "pip: $*" >> LOG ; case "$*" in FAILING*) exit 1 ;; esac ;;
    "-m "*) echo "$*" >> LOG ;;
esac
"""
    installing = installing.replace("FAILING", "pillow" if fails else "nothing")
    machine.add(tmp_path / "venv-gpu" / "bin" / "python", "", installing)
    done = machine.run()
    assert done.returncode == 0, done.stderr
    models = ["pip: pillow transformers>=4.48", "pip: --no-deps torchvision==0.26.*"]
    assert machine.done() == [
        "pip: torch>=2.10", "pip: click numpy>=1.26 numba>=0.60 pytest hypothesis", *models[: 1 if fails else 2],
        MEASURED, MADE,
    ]  # fmt: skip
    assert ("transformers cannot be installed" in done.stderr) == bool(fails)


def test_a_cpu_needs_no_card_and_no_cuda(tmp_path):
    machine = Machine(tmp_path, has_card=False, python3="cuda")
    assert machine.run("--device", "cpu", "--quick").returncode == 0
    assert machine.done(tests=True)[0] == f"python3: : {TESTS}", "the tests see no card"
    assert machine.done() == [
        f"python3: {MEASURED} --device cpu --quick", f"python3: -m {CARD} gpu {BASE} --accept-cpu -o gpu-card",
    ]  # fmt: skip


def test_another_python_calibrates_where_that_of_torch_lacks_packages(tmp_path):
    machine = Machine(tmp_path, venv="cpu", python3="cuda")
    # Only the one of .venv has the packages of simnet.
    fake = machine.folder / "bin" / "python3"
    fake.write_text(fake.read_text().replace('"-c "*simpy*) [ $kind = cuda ]', '"-c "*simpy*) [ $kind = no ]'))
    assert machine.run().returncode == 0
    assert machine.done() == [f"python3: {MEASURED}", f"venv: {MADE}"]


NO_PYTEST = "pytest or hypothesis is missing, so nothing is tested on the card"
CARRIED = f"copy {{0}}/gpu to where simnet is installed, and there: {CARD} {{0}}/gpu {BASE} -o {{0}}/gpu-card"


@pytest.mark.slow
@pytest.mark.parametrize("index", [{}, {"INDEX_CODE": "0", "INDEX_S": "60"}], ids=["refuses", "never answers"])
def test_without_a_network_it_is_said_before_measuring_that_none_will_calibrate(index, tmp_path):
    machine = Machine(tmp_path, python3="plain")
    # The first `timeout` on the path: a second of waiting shows as much as ten.
    short = machine.add(tmp_path / "bin" / "timeout", "", '#!/bin/sh\nshift\nexec /usr/bin/timeout 1 "$@"\n')
    assert short.exists()
    done = machine.run(**index)
    assert done.returncode == 0, done.stderr
    assert machine.done() == ["python3: asks", f"python3: {MEASURED}"], "pip is not tried again"
    why = "packages of simnet are missing, and no package index answers"
    told = CARRIED.format(tmp_path)
    assert done.stderr.splitlines()[1:] == [
        f"make gpu: no calibration will be made here: {why}: after this, {told}",
        f"make gpu: {NO_PYTEST}: python3 -m pip install pytest hypothesis",
        "measures",
        f"make gpu: no calibration was made here: {told}",
    ]


def test_with_a_network_what_calibrating_needs_is_installed_after_measuring(tmp_path):
    machine = Machine(tmp_path, python3="plain")
    done = machine.run(INDEX_CODE="0")
    assert done.returncode == 0, done.stderr
    assert machine.done()[:2] == ["python3: asks", f"python3: {MEASURED}"]
    assert machine.done()[3].startswith("python3: -m venv")
    assert done.stderr.splitlines()[-1] == f"make gpu: no calibration was made here: {CARRIED.format(tmp_path)}"


@pytest.mark.parametrize("words", ["-o {}", "--output {}/", "--output={}", "-o{}"])
def test_the_calibration_of_another_folder_lies_beside_it(words, tmp_path):
    machine = Machine(tmp_path, python3="cuda")
    given = words.format(tmp_path / "a" / "b").split()
    assert machine.run("--quick", *given).returncode == 0
    shown = words.format("a/b")
    assert machine.done() == [
        f"python3: -m binsgdm measure gpu -o a/b --quick {shown}", f"python3: -m {CARD} a/b {BASE} -o a/b-card",
    ]  # fmt: skip
    assert (tmp_path / "a").is_dir()
