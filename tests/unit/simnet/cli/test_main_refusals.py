"""Mistakes on the command line: one line on stderr, exit code 2, and no file is made or changed.

`{...}` stands for a committed file; all others are made by `_here`.
"""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from simnet.analysis import workers
from simnet.core import files
from tests.helpers import card_samples, chakra_traces, rank_runs, step_files
from tests.helpers.cli import assert_refused, run
from tests.helpers.golden import GLOO, GOLDEN, IPERF3
from tests.helpers.needs import needs
from tests.helpers.scenario_samples import SWEEP, pod, write
from tests.helpers.time_to_target_samples import write_trainings

RESNET50 = 25_557_032
"""Parameters of the workload of resnet50_10gbit."""
PLACES = {
    **{f"log{count}": files.data_path("published", "nccl-tests", f"a100_azure_nd_v4_{count}gpus.log")
       for count in (2, 4, 16)},
    "log1": GOLDEN / "a100_azure_nd_v4_1gpus.log", "gloo": GLOO, "iperf3": IPERF3, "cpu": GOLDEN.parent / "card_cpu",
}  # fmt: skip

OF_A_FILE = {
    "name": "w", "batch_per_rank": 1, "forward": "1 ms", "backward": "1 ms", "gradients": "./gradients.json",
}  # fmt: skip
NODES, BANDWIDTH = "cluster.num_nodes", "cluster.inter_node.bandwidth"

WORLD = "--nodes 1 --ranks-per-node 2"
FAULTS = """'cluster.faults=[{{kind="slow_rank", node=1, compute_slowdown=1.5}}]'"""
OVER = f"crossover pod.toml --over {BANDWIDTH} --from '1 Gbit/s' --to '2 Gbit/s'"
RACE = "time-to-target resnet50_10gbit trainings.json"
BERT = "bert_base_10gbit"

INPUTS = [
    "simulate in.toml -o in.toml", "simulate in.toml -o directory/../in.toml", "simulate in.toml -o symlink.toml",
    "simulate in.toml -o hardlink.toml", "simulate in.toml --trace in.toml", "simulate in.toml -o cluster.toml",
    f"crossover in.toml --over {NODES} --from 1 --to 4 -o in.toml",
    "advise in.toml -o in.toml", "race in.toml characters --same-task -o cluster.toml",
    "calibrate in.log --cluster azure_nd_a100_v4 -o in.log", "calibrate in.log --workload in.log",
    "calibrate in.log --figure in.log", f"step import t.0.et {WORLD} -o t.0.et", "step export t.1.et --chakra t",
]  # fmt: skip
"""Commands that would replace what they read."""
LONG = "a" * 300

