"""What `python -m benchmarks` times by default: the simulator, from a folded step to whole commands."""

import tomllib
from collections.abc import Iterator

from benchmarks.timing import Case, Group, command, program

RATES = ",".join(f"{gbit} Gbit/s" for gbit in (5, 10, 15, 20, 25, 30, 40, 50, 75, 100))
MORE_RATES = ",".join(f"{gbit} Gbit/s" for gbit in range(1, 501))
MANY_NODES = ",".join(str(number) for number in range(1, 51))
FUSED = {"kind": "all_reduce", "bucketing": "fused", "overlap": False}
ONE_ALL_REDUCE = {
    "strategy": FUSED,
    "workload": {"gradient": "440 MB", "forward": "0 s", "backward": "0 s"},
    "baseline": None,
}
FLAT = {"strategy": {"kind": "all_reduce", "bucket_cap": "25 MB"}, "baseline": None}
LLAMA = (
    '{forward = "180 ms", backward = "360 ms", batch_per_rank = 4, tensors = [{shape = [32000, 2048]}, '
    "{shape = [2048], count = 49, backward_share = 0.02}, {shape = [2048, 5504], count = 24}, "
    "{shape = [5504, 2048], count = 48}, {shape = [2048, 2048], count = 96}, {shape = [32000, 2048]}]}"
)
"""1.35 billion parameters in 219 tensors."""
ALONE = ("advise", "bert_base_10gbit", "--jobs", "1")
NAIVE = "from benchmarks.every_hop import ring_all_reduce_s"


def groups() -> list[Group]:
    """Return all groups, the fast ones first."""
    return [
        Group("One folded step, in a process that has simulated it before", list(folded_steps())),
        Group(
            "Nodes, folded", [step(f"{nodes} nodes", {**FLAT, "cluster.num_nodes": nodes}) for nodes in (8, 64, 512)]
        ),
        Group("Buckets, folded", [buckets(cap) for cap in (25, 5, 1)]),
        Group("Tensors, folded", [tensors(count) for count in (100, 1_000, 10_000)]),
        Group("Recorded steps, folded", list(recorded_steps())),
        Group("Sharding and local steps, 1.3 B parameters on 128 GPUs, folded", list(alternatives())),
        Group("Micro-batches of FSDP, folded", [micro_batches(count) for count in (1, 8, 64)]),
        Group("Steps of a period of DiLoCo, folded", [diloco(steps) for steps in (5, 50, 5_000)]),
        Group("Ranks, every send an event", list(exact())),
        Group("Start-up", list(start_up())),
        Group("Draws for the intervals of a speedup", [draws(number) for number in (0, 20, 50, 200)]),
        Group("1,000 points of `simnet sweep speedup`", list(sweeps())),
        Group("Searches and pages, CPU time", list(searches())),
        Group("One change in `simnet report --live`: verdict, three figures, command and TOML", list(changes())),
        Group("Timelines of 1,000 buckets", [timeline(number) for number in (1, 3, 30)]),
        Group("`simnet report`, whole process", list(reports())),
        Group("What `advise` grows with, CPU time of one process", list(growth_of_advise())),
    ]


def step(title: str, settings: dict[str, object], name: str = "reference_ddp_step", runs: int = 15) -> Case:
    """Return the case of simulating one scenario again and again."""
    return program(title, f"given = load({name!r}, {settings!r})", "simulate(given)", runs)


def folded_steps() -> Iterator[Case]:
    """Yield BERT-Base with each kind of exchange."""
    for title, strategy in (
        ("flat ring DDP", {"kind": "all_reduce", "algorithm": "ring"}),
        ("hierarchical DDP", {"kind": "all_reduce", "algorithm": "hierarchical"}),
        ("BinSGDM", {"kind": "binsgdm"}),
    ):
        yield step(f"BERT-Base, {title}", {"strategy": strategy, "baseline": None}, "bert_base_10gbit")
    # Where the calibration holds NCCL's costs, the default chooses by the size of each bucket.
    by_size = {"strategy": {"kind": "all_reduce"}, "baseline": None, "workload": "bert_base"}
    yield step("BERT-Base, DDP by default on InfiniBand", by_size, "infiniband")


