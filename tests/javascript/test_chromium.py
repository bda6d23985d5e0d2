"""The JavaScript client in Chromium, in a page of the server that it calls."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Http
from rpcstream.testing import serve_in_thread

from .service import DTYPES, MODES, make_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (rpcstream[dev])")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.tools,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (apt-get install chromium)"),
]

#: Only the server's own scripts and connections, so that a request to elsewhere fails loudly.
POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; img-src blob:"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("token", [None, "correct-horse"])
def test_values_and_conversations(browser: Any, token: str | None) -> None:
    server = make_server(token=token)
    page_of_test = b"<!doctype html><title>test</title>"
    server.static("/page", page_of_test, type="text/html", headers={"Content-Security-Policy": POLICY}, public=True)
    server.static("/browser.mjs", Path(__file__).with_name("browser.mjs"), public=True)
    said: list[str] = []
    hosts: set[str] = set()
    with serve_in_thread(server) as address:
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        page.goto(f"http://{address}/page")
        given = {"dtypes": DTYPES, "modes": MODES, "token": token}
        assert page.evaluate("given => import('/browser.mjs').then(({ run }) => run(given))", given) == []
        page.close()
        assert said == []
        assert {host for host in hosts if host} == {address}


def test_a_page_of_another_origin(browser: Any) -> None:
    """It needs the permission of the server, `origins`, for calls, and for the module itself."""
    program = """
        async ([address, scheme]) => {
            try {
                const { Client } = await import(`http://${address}/rpcstream.js`)
                const client = new Client(`${scheme}://${address}/`)
                const sum = await client.call("add", [2, 3])
                client.close()
                return sum
            } catch (error) {
                return error.name
            }
        }"""
    elsewhere = make_server()
    elsewhere.static("/page", b"<!doctype html><title>test</title>", type="text/html")
    with serve_in_thread(elsewhere) as other:
        page = browser.new_page()
        page.goto(f"http://{other}/page")
        with serve_in_thread(make_server(http=Http(origins=[f"http://{other}"]))) as permitted:
            assert page.evaluate(program, [permitted, "ws"]) == 5
            assert page.evaluate(program, [permitted, "http"]) == 5
        with serve_in_thread(make_server()) as address:
            assert page.evaluate(program, [address, "ws"]) == "TypeError"
        page.close()