BEFORE_SIMULATING = [
    ("simulat", "'simulat': unknown command. Did you mean 'simulate'?"),
    ("simulate", "Missing argument 'SCENARIO'. See: simnet simulate --help"),
    ("simulate pod.toml --fromat json", "--format"),
    ("advise pod.toml --price 2", "No such option '--price'. Did you mean '--price-per-gpu-hour'? See: simnet advise"),
    ("simulate pod.toml --set 'strategy={{kind=\"power_sgd\", rank=4}}'", "'rank'. Did you mean 'matrix_rank'?"),
    ("simulate pod.toml --set calibration=h100_tcp", "'h100_tcp': unknown calibration. Did you mean 'a100_tcp_est"),
    ("simulate nonesuch", "'nonesuch': unknown experiment."),
    ("simulate pod.toml --set cluster.num_node=4", "--set: cluster: unknown key 'num_node'."),
    ("simulate pod.toml --set cluster.name=\udcff", "'cluster.name=\\udcff': has bytes that are"),
    ("simulate contradicting.toml", "gradient and num_elements"),
    ("simulate step.json", "a recorded step, not a scenario"),
    (f"step import cut.0.et {WORLD} -o new.json", "cut short or damaged at byte"),
    ("calibrate in.log --workload out --figure out", "is named by --workload and by --figure; name two files"),
    ("simulate pod.toml --set run.global_batch=64 --set run.grad_accumulation=2",
     "--set: run.grad_accumulation: 2: follows from global_batch = 64"),
    *((line, "is an input") for line in INPUTS),
    *((f"simulate pod.toml {option} {place}", message.format(option=option)) for option in ("-o", "--trace")
      for place, message in (
        (".", "is a directory; name a file"),
        ("pod.toml/result", "cannot be written (Not a directory); name another with {option}"),
        ("new/result", "no such directory; make it, or name another file with {option}"),
        (LONG, "cannot be written (File name too long); name another with {option}"),
        ("loop", "loop: "),
        ("''", "'': is empty; name a file or a directory."),
    )),
    ("simulate pod.toml -o same.json --trace link", "link: is named by -o and by --trace; name two files"),
    ("simulate pod.toml -o t.baseline.json --trace t.json", "t.baseline.json: is named by -o and by --trace"),
    ("simulate in.baseline.toml --trace in.toml", "in.baseline.toml"),
    ("simulate pod.toml --trace kept.json", "is a directory; name a file"),
    ("simulate pod.toml --trace t.json --trace-iterations 0", "0 is not in the range 1<=x<=1000."),
    ("simulate pod.toml --trace-iterations 2", "--trace-iterations: no effect without --trace"),
    ("simulate pod.toml --lost-time", "--lost-time: pod: cluster.faults: []: no fault that time is"),
    (f"simulate pod.toml --lost-time --set {FAULTS} --format csv", "--lost-time: no effect on --format csv, which is"),
    *((f"{command} --set {'.'.join('a' * depth)}=1", "nested deeper than 50 levels; write fewer levels")
      for depth in (51, 2_700) for command in ("simulate pod.toml", "sweep pod.toml", "advise plain.toml")),
    ("sweep plain.toml", "nothing to sweep; add a [sweep] table or --set KEY=V1,V2"),
    ("sweep pod.toml -o pod.toml", "cannot be written"),
    ("sweep pod.toml -o pod.toml/out", "cannot be written"),
    ("sweep pod.toml -o directory", "results.csv: is a directory"),
    ("sweep pod.toml -o piped", "results.csv: not a regular file; remove it"),
    ("sweep pod.toml -o linked", "results.csv: a link leads out of"),
    ("sweep pod.toml -o linked_journal", "points.sqlite: a link leads out of"),
    ("sweep pod.toml -o damaged", "points.sqlite: is damaged, or no journal; delete the file to simulate all points"),
    ("sweep pod.toml --tolerance 1e-3", "--tolerance"),
    (f"sweep pod.toml --break-even {BANDWIDTH} --strict", "See: simnet sweep --break-even --help"),
    ("sweep pod.toml --scheduler tcp://10.0.0.1:1 --dask-local 2", "--dask-local"),
    ("sweep pod.toml --jobs 2 --dask-local 2", "--jobs: 2: has no effect with --dask-local; drop one of the two"),
    ("sweep pod.toml --jobs 2 --scheduler x", "--jobs: 2: has no effect with --scheduler; drop one of the two"),
    ("sweep pod.toml --dask-local 0", "Invalid value for '--dask-local': 0 is not in the range 1<=x<=1024"),
    ("sweep pod.toml --format parquet", "--format: 'parquet': needs a directory for its file; add -o DIR"),
    ("sweep plain.toml --points nonesuch.csv", "nonesuch.csv: no such file"),
    ("sweep plain.toml --points x.csv --point a=1", "--points: x.csv: --point lists points, too; give one of the two"),
    ("sweep plain.toml --point 4", "--point: '4': write KEY=VALUE, such as cluster.num_nodes=16"),
    ("sweep plain.toml --point ''", "--point '': no key"),
    (f"sweep plain.toml --point {NODES}=1,{NODES}=2", "--point: 'cluster.num_nodes=2': 'cluster.num_nodes' set twice"),
    (f"sweep plain.toml --point {NODES}=1 --point workload.batch_per_rank=2", "every point has the same keys"),
    (f"sweep plain.toml --point {NODES}=1 --set {NODES}=2,4", f"--set: '{NODES}': is a key of the points, too"),
    (f"sweep plain.toml --set {NODES}=0,-1 -o out", "all 2 points are refused"),
    (f"{OVER} -o new/x", "no such directory; make it"),
    ("advise plain.toml --systems BinSGM", "--systems: 'BinSGM': unknown system. Did you mean 'BinSGDM'?"),
    ("advise plain.toml --systems ''", "--systems: '': unknown system. Known: ZeRO-1, "),
    ("advise plain.toml --plot x.jpg", "x.jpg: '.jpg': a figure is a .png, .pdf or .svg file; name one"),
    ("advise plain.toml --plot no/x.png", "no such directory; make it, or name another file with --plot"),
    ("advise plain.toml --plot x.png -o x.png", "x.png: is named by -o and by --plot; name two files"),
    (f"advise plain.toml --plot x.png --set {NODES}=1", "--plot: cluster.num_nodes is 1: one node sends nothing over"),
    ("advise plain.toml --set run.fidelity=exact", "plain: needs the exact executor"),
    ("advise plain.toml --set run.draws=3 --draws 3", "--draws: has no effect with run.draws; drop one of the two"),
    ("advise plain.toml --set workload.forward=4", "workload.forward: 4: write a number and a unit"),
    ("advise plain.toml --systems binsgdm --style paper", "--style: 'paper': needs a figure; add --plot, or drop it"),
    (f"{RACE} --style paper", "--style: 'paper': needs a figure; add --plot, or drop it"),
    ("advise plain.toml --step none.json", "none.json"),
    ("advise plain.toml --step pod.toml", "pod.toml"),
    ("advise plain.toml --time-to-target", "Option '--time-to-target' requires an argument"),
    ("time-to-target pod.toml", "Missing argument 'CURVES...'. See: simnet time-to-target --help"),
    (f"{RACE} --at 25", "--at: '25': write a number and a unit"),
    (f"{RACE} --at ,", "--at: ',': write a number and a unit"),
    (f"{RACE} --at '0 bit/s'", "must be"),
    (f"{RACE} --plot times.txt", "times.txt: '.txt': a figure is a .png, .pdf or .svg file"),
    (f"{RACE} --plot no/where.png", "no such directory"),
    (f"{RACE} --plot same.svg -o same.svg", "same.svg: is named by -o and by --plot"),
    (f"{RACE} --steps 0", "--steps"),
    *((f"{RACE} --price-per-gpu-hour '{price}'", "--price-per-gpu-hour") for price in ("two", "-2", "0", "nan", "inf")),
    (f"{RACE} --metric loss", "--metric: has no effect with the convergence of"),
    (f"{RACE} step.csv", "among other curves: no log of a training"),
    ("time-to-target resnet50_10gbit nothing", "'nothing': unknown convergence."),
    ("time-to-target resnet50_10gbit .", "no event file of TensorBoard in it"),
    ("time-to-target resnet50_10gbit empty.csv --target 3 --same-task -o out.txt", "empty.csv: no row; name columns"),
    ("time-to-target nothing characters", "'nothing': unknown experiment."),
    (f"time-to-target {BERT} characters", "110,106,428"),
    (f"time-to-target {BERT} characters", "add --same-task"),
    ("list cluster", "'cluster': unknown part. Did you mean 'clusters'?"),
    ("show vgg61", "'vgg61': unknown part. Did you mean 'vgg16'?"),
    ("show plain.toml --format csv", "--format: 'csv': has no effect"),
    ("show misspelt.json", "Did you mean 'all_reduce'?"),
    ("check contradicting.toml", "must be given once"),
    ("check contradicting_sweep.toml", "must be given once"),
    ("check gradients/bert_base", "checked only with a workload"),
    ("doctor -o no/file", "no"),
    ("doctor --completion tcsh", "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ("report pod.toml --figures out --static page.html",
     "--figures: has no effect with --static; drop one of the two. See: simnet report --help"),
    *((f"record -o new.json {words}", "'no.py': no such file")
      for words in ("no.py --from x", "-- no.py --chakra x", "--force -- no.py --help")),
    ("init mine.toml", "init: --gpu: missing, and there is no terminal to ask on; give it, or --yes"),
    *((f"init mine.toml --yes {flags}", message) for flags, message in (
        ("--gpu H1000", "'H1000': unknown GPU"),
        ("--nic fast", "--nic: "),
        ("--nic '0 Gbit/s'", "must be at least 1 B/s"),
        ("--workload bert_bse", "Did you mean 'bert_base'"),
        ("--workload no.toml", "no.toml"),
        ("--strategy fspd", "mine.toml: strategy"),
        ("--strategy fspd", "Did you mean 'fsdp'"),
        ("--strategy 'x\"\ny = 1'", "unknown strategy"),
        ("--calibration mine", "mine"),
        ("--nodes 0", "0 is not in the range"),
        ("--workload bert_base_squad --gpu T4", "no compute time for GPU 'T4'"),
    )),
    *((f"init {place} --yes", f"{place}: is there already: nothing is overwritten")
      for place in ("pod.toml", "folder.toml", "nowhere.toml")),
    ("init mine --yes", "must end in .toml; try mine.toml"),
    ("init no/mine.toml --yes", "no"),
]  # fmt: skip
OTHERS = [
    ("simulate in.toml -o gradients.json", "is an input"),
    ("crossover pod.toml --over workload.batch_per_rank --from 1 --to 100",
     "--break-even: workload.batch_per_rank: has no effect here: all 9 val"),
    ("advise plain.toml --systems power_sgd --plot a.svg",
     "--plot: nothing but DDP could be predicted: PowerSGD rank 4: strategy.kind"),
    ("calibrate {log2} {log2} --draws 20", "is given twice"),
    ("calibrate {log2} {log4} --draws 20 --bound nan", "Invalid value for '--bound': 'nan' is no number"),
    ("calibrate {log2} {log4} --draws 20 --hold-out {log2}", "is also a file to fit"),
    ("calibrate {log2} {log4} --draws 20 --hold-out {iperf3}", "the fitted files predict nothing"),
    ("calibrate {log2} {log4} --draws 20 --workload x.toml", "0 traces, 0 files of simnet measure model and 0 tables"),
    ("calibrate {log2} {log4} --draws 20 --cluster azure", "'azure': unknown cluster"),
    ("calibrate {log2} {log4} --draws 20 -o none/x.toml", "no such directory"),
    ("calibrate {gloo} -o x.toml", "the files tell neither links nor kernels"),
    ("calibrate {gloo} --workload x.toml", "a trace does not say its batch; give the samples of a rank with --batch"),
    ("calibrate {log1} --draws 20", "one GPU sends nothing: no log is left"),
    ("calibrate {iperf3} {log16} --draws 20 -o x.toml", "inter_node: two files give a value"),
    *((f"calibrate --variation m.json {option}", f"{option.split()[0]}: has no effect with --variation; drop it")
      for option in ("--workload w.toml", "--bound 5", "--draws 20", "--figure f.png")),
    ("calibrate m.json --ranks-per-node 2", "--ranks-per-node: has no effect without --variation; drop it"),
    ("calibrate --variation m.json --ranks-per-node 2", "--ranks-per-node: has no effect on "),
    ("calibrate --variation m.json --ranks-per-node 0", "--ranks-per-node"),
    ("calibrate --variation m.json --ranks-per-node 1.5", "--ranks-per-node"),
    ("calibrate --variation m.json -o m.json", "is an input"),
    ("calibrate --variation m.json -o none/faults.toml", "none"),
    ("card none -o out", "no such directory; name the one that simnet measure gpu"),
    ("card gpu", "card: -o: missing; name a directory for the files, or a checkout with --into"),
    ("card gpu -o pod.toml", "is a file; name a directory with -o"),
    ("card gpu --into .", "is missing; name a checkout of simnet with --into, or use -o"),
    ("card gpu -o out --force", "--force: has no effect without --into; drop it"),
    ("card gpu -o out --base a100_tcp", "'a100_tcp': unknown calibration"),
    ("card {cpu} -o out", "was measured on a CPU: a calibration of a card needs a GPU"),
    ("card {cpu} --accept-cpu --into checkout", "a checkout holds cards alone; use -o"),
    ("card gpu_alone -o out", "no part is there (checks, kernels, step, models,"),
]  # fmt: skip
OF_REPORTS = [
    ("report nothing -o new.html", "'nothing'"),
    ("report directory -o new.html", "results.json"),
    ("report other.json -o new.html", "format"),
    ("report torn.json -o new.html", "torn.json"),
    (f"report {BERT} --measured none.json -o new.html", "none.json"),
    (f"report {BERT} --set {NODES}=0 -o new.html", "cluster.num_nodes: 0"),
    (f"report {BERT} -o .", "is a directory"),
    (f"report {BERT} -o no/r.html", "no such directory"),
    ("report pod.toml --systems '' -o pod.toml", "is an input"),
]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    for name, data in {
        "pod": pod(sweep=SWEEP), "plain": pod(), "in.baseline": pod(), "contradicting": pod(workload__gradient="1 GB"),
        "contradicting_sweep": pod(workload__gradient="1 GB", sweep=SWEEP),
        "cluster": pod()["cluster"], "in": pod(cluster="cluster.toml", workload=OF_A_FILE, sweep=SWEEP),
        "alone": {key: value for key, value in pod().items() if key != "baseline"},
    }.items():  # fmt: skip
        write(folder / f"{name}.toml", data)
    for name, text in {"step.csv": "step,loss\n1,2\n", "empty.csv": "", "mine": "", "damaged/points.sqlite": "{}\n",
                       "torn.json": '{"format": 4, "axes": [], "points": [',
                       "other.json": '{"format": 999, "axes": [], "points": []}'}.items():  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name in ("directory/results.csv", "folder.toml", "kept.baseline.json", "piped", "linked", "linked_journal"):
        (folder / name).mkdir(parents=True)
    os.mkfifo(folder / "piped" / "results.csv")
    for name, target in (("loop", "loop"), ("link", "same.json"), ("symlink.toml", "in.toml"),
                         ("nowhere.toml", "nowhere"),
                         ("linked/results.csv", "../mine"), ("linked_journal/points.sqlite", "../mine")):  # fmt: skip
        (folder / name).symlink_to(target)
    write_trainings(folder / "trainings.json", num_parameters=RESNET50)
    (folder / "hardlink.toml").hardlink_to(folder / "in.toml")
    shutil.copy(PLACES["log2"], folder / "in.log")
    chakra_traces.write(folder / "t.0.et", chakra_traces.compute(0))
    shutil.copy(chakra_traces.GOLDEN / "step.json", folder / "t.1.et")
    (folder / "cut.0.et").write_bytes((chakra_traces.GOLDEN / "pytorch.0.et").read_bytes()[:700])
    gradients = {"tensors": [["a", [1000], 1.0]], "forward_flops_per_sample": 1.0, "backward_flops_per_sample": 2.0}
    (folder / "gradients.json").write_text(json.dumps(gradients))
    (folder / "checkout" / "scenarios" / "workloads").mkdir(parents=True)
    step = step_files.write(folder / "step.json", step_files.step(step_files.layout(step_files.ddp())))
    (folder / "misspelt.json").write_text(step.read_text().replace('"all_reduce"', '"all_redcue"'))
    rank_runs.measurement(folder / "m.json", rank_runs.times(ranks=4, steps=40, slow={2: 1.5}))
    card_samples.write(folder / "gpu", parts=("interference",))
    (folder / "gpu_alone").mkdir()
    shutil.copy(folder / "gpu" / "card.json", folder / "gpu_alone")
    return folder


