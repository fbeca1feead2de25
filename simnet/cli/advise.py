"""`simnet advise`: which system pays on a cluster, if any."""

from pathlib import Path
from typing import Any

import click

from simnet.analysis.tune import with_any_strategy
from simnet.api import questions
from simnet.api.answers import AdviceAnswer
from simnet.cli import options
from simnet.cli.output import check_figure, check_file, emit, tell_of_axes
from simnet.cli.settings import add_draws, read_settings
from simnet.cli.terminal import tell
from simnet.core.errors import SimnetError
from simnet.engine.scenario import Scenario, load_experiment


@options.command(
    "advise",
    help="Rank all systems on the cluster and workload of SCENARIO against the fastest DDP: does any pay?\n\n"
    "Every system and DDP are tuned alike, over topology, algorithm, bucket size, overlap and precision inside a node. "
    "SCENARIO needs no strategy; its own and its baseline are not used. Trainings say whether a system reaches a "
    "target, and how much sooner.",
    epilog="\b\nExample:\n  simnet advise bert_base_10gbit --set 'cluster.inter_node.bandwidth=100 Gbit/s'",
)
@options.SCENARIO
@options.SET
@options.DRAWS
@options.of(
    questions.advise,
    systems={"metavar": "NAMES", "type": str},
    steps={"name": "step", "metavar": "STEP"},
    convergence={"metavar": "CONVERGENCE"},
    samples={},
    price_per_gpu_hour={},
)
@options.mode(
    "--time-to-target",
    of="time_to_target",
    metavar="CURVES",
    help="Find the system that reaches a target in trainings of yours first: simnet advise --time-to-target --help.",
)
@options.of(AdviceAnswer.proof, folder={"name": "proof", "metavar": "DIR", "type": options.OUTPUT_PATH})
@options.form("table", "json")
@options.OUTPUT
@click.option("--all", "everything", is_flag=True, help="Print the whole ranking in place of the answer.")
@options.plot("speedup over NIC bandwidth")
@options.STYLE
@options.JOBS
def command(  # noqa: PLR0913, PLR0917 - click gives every option
    scenario: str,
    settings: tuple[str, ...],
    draws: int | None,
    systems: str | None,
    folder: Path | None,
    form: str,
    output: Path | None,
    everything: bool,
    plot: Path | None,
    style: str,
    jobs: int | None,
    **chosen: Any,
) -> None:
    """Run `simnet advise`."""
    from simnet.analysis.workers import num_cores, raise_gc_threshold
    from simnet.report import figure

    raise_gc_threshold()
    fixed = read_settings(settings)
    add_draws(fixed, draws)
    experiment = with_any_strategy(load_experiment(scenario, fixed))
    check_file(output)  # which may be none of the files that were read
    check_figure(plot, output, style)
    if plot is not None:
        _check_nodes(experiment.at({}))
    if folder is not None:
        from simnet.validation.proof import check_new

        check_new(folder)
    tell_of_axes(experiment)
    advice = options.asked(questions.advise)(
        scenario,
        fixed,
        systems=() if systems is None else [name.strip() for name in systems.split(",")],
        jobs=jobs or num_cores(),
        **chosen,
    )
    if plot is not None:
        with figure.styled(figure.style_named(style)):
            from simnet.report import figures  # which imports matplotlib

            figure.write(figures.advice(advice), plot)
    if folder is not None:
        advice.proof(folder)
        tell(f"wrote {folder}; run prove.sbatch there, or prove.py by torchrun, then: simnet validate {folder}")
    emit(advice.to_json() if form == "json" else advice.ranking() if everything else advice.page(), output)


def _check_nodes(scenario: Scenario) -> None:
    """Refuse a figure without an axis."""
    if scenario.cluster.num_nodes == 1:
        raise SimnetError(
            "--plot: cluster.num_nodes is 1: one node sends nothing over its NIC; set cluster.num_nodes, or drop --plot"
        )
