"""Files of every kind that a user may hand over, and the commands that read them."""

import gzip
import json
import random
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from simnet.cli.main import cli
from simnet.core import files
from tests.helpers import step_files
from tests.helpers.mutations import as_json, as_toml, damaged, damaged_bytes
from tests.helpers.nccl_logs import Run
from tests.helpers.needs import is_here
from tests.helpers.scenario_samples import SWEEP, pod, write

GOLDEN = Path(__file__).parents[1] / "golden"
LAB_RUNS = Path(__file__).parents[2] / "evidence/results/lab_campaign"
MODEL = {"gradients": "./in.json", "forward": "1 ms", "backward": "2 ms", "optimizer": "0 s"}
TRAINING = LAB_RUNS / "training_3x1_2000mbit.json"
IPERF3 = GOLDEN / "calibrate/iperf3_loopback.json"
LINKS = LAB_RUNS / "links_2x1_100mbit.json"
CLUSTER = {
    **pod()["cluster"],
    "gpu": "A100", "fabric": {"nodes_per_leaf": 1, "oversubscription": 2.0},
    "slow_nodes": [{"node": 1, "nic_slowdown": 2.0}],
}  # fmt: skip
WORKLOAD = {
    **pod()["workload"], "title": "W", "batch_per_rank": 4, "dtype": "fp16", "source": "a paper",
}  # fmt: skip
CALIBRATION = {
    "kind": "measured", "source": "mine", "inter_node": {"efficiency": 0.9}, "intra_node": {"efficiency": 0.8},
    "collective_launch": "10 us", "memory_bandwidth": "1 TB/s", "intervals": {"inter_node.efficiency": [0.8, 1.1]},
    "kernels": {"quantize": {"launch": "5 us", "time_per_element": "1 ns", "source": "mine"}},
}  # fmt: skip
BASE = CALIBRATION | {
    "by_nodes": [{"nodes": 2, "efficiency": 0.5, "latency": "9 us", "intervals": {"efficiency": [0.9, 1.1]}}],
    "libraries": {"mpi": {"carries": ["qsgd"], "poll_cost": "1 us"}},
    "all_reduce": "hierarchical",
}  # fmt: skip
STEPS = b"""nodes,ranks_per_node,batch,strategy,step_ms,grad_accumulation,bucket_cap_mb
1,1,32,all_reduce,90,1,
1,8,32,all_reduce,95,1,25
1,8,32,qsgd:bits=4,99,1,
2,8,32,all_reduce,300,1,25
2,8,32,qsgd:bits=4,130,1,
"""
WHOLE = pod(strategy={"kind": "qsgd", "bits": 4}, run={"steps": 10, "draws": 20}, sweep=SWEEP, name="pod")
POINTS = [{"cluster.num_nodes": nodes, "workload.batch_per_rank": 2} for nodes in (1, 2, 4)]
GRADIENTS = {
    "tensors": [["a", [100, 10], 1.0], ["b", [10], 0.5]],
    "forward_flops_per_sample": 1e9, "backward_flops_per_sample": 2e9,
}  # fmt: skip


def of_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


@cache
def few_results() -> tuple[Any, bytes]:
    """Return the results and the journal of a sweep over two points."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        source = write(Path(name) / "pod.toml", pod())
        CliRunner().invoke(cli, ["sweep", str(source), "--set", "cluster.num_nodes=1,2", "-o", str(out)])
        return of_json(out / "results.json"), (out / "points.sqlite").read_bytes()


def few_trainings() -> Any:
    found = of_json(files.locate("convergence", "digits"))
    systems = dict(list(found["systems"].items())[:2])
    return found | {"systems": systems, "curves": [c for c in found["curves"] if c["system"] in systems][:4]}


def nothing(data: bytes) -> bytes:
    return data


def journal(entry: bytes) -> bytes:
    """Return a journal whose first result is given."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(few_results()[1])
        database.execute("UPDATE points SET result = CAST(? AS TEXT) WHERE place = 1", (entry,))
        database.commit()
        return database.serialize()