def refuse(line: str, message: str, folder: Path) -> None:
    before = contents(folder)
    assert_refused(run(*(word.format(**PLACES) for word in shlex.split(line))), message)
    assert contents(folder) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.fixture
def here(samples: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(samples)
    return samples


@pytest.mark.parametrize(("line", "message"), BEFORE_SIMULATING, ids=range(len(BEFORE_SIMULATING)))
@pytest.mark.usefixtures("never_simulated")
def test_a_mistake_is_one_line_before_anything_is_simulated(line: str, message: str, here: Path) -> None:
    refuse(line, message, here)


@pytest.mark.parametrize(("line", "message"), OTHERS, ids=range(len(OTHERS)))
def test_a_mistake_that_files_or_results_show_is_one_line(line: str, message: str, here: Path) -> None:
    refuse(line, message, here)


@pytest.mark.parametrize(("line", "message"), OF_REPORTS)
def test_what_cannot_be_reported_is_one_line(line: str, message: str, here: Path) -> None:
    needs("plotly")
    refuse(line, message, here)


@pytest.mark.slow
@pytest.mark.usefixtures("never_simulated")
def test_a_scheduler_that_has_no_address_and_a_pipe_for_parquet_are_one_line(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("distributed")
    needs("pyarrow")
    monkeypatch.setattr(workers, "ANSWER_S", 0.3)
    refuse("sweep pod.toml --scheduler größer:1", "--scheduler: 'größer:1': ", here)
    os.mkfifo(tmp_path / "results.parquet")
    refused = run("sweep", "pod.toml", "-o", tmp_path, "--format", "parquet")
    assert_refused(refused, "results.parquet: not a regular file; remove it")


def test_links_in_a_circle_are_named(here: Path) -> None:
    assert re.search("in a circle|Too many levels", run("simulate", "pod.toml", "-o", "loop").stderr)
