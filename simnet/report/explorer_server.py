"""Serve the explorer to this machine alone: loopback, a token, the name that a browser calls it by, and limits."""

import hmac
import secrets
import socket
from contextlib import suppress
from io import BytesIO
from threading import BoundedSemaphore
from time import monotonic
from typing import Any

from simnet.core.errors import SimnetError

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
MAX_CONNECTIONS = 32
"""Open at a time, each with a thread; a browser opens six. One more is refused at once."""
MAX_BODY_BYTES = 2**16
"""Of a request; those of the page have a few hundred."""
DRAINED_BYTES = 2**20
"""Of a body that is too long: read before the answer, which a client in the midst of sending would not see."""
RECEIVE_S, ANSWER_S = 10.0, 300.0
"""Time in which a request must have come, and from then on that in which it must be answered and read."""


def free_socket(port: int) -> socket.socket:
    """Return a socket that listens on loopback.

    Args:
        port: 0 takes any that is free.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
    except OSError as error:
        found.close()
        rule = "name another with --port, or 0 for any that is free"
        raise SimnetError(f"--port: {port}: {(error.strerror or str(error)).lower()}: {rule}") from error
    found.listen()
    return found


def new_token() -> str:
    """Return a word that nobody guesses."""
    return secrets.token_urlsafe(24)


def cookie_of(port: int) -> str:
    """Return the name of the cookie of a port: browsers send those of one host to all its ports."""
    return f"simnet_token_{port}"


def guard(server: Any, token: str, port: int) -> None:
    """Let a Flask server answer only who has the token, under the names of this machine, and refuse in one sentence.

    The first page is asked for with `?token=`; the answer sets a cookie, and leads to the page without the token, so
    that it stays in no history. A page of another site that a name server points to this machine (DNS rebinding) sends
    another host name.
    """
    from flask import Response, abort, redirect, request
    from werkzeug.exceptions import HTTPException

    hosts, cookie = {f"{name}:{port}" for name in NAMES}, cookie_of(port)
    rule = "the address that simnet report --live printed holds a token: open that"

    @server.before_request  # type: ignore[untyped-decorator]
    def check() -> Any:
        if request.host not in hosts:
            abort(403, f"not served under this name; {rule}")
        given = request.args.get("token")
        if given is not None:
            if not _equal(given, token):
                abort(403, rule)
            response = redirect("/")
            response.set_cookie(cookie, token, httponly=True, samesite="Strict")
            return response
        if not _equal(request.cookies.get(cookie, ""), token):
            abort(403, rule)
        return None

    @server.errorhandler(HTTPException)  # type: ignore[untyped-decorator]
    def refuse(error: HTTPException) -> Response:
        return Response(f"{error.description}\n", error.code, content_type="text/plain; charset=utf-8")

    @server.errorhandler(SimnetError)  # type: ignore[untyped-decorator]
    def say(error: SimnetError) -> Response:
        return Response(f"{error}\n", 400, content_type="text/plain; charset=utf-8")

    @server.after_request  # type: ignore[untyped-decorator]
    def close(response: Response) -> Response:
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"
        return response


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _handler(ends: dict[Any, float], receive_s: float) -> Any:
    """Return the class that reads a request and has it answered; `ends` says when a connection will be closed."""
    from werkzeug.serving import WSGIRequestHandler

    class Handler(WSGIRequestHandler):
        """Reads a request whole before the application sees it."""

        timeout = receive_s
        error_message_format, error_content_type = "%(message)s\n", "text/plain; charset=utf-8"

        def run_wsgi(self) -> None:
            given = self.headers.get("Content-Length", "0")
            if "Transfer-Encoding" in self.headers or not (given.isascii() and given.isdecimal()):
                self.send_error(411, "the length of the request is missing: send a Content-Length")
                return
            length = int(given[:20])
            if length > MAX_BODY_BYTES:
                self.rfile.read(min(length, DRAINED_BYTES))
                self.send_error(413, f"{length} bytes: a request has at most {MAX_BODY_BYTES}")
                return
            body = self.rfile.read(length)
            if len(body) < length:  # the client has gone, or took too long
                return
            self.rfile = BytesIO(body)
            ends[self.connection] = monotonic() + ANSWER_S
            super().run_wsgi()

        def log_error(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
            """Say nothing: these are errors of clients."""

    return Handler


def make_server(app: Any, listening: socket.socket, receive_s: float = RECEIVE_S) -> Any:
    """Return a server of a WSGI application on a socket: several requests at a time, within limits.

    Args:
        app: the application.
        listening: the socket.
        receive_s: time in which a request must have come [s].
    """
    from werkzeug.serving import ThreadedWSGIServer

    free = BoundedSemaphore(MAX_CONNECTIONS)
    ends: dict[Any, float] = {}

    class Server(ThreadedWSGIServer):
        def process_request(self, request: Any, client_address: Any) -> None:
            if not free.acquire(blocking=False):
                with suppress(OSError):
                    request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n")
                self.shutdown_request(request)
                return
            ends[request] = monotonic() + receive_s
            super().process_request(request, client_address)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                ends.pop(request, None)
                free.release()

        def service_actions(self) -> None:
            """Close what took too long; called twice a second."""
            for connection, end in ends.copy().items():
                if monotonic() > end:
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    return Server(HOST, listening.getsockname()[1], app, _handler(ends, receive_s), fd=listening.fileno())


def serve(app: Any, listening: socket.socket) -> None:
    """Serve an application on a socket until Ctrl-C."""
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server(app.server, listening)
    try:
        server.serve_forever()
    finally:
        server.server_close()