def first_result() -> Any:
    """Return the first result of the journal."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(few_results()[1])
        return json.loads(database.execute("SELECT result FROM points WHERE place = 1").fetchone()[0])


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of file: what it holds, how it is written and called, and the commands that read it.

    Attributes:
        name: of the file, in its folder.
        whole: gives data, or the bytes of a file that is damaged as such.
        commands: each of them takes the file as it is.
        write: data to bytes.
        wrap: bytes to the file.
        others: scenarios that stand beside it, by name.
    """

    name: str
    whole: Callable[[], Any]
    commands: tuple[str, ...]
    write: Callable[[Any], bytes] = as_json
    wrap: Callable[[bytes], bytes] = nothing
    others: dict[str, dict[str, Any]] = field(default_factory=dict)

    def content(self) -> bytes:
        """Return the whole file."""
        whole = self.whole()
        return whole if isinstance(whole, bytes) else self.wrap(self.write(whole))

    def damaged(self, rng: random.Random) -> bytes:
        """Return the file, damaged."""
        whole = self.whole()
        return damaged_bytes(whole, rng) if isinstance(whole, bytes) else self.wrap(damaged(whole, self.write, rng))


SCENARIO = ("simulate in.toml -o new/out", "check in.toml", "show in.toml", "sweep in.toml -o new --jobs 1")
PART = ("check in.toml", "show in.toml", "simulate whole.toml --format json -o new/out")
KINETO = GOLDEN / "calibrate/kineto_gloo_2_ranks.json.gz"
KINDS = {
    "scenario": Kind(
        name="in.toml",
        whole=lambda: WHOLE,
        write=as_toml,
        commands=(
            *SCENARIO,
            "simulate in.toml --trace new/out",
            "advise in.toml --systems BinSGDM -o new/out",
            "race in.toml digits --same-task --at 10Gbit/s -o new/out",
            "crossover in.toml --over cluster.inter_node.bandwidth --from 1Gbit/s --to 9Gbit/s -o new/out",
        ),
    ),
    "shipped scenario": Kind(
        name="in.toml", whole=files.locate("experiments", "overlap").read_bytes, commands=SCENARIO
    ),
    "listed points": Kind(
        name="in.toml",
        whole=lambda: pod(
            run={"global_batch": 64, "draws": 0}, sweep={"strategy": ["binsgdm", "qsgd"], "points": POINTS}
        ),
        write=as_toml,
        commands=SCENARIO,
    ),
    "points": Kind(
        name="in.csv",
        whole=lambda: b"cluster.num_nodes,cluster.inter_node.bandwidth\n2,10 Gbit/s\n3,25 Gbit/s\n",
        commands=("sweep whole.toml --points in.csv -o new --draws 0 --jobs 1",),
        others={"whole.toml": pod(run={"global_batch": 64})},
    ),
    "cluster": Kind(
        name="in.toml",
        whole=lambda: CLUSTER,
        write=as_toml,
        commands=PART,
        others={"whole.toml": pod(cluster="in.toml")},
    ),
    "workload": Kind(
        name="in.toml",
        whole=lambda: WORKLOAD,
        write=as_toml,
        commands=PART,
        others={"whole.toml": pod(workload="in.toml")},
    ),
    "calibration": Kind(
        name="in.toml",
        whole=lambda: CALIBRATION,
        write=as_toml,
        commands=PART,
        others={"whole.toml": pod(calibration="in.toml", run={"draws": 20})},
    ),
    "gradients": Kind(
        name="in.json",
        whole=lambda: GRADIENTS,
        commands=("simulate whole.toml -o new/out",),
        others={"whole.toml": pod(workload=MODEL)},
    ),
    "result": Kind(
        name="in.json",
        whole=lambda: few_results()[0]["points"][0],
        commands=("simulate in.json -o new/out", "show in.json", "check in.json"),
    ),
    "results": Kind(name="in.json", whole=lambda: few_results()[0], commands=("plot in.json -o new",)),
    "journal": Kind(
        name="out/points.sqlite",
        whole=first_result,
        wrap=journal,
        others={"pod.toml": pod()},
        commands=(
            "sweep pod.toml --set cluster.num_nodes=1,2 -o out",
            *(["sweep pod.toml --set cluster.num_nodes=1,2 -o out --format parquet"] if is_here("pyarrow") else []),
        ),
    ),
    "journal, its bytes": Kind(
        name="out/points.sqlite",
        whole=lambda: few_results()[1],
        others={"pod.toml": pod()},
        commands=("sweep pod.toml --set cluster.num_nodes=1,2 -o out",),
    ),
    "measurement": Kind(
        name="in.json", whole=lambda: of_json(LINKS), commands=("calibrate in.json --draws 20 -o new/out",)
    ),
    "training": Kind(name="in.json", whole=lambda: of_json(TRAINING), commands=("validate overlap in.json",)),
    "convergence": Kind(
        name="in.json",
        whole=few_trainings,
        others={"pod.toml": pod()},
        commands=("check in.json", "show in.json", "race pod.toml in.json --same-task --at 10Gbit/s -o new/out"),
    ),
    "nccl-tests": Kind(
        name="in.log",
        whole=files.data_path("published", "nccl-tests", "a100_azure_nd_v4_8gpus.log").read_bytes,
        commands=("calibrate in.log --draws 20 -o new/out",),
    ),
    "nccl-tests, several runs": Kind(
        name="in.log",
        whole=lambda: "\n".join(
            f"[1,0]<stdout>:{line}" for shape in (1, 2) for line in Run(num_nodes=shape).text().splitlines()
        ).encode(),
        commands=("calibrate in.log --draws 20 -o new/out",),
    ),
    "nccl-tests in JSON": Kind(
        name="in.json", whole=Run(num_nodes=2).as_json, commands=("calibrate in.json --draws 20 -o new/out",)
    ),
    "iperf3": Kind(
        name="in.json",
        whole=lambda: of_json(IPERF3),
        commands=("calibrate in.json --draws 20 --cluster azure_nd_a100_v4 -o new/out",),
    ),
    "kineto": Kind(
        name="in.json.gz",
        whole=lambda: json.loads(gzip.decompress(KINETO.read_bytes())),
        wrap=gzip.compress,
        commands=("calibrate in.json.gz --batch 4 --workload new/out",),
    ),
    "profiler": Kind(
        name="in.json.gz",
        whole=lambda: json.loads(gzip.decompress(KINETO.read_bytes())),
        wrap=gzip.compress,
        commands=("step import in.json.gz --ranks-per-node 2 -o new/out",),
    ),
    "chakra": Kind(
        name="in.0.et",
        whole=(GOLDEN / "chakra/pytorch.0.et").read_bytes,
        commands=("step import in.0.et --ranks-per-node 4 -o new/out",),
    ),
    "chakra of simnet": Kind(
        name="in.5.et", whole=(GOLDEN / "chakra/exported.5.et").read_bytes, commands=("step import in.5.et -o new/out",)
    ),
    "chakra in JSON": Kind(
        name="in.0.json",
        whole=(GOLDEN / "chakra/pytorch.0.json").read_bytes,
        commands=("step import in.0.json --ranks-per-node 4 -o new/out",),
    ),
    "recorded step": Kind(
        name="in.json",
        whole=step_files.two_layouts,
        commands=(
            *("step export in.json --nodes 2 --chakra new/out", "show in.json", "check in.json"),
            "simulate whole.toml --set cluster.num_nodes=4 -o new/out",
            "advise whole.toml --step in.json --systems BinSGDM --draws 0 -o new/out",
        ),
        others={"whole.toml": pod(strategy={"kind": "recorded", "file": "in.json"})},
    ),
    "base": Kind(
        name="in.toml",
        whole=lambda: BASE,
        write=as_toml,
        commands=(f"calibrate {IPERF3} --draws 20 --base in.toml -o new/out",),
    ),
    "steps": Kind(
        name="in.csv",
        whole=lambda: STEPS,
        commands=(
            "calibrate in.csv --trained resnet50 --cluster generic_v100_25gbit --base v100_tcp_estimate "
            "--accept-poor-fit -o new/out",
        ),
    ),
    "packed": Kind(
        name="in.json.gz", whole=KINETO.read_bytes, commands=("calibrate in.json.gz --batch 4 --workload new/out",)
    ),
}
# Commands that refuse even the whole file: it alone is not all that they need.
NEED_MORE = {"training"}
