"""The explorer's page in Dash: knobs, three figures, a verdict, and what to take away."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from simnet.core import templates
from simnet.core.errors import SimnetError, install
from simnet.core.schema import decode
from simnet.report.explorer_knobs import Knobs, places_of
from simnet.report.explorer_live import interval_text, view
from simnet.report.text import printable

DEBOUNCE_MS = 60
"""A moving slider asks the server when it has stood still for so long."""
SLIDERS = ("nodes", "bandwidth", "batch", "codec")
PICKERS = ("strategy", "baseline")
FIGURES = ("Speedup over NIC bandwidth", "Speedup over nodes", "Where the time of a step goes")
HEIGHTS = (320, 320, 240)
"""Of the figures [pixels]."""
CONFIG = {"displaylogo": False, "responsive": True}
MOST_MARKS = 7
CALLBACKS = "/_dash-update-component"


def make_app(knobs: Knobs) -> Any:
    """Return the page as a Dash application, all of whose state is in the browser: tabs do not disturb each other."""
    try:
        import dash
    except ImportError as error:
        raise SimnetError(f"--live: dash is missing: it serves the page; {install('explore')}") from error
    app = dash.Dash("simnet", title="simnet report --live", update_title="", serve_locally=True)
    app.index_string = app.index_string.replace(
        "{%css%}", f"{{%css%}}<style>{templates.page('explorer.css', {})}</style>"
    )
    app.layout = _layout(knobs, dash.html, dash.dcc)
    _add_callbacks(app, knobs, dash)
    _check_requests(app)
    return app


class _Value(Struct):
    id: str
    property: str
    value: Any = None


class _Request(Struct):
    """What a page sends to have a callback called."""

    output: str
    outputs: list[_Value] | _Value
    inputs: list[_Value]
    changed: list[Annotated[str, Meta(pattern=r"\.")]] = msgspec.field(name="changedPropIds", default_factory=list)
    state: list[_Value] = []


def _check_requests(app: Any) -> None:
    """Refuse requests that no page of ours sends, before Dash takes them for its own."""
    views = app.server.view_functions
    dispatch = views[CALLBACKS]

    def checked_dispatch() -> Any:
        from flask import request

        check_request(request.get_data(), app.callback_map)
        return dispatch()

    views[CALLBACKS] = checked_dispatch


def check_request(body: bytes, callbacks: Mapping[str, Any]) -> None:
    """Check that a request calls a callback with its inputs."""
    try:
        given = decode(_Request, body, "request")
    except SimnetError as error:
        raise SimnetError(f"{error}; reload the page") from error
    known = callbacks.get(given.output, {})
    wanted = [tuple(name.rpartition(".")[::2]) for name in given.output.strip(".").split("...")]
    outputs = given.outputs if isinstance(given.outputs, list) else [given.outputs]
    sent = [[(one.id, one.property) for one in values] for values in (outputs, given.inputs, given.state)]
    takes = [[(one["id"], one["property"]) for one in known.get(key, ())] for key in ("inputs", "state")]
    if "callback" not in known or sent != [wanted, *takes]:
        raise SimnetError("request: calls nothing of this page, or not with its values: reload the page")


def _layout(knobs: Knobs, html: Any, dcc: Any) -> Any:
    start = knobs.start
    sliders: list[tuple[str, str, Any, float]] = [
        ("nodes", "Nodes", knobs.nodes, start.nodes),
        ("bandwidth", "NIC bandwidth [Gbit/s]", knobs.rates, start.gbit_per_s),
        ("batch", "Batch of a rank [samples]", knobs.batches, start.batch),
        ("codec", "Time of compressing kernels, times the estimate", knobs.codecs, start.codec),
    ]
    controls = [piece for slider in sliders for piece in _slider(*slider, html, dcc)]
    for key, title, options in (
        ("strategy", "Strategy", knobs.strategies),
        ("baseline", "Compared with", knobs.baselines),
    ):
        picker = dcc.Dropdown(id=key, options=list(options), value=next(iter(options)), clearable=False)
        controls += [html.Label(title, htmlFor=key), picker]
    figures = [
        html.Div(
            [html.H2(title), dcc.Graph(id=f"figure-{place}", style={"height": f"{HEIGHTS[place]}px"}, config=CONFIG)],
            className="wide" if place == len(FIGURES) - 1 else "",
        )
        for place, title in enumerate(FIGURES)
    ]
    answer = [
        html.P(id="verdict", className="verdict", role="status"),
        html.P(id="interval", role="status"),
        html.Div(figures, className="figures"),
        html.Div(id="notes", className="notes"),
        _to_take("command", "Copy as command", html, dcc),
        _to_take("toml", "Copy as TOML", html, dcc),
        html.Div([html.Button("Save report", id="save"), html.Span(id="saved", role="status")], className="row"),
        dcc.Download(id="report"),
    ]
    title = printable(knobs.base.question or knobs.base.name)
    stores = [dcc.Store(id="asked"), dcc.Store(id="figures", data=[])]
    return html.Main([html.H1(title), html.Div(controls), html.Div(answer), *stores])


def _slider(key: str, title: str, values: Any, value: float, html: Any, dcc: Any) -> list[Any]:  # noqa: PLR0913, PLR0917
    last = len(values) - 1
    shown = sorted({0, last, *range(0, len(values), max(1, len(values) // MOST_MARKS))})
    marks = {place: f"{values[place]:g}" for place in shown}
    slider = dcc.Slider(
        id=key, min=0, max=max(last, 1), step=1, value=values.index(value), marks=marks, updatemode="drag",
        included=False, disabled=last == 0, allow_direct_input=False,
    )  # fmt: skip
    label = html.Label([f"{title}: ", html.Span(f"{value:g}", id=f"{key}-value")], htmlFor=key)
    return [label, slider]


def _to_take(key: str, title: str, html: Any, dcc: Any) -> Any:
    copy = dcc.Clipboard(target_id=key, title=title, id=f"copy-{key}")
    return html.Div([html.Div([html.H2(title), copy], className="row"), html.Pre(id=key, tabIndex="0")])


def _add_callbacks(app: Any, knobs: Knobs, dash: Any) -> None:
    from dash import Input, Output, State

    settled = templates.page("explorer_settled.js", {"debounce_ms": DEBOUNCE_MS})
    themed = templates.page("explorer_themed.js", {})
    asked = [Input(key, "value") for key in (*SLIDERS, *PICKERS)]
    app.clientside_callback(settled, Output("asked", "data"), *asked)
    graphs = [Output(f"figure-{place}", "figure") for place in range(len(FIGURES))]
    app.clientside_callback(themed, graphs, Input("figures", "data"), prevent_initial_call=True)
    values = [Output(f"{key}-value", "children") for key in SLIDERS]

    @app.callback(  # type: ignore[untyped-decorator]
        Output("verdict", "children"), Output("verdict", "data-error"), Output("figures", "data"),
        Output("notes", "children"), Output("command", "children"), Output("toml", "children"), *values,
        Input("asked", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def show(data: list[Any]) -> tuple[Any, ...]:
        places = places_of(data, knobs)
        found = view(knobs, places)
        figures = list(found.figures) or dash.no_update
        notes = [dash.html.P(note) for note in found.notes]
        texts = [f"{value:g}" for value in (places.nodes, places.gbit_per_s, places.batch, places.codec)]
        return found.verdict, str(found.is_error).lower(), figures, notes, found.command, found.toml, *texts

    # After the verdict, which would wait for it: draws take as long as all the rest, and of a large model longer.
    @app.callback(  # type: ignore[untyped-decorator]
        Output("interval", "children"), Input("verdict", "children"), State("asked", "data"),
        prevent_initial_call=True, running=[(Output("interval", "hidden"), True, False)],
    )  # fmt: skip
    def show_interval(_verdict: str, data: list[Any]) -> str:
        return interval_text(knobs, places_of(data, knobs))

    @app.callback(  # type: ignore[untyped-decorator]
        Output("report", "data"), Output("saved", "children"), Input("save", "n_clicks"), State("asked", "data"),
        prevent_initial_call=True, running=[(Output("save", "disabled"), True, False)],
    )  # fmt: skip
    def save(_clicks: int, data: list[Any]) -> tuple[Any, str]:
        try:
            page = report_of(knobs, data)
        except SimnetError as error:
            return dash.no_update, printable(str(error))
        return {"content": page, "filename": "report.html", "type": "text/html"}, "saved report.html"


def report_of(knobs: Knobs, data: list[Any]) -> str:
    """Return the report at the places that a page has sent."""
    from simnet.report.contents import of_scenario
    from simnet.report.report_page import Origin, report_page

    places = places_of(data, knobs)
    contents = of_scenario(knobs.scenario_at(places), lambda _: None, systems=None)
    return report_page(contents, Origin(commands=(knobs.command_at(places),), inputs=()))
