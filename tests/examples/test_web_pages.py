"""The example with pages, with requests as a browser sends them."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from types import ModuleType

import pytest
from PIL import Image

from rpcstream import Client, RpcError
from rpcstream.testing import serve_in_thread

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(load_example: Callable[[str], ModuleType]) -> Iterator[str]:
    with serve_in_thread(load_example("web_pages.py").server) as address:
        yield address


def fetch(address: str, path: str) -> tuple[int, str, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}{path}", timeout=20) as response:
            return response.status, response.headers.get_content_type(), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get_content_type(), error.read()


class Links(HTMLParser):
    """Where a page leads to, and what it says."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text = ""
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name in ("href", "src") and value is not None]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_link_of_the_page_has_an_end(address: str) -> None:
    status, kind, page = fetch(address, "/")
    assert (status, kind) == (200, "text/html")
    seen = Links(page)
    assert sorted(seen.links) == [
        "/pictures/cat.jpg",
        "/pictures/coffee.jpg",
        "/style.css",
        "/thumbnails/cat?side=200",
        "/thumbnails/coffee?side=200",
    ]
    kinds = {link: fetch(address, link)[:2] for link in seen.links}
    assert set(kinds.values()) == {(200, "image/jpeg"), (200, "image/png"), (200, "text/css")}


def test_a_word_finds_pictures_and_stays_text(address: str) -> None:
    assert "coffee" not in Links(fetch(address, "/?word=cat")[2]).text
    page = fetch(address, "/?word=%3Cscript%3Ealert(1)%3C/script%3E")[2]
    assert b"<script>" not in page
    assert 'No picture has "<script>alert(1)</script>" in its name.' in Links(page).text


def test_thumbnails_are_small(address: str) -> None:
    with Image.open(io.BytesIO(fetch(address, "/thumbnails/cat?side=50")[2])) as image:
        assert max(image.size) == 50
    assert fetch(address, "/thumbnails/dog")[::2] == (404, b"no picture is called 'dog'\n")
    status, _, text = fetch(address, "/thumbnails/cat?side=large")
    assert (status, text) == (400, b"the query parameter 'side': Expected int, got 'large'\n")


def test_programs_get_the_same_by_page_and_by_call(address: str) -> None:
    status, kind, text = fetch(address, "/api/mean/cat")
    assert (status, kind) == (200, "application/json")
    with Client(address) as client:
        assert client.mean("cat") == json.loads(text)
        with pytest.raises(RpcError, match="no picture is called 'dog'"):
            client.mean("dog")
    assert fetch(address, "/api/mean/dog")[0] == 404


def test_a_handler_sees_the_request(address: str) -> None:
    told = json.loads(fetch(address, "/whoami?x=1")[2])
    assert told["asked"] == "/whoami?x=1"
    assert told["agent"].startswith("Python-urllib")
