"""Chromium, and pages in it that are watched: what they ask for, and what they say on the console."""

from __future__ import annotations

import base64
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import rpcstream.web
from rpcstream import Server
from rpcstream.testing import serve_in_thread

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without Playwright or Chromium there is nothing to test with."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return True
    return None if CHROMIUM else True


PICTURES = Path(__file__).parents[2] / "docs" / "images"

MODULES = Path(rpcstream.web.__file__).parent / "explorer"

#: Seconds; only what fails is waited for that long.
PATIENCE = 30


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


#: The bytes of a canvas in base64, and its width.
PIXELS = """node => {
    const { data } = node.getContext("2d").getImageData(0, 0, node.width, node.height)
    let text = ""
    for (let at = 0; at < data.length; at += 32768) text += String.fromCharCode(...data.subarray(at, at + 32768))
    return [btoa(text), node.width]
}"""


class Explorer:
    """A page of the explorer at a server, what stood on its console, and the hosts that it has asked for something."""

    def __init__(self, context: Any, address: str) -> None:
        self.url = address if "://" in address else f"http://{address}"
        self.said: list[str] = []
        self.hosts: set[str] = set()
        self.page = context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("websocket", lambda socket: self._asked(socket.url))

    def _asked(self, url: str) -> None:
        if urlsplit(url).scheme not in ("blob", "data"):
            self.hosts.add(urlsplit(url).netloc)

    def open(self, rest: str = "") -> Explorer:
        """Load the page, and wait for its list of methods."""
        self.page.goto(f"{self.url}/docs{rest}")
        self.page.wait_for_selector("#list a")
        return self

    def choose(self, method: str) -> None:
        self.page.locator("#list a", has_text=method).get_by_text(method, exact=True).click()
        self.page.wait_for_selector(f"main h2 >> text={method}")

    def field(self, name: str) -> Any:
        """The input, text or choice of a parameter."""
        return self.page.locator("main form").get_by_label(name, exact=True).first

    def error(self, name: str) -> str:
        """The error that stands at the field of a parameter; "" for none."""
        error = self.page.locator(f"#{self.field(name).get_attribute('aria-describedby')}")
        return error.inner_text() if error.is_visible() else ""

    def start(self) -> Any:
        """Call; gives the card of the call."""
        before = self.page.locator(".card[aria-labelledby]").count()
        self.page.locator("main form button.main").first.click()
        self.until(f"document.querySelectorAll('main .card').length > {before}")
        return self.page.locator("main .card").first

    def call(self, state: str = "done") -> Any:
        """Call, and wait until the card says that this is how it ended."""
        card = self.start()
        self.until("document.querySelector('main .card').dataset.state")
        assert card.get_attribute("data-state") == state, card.inner_text()
        return card

    def until(self, expression: str) -> None:
        """Wait until an expression is true in the page, which lets no strings run as programs there."""
        end = time.monotonic() + PATIENCE
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}; the page says: {self.page.inner_text('main')}"
            self.page.wait_for_timeout(10)

    def serve_modules(self) -> None:
        """Let tests import the modules of the page, which the server sends as one program."""
        files = re.compile(r"/docs/(\w+\.js)$")
        self.page.route(files, lambda route: route.fulfill(path=MODULES / files.search(route.request.url)[1]))

    def keep(self, name: str) -> None:
        """Make a picture of the page for the documentation, with `RPCSTREAM_PICTURES=1`."""
        if os.environ.get("RPCSTREAM_PICTURES") == "1":
            self.page.screenshot(path=PICTURES / name)

    def pixels(self, canvas: Any) -> np.ndarray:
        """The pixels of a canvas: rows of columns of red, green, blue and alpha."""
        text, width = canvas.evaluate(PIXELS)  # as text: millions of numbers as JSON take a busy machine a minute
        return np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, width, 4)


@pytest.fixture
def explore(browser: Any) -> Iterator[Any]:
    """`with explore(server) as explorer:`; at its end the console is clean, and no other host was asked."""

    @contextmanager
    def at(
        server: Server, *, is_open: bool = True, may_say: tuple[str, ...] = (), **options: Any
    ) -> Iterator[Explorer]:
        size = {"width": 1180, "height": 820}
        with serve_in_thread(server) as address, closing(browser.new_context(viewport=size, **options)) as context:
            explorer = Explorer(context, address)
            if is_open:
                explorer.open()
            yield explorer
            assert [each for each in explorer.said if not any(word in each for word in may_say)] == []
            assert explorer.hosts == {urlsplit(explorer.url).netloc}

    return at
