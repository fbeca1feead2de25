"""Serve the explorer to this machine alone: loopback, a token, and the name that a browser calls it by."""

import hmac
import secrets
import socket
from typing import Any

from simnet.core.errors import SimnetError

HOST = "127.0.0.1"
COOKIE = "simnet_token"
NAMES = (HOST, "localhost")


def free_socket(port: int) -> socket.socket:
    """Return a socket that listens on loopback.

    Args:
        port: 0 takes any that is free.

    Raises:
        SimnetError: the port is in use, or not for everybody.
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


def guard(server: Any, token: str, port: int) -> None:
    """Let a Flask server answer only who has the token, under the names of this machine.

    The first page is asked for with `?token=`; the answer sets a cookie, and leads to the page without the token, so
    that it stays in no history. A page of another site that a name server points to this machine (DNS rebinding) sends
    another host name.
    """
    from flask import Response, abort, redirect, request

    hosts = {f"{name}:{port}" for name in NAMES}

    @server.before_request  # type: ignore[untyped-decorator]
    def check() -> Any:
        if request.host not in hosts:
            abort(403)
        given = request.args.get("token")
        if given is not None:
            if not _equal(given, token):
                abort(403)
            response = redirect("/")
            response.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
            return response
        if not _equal(request.cookies.get(COOKIE, ""), token):
            abort(403)
        return None

    @server.after_request  # type: ignore[untyped-decorator]
    def close(response: Response) -> Response:
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"
        return response


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def serve(app: Any, listening: socket.socket) -> None:
    """Serve an application on a socket until Ctrl-C; several requests at a time."""
    import logging

    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    port = listening.getsockname()[1]
    server = make_server(HOST, port, app.server, threaded=True, fd=listening.fileno())
    try:
        server.serve_forever()
    finally:
        server.server_close()
