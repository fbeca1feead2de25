"""Pages in a real Chromium, started once for a module; nothing leaves this machine."""

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.helpers.needs import CHROMIUMS, needs

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser; skip where there is none."""
    needs("playwright", "chromium")
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, CHROMIUMS)))
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


class Watched:
    """A page that notes what goes wrong in it, and every request that would leave the machine."""

    def __init__(self, browser: Any, *, width: int = 1200, height: int = 900, **context: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, **context)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)

    def open(self, path: Path) -> Any:
        """Show a file, and wait until its figures are drawn."""
        self.page.goto(path.as_uri())
        self.page.wait_for_function("document.querySelectorAll('.plot:not(.js-plotly-plot)').length === 0")
        return self.page


def num_colours(picture: bytes) -> int:
    """Return how many colours a PNG has: a figure that was not drawn has one or two."""
    needs("PIL")
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB")
    return len(image.getcolors(2**24))
