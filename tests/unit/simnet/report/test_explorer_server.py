"""The explorer's server over loopback: its limits on bodies, time and connections, and two servers in one browser."""

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.cookies import SimpleCookie

import pytest

from simnet.report.explorer_server import (
    HOST,
    MAX_BODY_BYTES,
    MAX_CONNECTIONS,
    cookie_of,
    free_socket,
    guard,
    make_server,
)
from tests.helpers.needs import needs

needs("dash")
TOKEN = "secret"
PATIENCE_S = 30


@contextmanager
def served(token: str = TOKEN, receive_s: float = PATIENCE_S) -> Iterator[int]:
    """Yield the port of a server whose page is the length of what it was sent."""
    from flask import Flask, request

    app = Flask("test")
    app.add_url_rule("/", "page", lambda: str(len(request.get_data())), methods=["GET", "POST"])
    with free_socket(0) as listening:
        port = listening.getsockname()[1]
        guard(app, token, port)
        server = make_server(app, listening, receive_s)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        serving.start()
        try:
            yield port
        finally:
            server.shutdown()
            serving.join(PATIENCE_S)
            server.server_close()


def asked(port: int, body: bytes = b"", cookie: str = "", path: str = "/") -> tuple[int, str, str]:
    """Return status, text and Set-Cookie of an answer."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)) as connection:
        connection.request("POST" if body else "GET", path, body or None, {"Cookie": cookie})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers.get("Set-Cookie", "")


def own_cookie(port: int) -> str:
    return f"{cookie_of(port)}={TOKEN}"


def opened(port: int, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection((HOST, port), timeout=PATIENCE_S)
    connection.sendall(sent)
    return connection


def everything_from(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes; a test without an end fails by its timeout."""
    found = b""
    try:
        while piece := connection.recv(4096):
            found += piece
    except ConnectionError:
        pass
    return found


def eventually(port: int, is_so: Callable[[int], bool]) -> bool:
    """Return whether something holds within some time."""
    pause = threading.Event()
    return any(is_so(port) or pause.wait(0.05) for _ in range(20 * PATIENCE_S))


def test_two_servers_in_one_browser_do_not_end_each_other() -> None:
    jar: SimpleCookie = SimpleCookie()

    def cookies() -> str:
        return "; ".join(f"{name}={one.value}" for name, one in jar.items())

    with served("one") as first, served("two") as second:
        for port, token in ((first, "one"), (second, "two")):
            status, _, given = asked(port, path=f"/?token={token}")
            assert status == 302
            jar.load(given)  # as a browser does, whose cookies hang on the host and not on its port
        assert [asked(port, cookie=cookies())[:2] for port in (first, second, first)] == [(200, "0")] * 3


def test_a_body_has_a_limit_and_a_length() -> None:
    with served() as port:
        status, text, _ = asked(port)
        assert (status, text.rstrip()) == (
            403,
            "the address that simnet report --live printed holds a token: open that",
        )
        cookie = own_cookie(port)
        assert asked(port, b"x" * MAX_BODY_BYTES, cookie)[:2] == (200, str(MAX_BODY_BYTES))
        status, text, _ = asked(port, b"x" * (MAX_BODY_BYTES + 1), cookie)
        assert (status, text) == (413, f"{MAX_BODY_BYTES + 1} bytes: a request has at most {MAX_BODY_BYTES}\n")
        for header in (
            b"Transfer-Encoding: chunked",
            b"Content-Length: -1",
            b"Content-Length: \xb2",
            b"Content-Length:",
        ):
            with opened(port, b"POST / HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n") as connection:
                assert b" 411 " in everything_from(connection)
        with opened(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n") as connection:
            connection.shutdown(socket.SHUT_WR)
            assert b" 413 " in everything_from(connection)


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"])
def test_a_request_that_does_not_come_is_given_up(begun: bytes) -> None:
    with served(receive_s=0.2) as port, opened(port, begun) as connection:
        assert b" 200 " not in everything_from(connection)


def test_a_request_that_drips_is_given_up() -> None:
    with served(receive_s=0.4) as port, opened(port, b"GET / HTTP/1.1\r\n") as connection:
        pause, dripped = threading.Event(), 0
        try:
            while dripped < 20 * PATIENCE_S:  # each byte restarts what waits for the next one
                connection.sendall(b"x")
                dripped += 1
                pause.wait(0.05)
        except OSError:
            pass
        assert dripped < 20 * PATIENCE_S


def test_open_connections_have_a_limit_and_others_are_served_when_they_end() -> None:
    with served(receive_s=10 * PATIENCE_S) as port:
        before = threading.active_count()
        with ExitStack() as held:
            half_open = [held.enter_context(opened(port, b"GET / HT")) for _ in range(2 * MAX_CONNECTIONS)]
            refused = [everything_from(one) for one in half_open[MAX_CONNECTIONS:]]  # at once, and not in the end
            assert all(b" 503 " in answer or not answer for answer in refused)
            assert threading.active_count() == before + MAX_CONNECTIONS
        assert eventually(port, lambda _: threading.active_count() <= before)
        assert asked(port, cookie=own_cookie(port))[:2] == (200, "0")