def buckets(cap_mb: int) -> Case:
    """Return the flat step with buckets of one size."""
    strategy = {"kind": "all_reduce", "bucket_cap": f"{cap_mb} MB"}
    return step(f"{-(-440 // cap_mb)} buckets", {"strategy": strategy, "baseline": None}, runs=5)


def tensors(count: int) -> Case:
    """Return the step of a workload of equal tensors."""
    rows = [{"shape": [4_400_000 // count, 25], "count": count}]
    workload = {"tensors": rows, "forward": "40 ms", "backward": "80 ms", "optimizer": "5 ms"}
    return step(f"{count:,} tensors", {"workload": workload, "baseline": None}, runs=5)


def recorded_steps() -> Iterator[Case]:
    """Yield steps with sharded parameters by their collectives, then by their ranks."""
    setup = "from benchmarks.recorded import sharded_step\ngiven = sharded_step({}, {})"
    for layers, nodes in ((10, 8), (100, 8), (334, 8), (334, 64), (334, 512)):
        title = f"{3 * layers:,} collectives, {8 * nodes:,} ranks"
        yield program(title, setup.format(layers, nodes), "simulate(given)", runs=5)


def alternatives() -> Iterator[Case]:
    """Yield a step of each way to train, the simplest first."""
    streaming = {"kind": "diloco", "inner_steps": 100, "fragments": 4, "overlap_steps": 5}
    for title, strategy in (
        ("DDP", {"kind": "all_reduce"}),
        ("ZeRO-2", {"kind": "zero2"}),
        ("FSDP", {"kind": "fsdp"}),
        ("HSDP", {"kind": "hsdp"}),
        ("HSDP, BinSGDM between copies", {"kind": "hsdp", "replicas": "binsgdm"}),
        ("local SGD", {"kind": "local_sgd"}),
        ("DiLoCo", {"kind": "diloco"}),
        ("DiLoCo, FSDP in a node", {"kind": "diloco", "in_node": "fsdp"}),
        ("streaming DiLoCo", streaming),
    ):
        yield step(title, {"strategy": strategy, "baseline": None}, "what_to_use", runs=7)


def micro_batches(count: int) -> Case:
    """Return FSDP with so many micro-batches a step."""
    settings = {"strategy": {"kind": "fsdp"}, "baseline": None, "run.grad_accumulation": count}
    return step(f"{count} micro-batches", settings, "what_to_use", runs=3)


def diloco(steps: int) -> Case:
    """Return DiLoCo with so many steps between two exchanges."""
    strategy = {"kind": "diloco", "inner_steps": steps}
    return step(f"{steps:,} steps", {"strategy": strategy, "baseline": None}, "what_to_use", runs=5)


def exact() -> Iterator[Case]:
    """Yield one flat all-reduce with every send an event, against every hop as SimPy resources, and folded."""
    for nodes in (8, 32):
        ranks = nodes * 8
        settings = {**ONE_ALL_REDUCE, "cluster.num_nodes": nodes}
        naive = f"ring_all_reduce_s({ranks}, 440e6, 5e-6, 1.25e9)"
        yield program(f"{ranks} ranks, every hop a SimPy Resource and Store", NAIVE, naive, 1)
        yield step(f"{ranks} ranks, exact executor", {**settings, "run.fidelity": "exact"}, runs=1)
        yield step(f"{ranks} ranks, folded", settings)


def start_up() -> Iterator[Case]:
    """Yield whole processes, from the start of Python to its end."""
    yield Case("an empty Python", ("-c", "pass"), "cpu", 15)
    yield command("`simnet --version`", "--version", repeat=10)
    yield command("`simnet simulate bert_base_10gbit`", "simulate", "bert_base_10gbit", repeat=15)
    big = ("simulate", "reference_ddp_step", "--set", "cluster.num_nodes=512")
    yield command("`simnet simulate`, 4096 ranks", *big, repeat=3)


def draws(number: int) -> Case:
    """Return BERT-Base with BinSGDM and DDP, the intervals those of the shipped estimate, in one process."""
    return step(f"BERT-Base, {number} draws", {"run.draws": number}, "bert_base_10gbit", runs=7)


def sweeps() -> Iterator[Case]:
    """Yield sweeps of as many points: over one number of nodes and over fifty."""
    one = ("--set", "cluster.num_nodes=8", "--set", f"cluster.inter_node.bandwidth={MORE_RATES}")
    fifty = ("--set", f"cluster.num_nodes={MANY_NODES}", "--set", f"cluster.inter_node.bandwidth={RATES}")
    for title, axes in (("8 nodes, 500 bandwidths", one), ("50 numbers of nodes, 10 bandwidths", fifty)):
        words = ("sweep", "speedup", "--format", "csv", *axes)
        yield command(f"{title}, CPU time of one process", *words, "--jobs", "1")
        yield command(f"{title}, wall time of two", *words, "--jobs", "2", clock="wall")


def searches() -> Iterator[Case]:
    """Yield the commands that simulate many scenarios."""
    crossover = ("--over", "cluster.inter_node.bandwidth", "--from", "1 Gbit/s", "--to", "400 Gbit/s")
    yield command("`crossover`", "crossover", "bert_base_10gbit", *crossover)
    # By its former name, which checkouts given as --before know as well.
    yield command("`time-to-target`", "race", "bert_base_10gbit", "characters", "--same-task")
    yield command("`advise`, BERT-Base", "advise", "bert_base_10gbit")
    yield command("`advise`, BERT-Large on InfiniBand", "advise", "infiniband")
    nodes = ("--set", "cluster.num_nodes=16", "--set", "cluster.inter_node.bandwidth=25 Gbit/s")
    llama = ("--set", f"workload={LLAMA}", *nodes)
    yield command("`advise`, 1.35 billion parameters on 128 GPUs", "advise", "bert_base_10gbit", *llama)
    yield command("`validate --published`", "validate", "--published")


def changes() -> Iterator[Case]:
    """Yield what the page computes for one change of a knob, without the browser."""
    llama = {"workload": tomllib.loads(f"workload = {LLAMA}")["workload"], "cluster.num_nodes": 16}
    for title, settings in (
        *((f"BERT-Base, {nodes} nodes", {"cluster.num_nodes": nodes}) for nodes in (8, 64, 512)),
        ("1.35 billion parameters, 16 nodes", llama),
    ):
        setup = (
            "from simnet.report.explorer_knobs import Knobs; from simnet.report.explorer_live import view; "
            f"knobs = Knobs(load('bert_base_10gbit', {settings!r}), 'bert_base_10gbit'); places = knobs.start"
        )
        yield program(title, setup, "view(knobs, places)", 15)


def timeline(iterations: int) -> Case:
    """Return a trace with a bucket for each of 1,000 tensors, made and written."""
    tensors = [{"shape": [4400, 25], "count": 1000}]
    settings = {
        "workload": {"tensors": tensors, "forward": "40 ms", "backward": "80 ms", "optimizer": "5 ms"},
        "strategy": {"kind": "all_reduce", "bucket_cap": "0.44 MB"},
        "baseline": None,
    }
    setup = (
        "from pathlib import Path; from tempfile import mkdtemp; from simnet.traces.timeline_trace import write_trace; "
        f"found = simulate(load('bert_base_10gbit', {settings!r})); path = Path(mkdtemp()) / 'trace.json'; "
        "assert found.result.num_buckets == 1000"
    )
    return program(f"{iterations} iterations", setup, f"write_trace(found, path, {iterations})", 3)


def reports() -> Iterator[Case]:
    """Yield pages of a scenario, with and without the ranking of alternatives."""
    for title, more in (("without the ranking", ("--systems", "")), ("with all alternatives", ())):
        yield command(f"BERT-Base, {title}", "report", "bert_base_10gbit", *more, "-o", "/dev/null")


def growth_of_advise() -> Iterator[Case]:
    """Yield the advice on BERT-Base with more systems, more nodes and more tensors, all without workers."""
    for systems in ("binsgdm", "binsgdm,qsgd,power_sgd,top_k", "all"):
        chosen = () if systems == "all" else ("--systems", systems)
        yield command(systems, *ALONE, *chosen)
    for nodes in (2, 64, 512):
        yield command(f"all, {nodes} nodes", *ALONE, "--set", f"cluster.num_nodes={nodes}")
    for count in (100, 1_000):
        rows = f"[{{shape = [{4_400_000 // count}, 25], count = {count}}}]"
        workload = f'{{tensors = {rows}, forward = "40 ms", backward = "80 ms", optimizer = "5 ms"}}'
        yield command(f"all, {count:,} equal tensors", *ALONE, "--set", f"workload={workload}")
