"""`simnet explore`: turn knobs on a scenario in a browser."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.cli import completing, options
from simnet.cli.output import check_file, emit
from simnet.cli.settings import read_settings
from simnet.cli.terminal import progress, say, tell
from simnet.core.errors import SimnetError

if TYPE_CHECKING:
    from simnet.report.explorer_knobs import Knobs


@click.command(
    "explore",
    help="Open a page of this machine on which sliders and pickers change SCENARIO: nodes, bandwidth, batch, codec, "
    "strategy and what it is compared with.\n\n"
    "The page is served on loopback alone, to who has the token of its address, until Ctrl-C.",
    epilog="\b\nExamples:\n  simnet explore bert_base_10gbit\n  simnet explore mine.toml --port 8050 --no-browser\n"
    "  simnet explore bert_base_10gbit --static page.html",
)
@click.argument("scenario", default="bert_base_10gbit", shell_complete=completing.names_of("experiments"))
@options.SET
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port to listen on; 0 takes a free one."
)
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
@click.option(
    "--static", type=options.OUTPUT_PATH, help="Write the page as one file that needs no server, with fewer places."
)
def command(scenario: str, settings: tuple[str, ...], port: int, no_browser: bool, static: Path | None) -> None:
    """Run `simnet explore`."""
    from simnet.engine.prepared_scenario import is_folded
    from simnet.engine.scenario import load
    from simnet.report.explorer_knobs import Knobs

    base = load(scenario, read_settings(settings))
    if not is_folded(base):
        raise SimnetError(
            f"{base.name}: needs the exact executor: a page must answer at once; drop slow_nodes, faults and "
            "run.fidelity"
        )
    knobs = Knobs(base, scenario, settings)
    if static is not None:
        _write(knobs, static, is_alone=not (port or no_browser))
        return
    _serve(knobs, port, opens=not no_browser)


def _write(knobs: "Knobs", path: Path, *, is_alone: bool) -> None:
    from simnet.report.explorer_static_page import num_places, static_page

    if not is_alone:
        raise SimnetError("--static: no server is started: --port and --no-browser change nothing; drop them")
    check_file(path, "--static")
    with progress(num_places(knobs), "simulating") as tick:
        page = static_page(knobs, tick)
    emit(page, path)
    tell(f"wrote {path}")


def _serve(knobs: "Knobs", port: int, *, opens: bool) -> None:
    from simnet.report.explorer_app import make_app
    from simnet.report.explorer_server import HOST, free_socket, guard, new_token, serve

    app = make_app(knobs)
    with free_socket(port) as listening:
        number, token = listening.getsockname()[1], new_token()
        guard(app.server, token, number)
        address = f"http://{HOST}:{number}/?token={token}"
        say(f"{address}\nCtrl-C ends it")
        if opens:
            _open(address)
        with contextlib.suppress(KeyboardInterrupt):  # how it is meant to end
            serve(app, listening)


def _open(address: str) -> None:
    """Open a browser, if there is one."""
    import webbrowser

    if not webbrowser.open(address):
        tell("note: no browser was found: open the address yourself")
