"""What must be measured to judge an experiment, as commands to run."""

from collections.abc import Iterator

from simnet.core.units import format_seconds
from simnet.report.page import Page
from simnet.report.table import Table
from simnet.report.text import bandwidth_text, count_text, hanging, workload_title
from simnet.validation.measurement_plan import MeasurementPlan
from simnet.validation.training_steps import MIN_VALUES

LEAST_SHARE = 0.1
"""Share of the network in a step below which a point says little of the network."""
MEASURE, ON_NODES = "simnet measure", "torchrun ... -m binsgdm measure"


def plan_page(plan: MeasurementPlan, experiment: str) -> Page:
    """Return the runs with their predicted steps, the commands in the order in which to run them, and what to know."""
    table = Table(("nodes x ranks", "strategy", "predicted step", "of it network"), map(tuple, _runs(plan)))
    blocks: list[str | Table] = [f"Steps to measure so that {experiment} can be judged:", "", table, ""]
    for number, (what, commands) in enumerate(_commands(plan, experiment), start=1):
        blocks += [f"{number}. {what}", *(f"   {command}" for command in commands), ""]
    blocks += [line for note in _notes(plan) for line in hanging("note: ", note)]
    return Page(blocks)


def _runs(plan: MeasurementPlan) -> Iterator[tuple[str, ...]]:
    ranks = plan.scenario.cluster.ranks_per_node
    for run in plan.runs:
        yield (
            f"{run.num_nodes} x {ranks}", run.spec.label, format_seconds(run.step_s), f"{run.network_share:.0%}",
        )  # fmt: skip


def _commands(plan: MeasurementPlan, experiment: str) -> Iterator[tuple[str, list[str]]]:
    """Yield what is measured, and the commands, one torchrun on each node."""
    nic = f" --nic-gbit-per-s {plan.nic_bytes_per_s * 8 / 1e9:g}"
    model = f"--model MODULE:FUNCTION --batch {plan.scenario.workload.batch_per_rank}"
    if plan.needs_compute:
        yield (
            f"Compute of {workload_title(plan.scenario)} (file model.json, then the workload of the experiment):",
            [f"{MEASURE} model {model} -o model.json", "simnet calibrate model.json --workload my_model.toml"],
        )
    if plan.needs_links:
        files = [f"links_{nodes}.json" for nodes in plan.link_nodes]
        commands = [f"{MEASURE} kernels{_systems(plan)} -o kernels.json"]
        commands += [
            f"on {nodes} nodes: {ON_NODES} collectives{nic} -o links_{nodes}.json" for nodes in plan.link_nodes
        ]
        base = plan.scenario.calibration.name
        over = f" --base {base}" if plan.scenario.calibration.kind == "estimate" else ""
        commands.append(f"simnet calibrate {' '.join([*files, 'kernels.json'])}{over} -o mine.toml")
        yield 'Links and kernels (then calibration = "mine.toml" in the experiment):', commands
    commands = []
    for nodes in plan.nodes:
        systems = " ".join(f"--strategy {run.spec.argument}" for run in plan.runs if run.num_nodes == nodes)
        rate = nic if nodes > 1 else ""
        commands.append(
            f"on {count_text(nodes, 'node')}: {ON_NODES} training {model}{rate} {systems} -o training_{nodes}.json"
        )
    yield "The steps themselves:", commands
    names = " ".join(f"training_{nodes}.json" for nodes in plan.nodes)
    yield "Then:", [f"simnet validate {experiment} {names} --draws 200 --mean 10"]


def _systems(plan: MeasurementPlan) -> str:
    arguments = dict.fromkeys(run.spec.kernels_argument for run in plan.runs)
    return "".join(f" --system {argument}" for argument in arguments if argument)


def _notes(plan: MeasurementPlan) -> Iterator[str]:
    if max(plan.nodes) > 1:
        yield (
            f"--nic-gbit-per-s is the rate of all NICs of a node, {bandwidth_text(plan.nic_bytes_per_s * 8 / 1e9)}"
            " here; the file keeps it, and validate needs it on several nodes"
        )
    yield (
        f"{MIN_VALUES} steps of a run are the fewest that have an interval; a run goes on until its median is known "
        "within 3 %, 100 steps or 30 s (--relative-error, --max-repetitions, --max-seconds)"
    )
    if plan.needs_links and not plan.link_nodes:
        yield (
            f"links must be measured on other nodes than the steps ({', '.join(map(str, plan.nodes))}): else nothing "
            "is predicted; judge more nodes, too"
        )
    elif plan.needs_links and len(plan.link_nodes) == 1:
        yield "one number of nodes cannot tell a latency from the cost of a message: judge 5 nodes or more, too"
    num_weak = sum(run.network_share < LEAST_SHARE for run in plan.runs)
    if num_weak:
        yield (
            f"the network takes less than {LEAST_SHARE:.0%} of {num_weak} of {count_text(len(plan.runs), 'step')}: "
            "these say much of compute and little of the network"
        )
    for sentence in plan.unfit:
        yield f"not judged: {sentence}"
