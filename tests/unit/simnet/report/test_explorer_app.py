"""The explorer: to whom it answers, and in Chromium, how it follows the knobs."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from simnet.engine.scenario import load
from simnet.report.explorer_knobs import Knobs
from simnet.report.explorer_server import HOST, cookie_of, free_socket, guard
from simnet.report.explorer_static_page import static_page
from tests.helpers.browser import Watched, chromium, num_colours
from tests.helpers.cli import assert_refused, run
from tests.helpers.needs import needs
from tests.helpers.refusals import refused

needs("dash")
BERT = "bert_base_10gbit"
PORT, TOKEN = 8123, "secret"
HERE = {"Host": f"{HOST}:{PORT}"}
CALLBACKS = "/_dash-update-component"
ROOT = Path(__file__).parents[4]
SECONDS = 30


@pytest.fixture(scope="module")
def app() -> Any:
    from simnet.report.explorer_app import make_app

    found = make_app(Knobs(load(BERT), BERT))
    guard(found.server, TOKEN, PORT)
    return found


@pytest.fixture
def client(app: Any) -> Any:
    return app.server.test_client()


def test_who_has_not_the_token_or_comes_under_another_name_gets_nothing(client: Any) -> None:
    for path in ("/", "/_dash-layout", "/_dash-dependencies", "/?token=wrong", "/?token=", "/?token=é"):
        assert client.get(path, headers=HERE).status_code == 403
    assert client.post(CALLBACKS, headers=HERE, json={}).status_code == 403
    for host in ("evil.example", f"evil.example:{PORT}", f"{HOST}:1", "0.0.0.0"):
        assert client.get(f"/?token={TOKEN}", headers={"Host": host}).status_code == 403


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(client: Any) -> None:
    first = client.get(f"/?token={TOKEN}", headers=HERE)
    assert (first.status_code, first.headers["Location"]) == (302, "/")
    cookie = first.headers["Set-Cookie"]
    assert cookie.startswith(f"{cookie_of(PORT)}={TOKEN};")
    assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
    page = client.get("/", headers=HERE)
    assert page.status_code == 200
    assert page.headers["X-Frame-Options"] == "DENY"
    assert b"http://" not in page.data.replace(b"http://www.w3.org", b"")


def body_of(app: Any, name: str = "verdict", data: Any = None) -> dict[str, Any]:
    """Return what a page sends to have the callback called whose first output is of an element of this name."""
    starts = (f"..{name}.", f"{name}.")
    output, callback = next((key, one) for key, one in app.callback_map.items() if key.startswith(starts))
    takes = {key: [{**one, "value": data if one["id"] == "asked" else 1} for one in callback[key]] for key in KINDS}
    outputs = [dict(zip(("id", "property"), one.split("."), strict=True)) for one in output.strip(".").split("...")]
    asked = {"outputs": outputs if output.startswith("..") else outputs[0], "changedPropIds": ["asked.data"]}
    return {"output": output, **asked, **takes}


KINDS = ("inputs", "state")
RIGHT = [3, 4, 6, 3, "BinSGDM", "DDP"]
WRONG_DATA: list[Any] = [
    None, 1, "text", [], {}, RIGHT[:5], [*RIGHT, 1], [*RIGHT[:4], 1, 2], [10**400, *RIGHT[1:]], [[], *RIGHT[1:]],
    [True, *RIGHT[1:]], [0.5, *RIGHT[1:]], {"0": 1}, ["\x1b[31m" * 1000, *RIGHT[1:]],
]  # fmt: skip


@pytest.fixture
def known(client: Any) -> Any:
    client.get(f"/?token={TOKEN}", headers=HERE)
    assert client.get("/_dash-dependencies", headers=HERE).status_code == 200
    return client


def assert_malformed(answer: Any) -> None:
    text = answer.get_data(as_text=True)
    assert (answer.status_code, answer.mimetype) == (400, "text/plain")
    assert text.rstrip("\n").isprintable()
    assert "Traceback" not in text


def test_a_callback_is_answered_and_its_values_are_checked(app: Any, known: Any) -> None:
    right = known.post(CALLBACKS, headers=HERE, json=body_of(app, data=RIGHT))
    assert right.status_code == 200, right.get_data(as_text=True)
    verdict = right.json["response"]["verdict"]["children"]
    after = known.post(CALLBACKS, headers=HERE, json=body_of(app, "interval", RIGHT))
    interval = after.json["response"]["interval"]["children"]
    assert interval.startswith(f"90 % interval of {verdict.rpartition(': ')[2].removesuffix('.')}: ")
    for data in WRONG_DATA:
        for name in ("verdict", "interval"):
            assert_malformed(known.post(CALLBACKS, headers=HERE, json=body_of(app, name, data)))
        saved = known.post(CALLBACKS, headers=HERE, json=body_of(app, "report", data))
        if saved.status_code == 200:
            assert ": must be " in saved.json["response"]["saved"]["children"]
        else:  # a number that no reader takes
            assert_malformed(saved)


def test_a_malformed_request_is_refused_in_one_sentence(app: Any, known: Any) -> None:
    whole = body_of(app, data=RIGHT)
    wrong = [whole | {key: value} for key in whole for value in (None, 1, "x", [], {}, [1], [{"id": 1}], [None])]
    wrong += [{key: value for key, value in whole.items() if key != left_out} for left_out in ("output", "inputs")]
    wrong += [whole | {"inputs": whole["inputs"] * 2}, whole | {"changedPropIds": ["none"]}]
    right = ({"state": []}, {"changedPropIds": []})
    for body in (one for one in wrong if not any(one == whole | same for same in right)):
        assert_malformed(known.post(CALLBACKS, headers=HERE, json=body))
    for data in (b"", b"{", b"\xff", b"[]", b"null", b"[" * 60_000, b'{"output": "\xed\xa0\x80"}'):
        assert_malformed(known.post(CALLBACKS, headers=HERE, data=data, content_type="application/json"))


def test_a_port_in_use_is_refused_in_one_line() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with refused(f"--port: {port}: address already in use"):
            free_socket(port)
        assert_refused(run("explore", BERT, "--no-browser", "--port", str(port)), "name another with --port")


@contextmanager
def served() -> Iterator[str]:
    """Yield the address of an explorer that was started as a user does."""
    command = [sys.executable, str(ROOT / "cli.py"), "explore", BERT, "--no-browser"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as process,
        ExitStack() as ending,
    ):
        ending.callback(process.kill)  # else one that did not hear would serve on when the tests have ended
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


@pytest.mark.nightly
def test_two_tabs_follow_their_own_knobs() -> None:
    with served() as address, chromium() as browser:
        tabs = [Watched(browser), Watched(browser, width=390, height=844, color_scheme="dark")]
        for tab in tabs:
            tab.page.goto(address)
            tab.page.wait_for_selector("#figure-2 .bars")
            assert "token" not in tab.page.url
        first, second = (tab.page for tab in tabs)
        before = first.inner_text("#verdict")
        first.wait_for_function("document.querySelector('#interval').innerText.startsWith('90 % interval of ')")
        assert second.inner_text("#verdict") == before

        first.locator("#nodes [role=slider]").first.focus()
        first.keyboard.press("ArrowRight")
        first.wait_for_function("before => document.querySelector('#verdict').innerText !== before", arg=before)
        assert "--set cluster.num_nodes=16" in first.inner_text("#command")
        assert first.inner_text("#nodes-value") == "16"
        assert second.inner_text("#verdict") == before
        speedup = first.inner_text("#verdict").rpartition(": ")[2].removesuffix(".")
        first.wait_for_function(
            "speedup => document.querySelector('#interval').innerText.includes(` of ${speedup}: `)", arg=speedup
        )

        assert second.evaluate("document.documentElement.scrollWidth") <= 390
        for place in range(3):
            assert num_colours(first.locator(f"#figure-{place}").screenshot()) > 20
        assert [tab.errors for tab in tabs] == [[], []]
        outside = [
            url for tab in tabs for url in tab.requests if not url.startswith((f"http://{HOST}:", "data:", "blob:"))
        ]
        assert outside == []


@pytest.mark.nightly
def test_the_static_page_follows_its_knobs_without_a_server(tmp_path: Path) -> None:
    needs("plotly")
    page = tmp_path / "page.html"
    page.write_text(static_page(Knobs(load(BERT, {"question": "</script><b>?"}), BERT)), encoding="utf-8")
    assert page.stat().st_size < 6_000_000
    with chromium() as browser:
        watched = Watched(browser)
        shown = watched.open(page)
        assert shown.inner_text("h1") == "</script><b>?"
        before = shown.inner_text("#verdict")
        shown.locator("#rate").focus()
        shown.keyboard.press("ArrowRight")
        assert shown.inner_text("#verdict") != before
        shown.select_option("#strategy", "FSDP")
        assert "with FSDP and" in shown.inner_text("#verdict")
        assert "strategy={ kind = " in shown.inner_text("#command")
        for plot in shown.locator(".plot").all():
            assert num_colours(plot.screenshot()) > 10
        assert watched.errors == []
