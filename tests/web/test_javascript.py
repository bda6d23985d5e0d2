"""`/rpcstream.js`: the JavaScript client, as a server answers with it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from rpcstream import Server, __version__
from rpcstream.web import Response, routes

from .routes_client import body_of, headers_of, request

WEB = Path(routes.__file__).parent
CLIENT = (WEB / "client.js").read_bytes()


def answer(server: Server, **headers: str) -> Response | None:
    found = server.routes.find(request("/rpcstream.js", **headers))
    assert found is None or isinstance(found, Response)
    return found


def test_only_a_server_that_is_told_to_answers_with_it() -> None:
    assert answer(Server()) is None
    found = answer(Server(javascript=True))
    assert found is not None
    assert found.body == CLIENT
    assert found.type == "text/javascript; charset=utf-8"


def test_it_is_for_callers_without_a_token_too() -> None:
    server = Server(javascript=True, token="correct-horse")
    assert server.routes.is_public(request("/rpcstream.js"))
    assert not server.routes.is_health_check(request("/rpcstream.js"))


def test_a_route_of_the_user_comes_first() -> None:
    server = Server(javascript=True)
    server.static("/rpcstream.js", b"mine")
    found = answer(server)
    assert found is not None
    assert found.body == b"mine"


def test_clients_that_read_gzip_get_it_compressed_with_a_tag_of_its_own() -> None:
    server = Server(javascript=True)
    found = {
        said: answer(server, accept_encoding=said)
        for said in ("gzip, deflate, br", "br, GZIP;q=0.5", "gzip;q=0.0", "br", "")
    }
    packed = [
        said for said, each in found.items() if each is not None and headers_of(each).get("content-encoding") == "gzip"
    ]
    assert packed == ["gzip, deflate, br", "br, GZIP;q=0.5"]
    tags = set()
    for said, each in found.items():
        assert each is not None
        headers = headers_of(each)
        assert headers["vary"] == "Accept-Encoding"
        assert (gzip.decompress(body_of(each)) if said in packed else body_of(each)) == CLIENT
        again = answer(server, accept_encoding=said, if_none_match=headers["etag"])
        assert again is not None
        assert again.status == 304
        tags.add(headers["etag"])
    assert len(tags) == 2
    assert len(body_of(found["gzip, deflate, br"] or Response(500))) < 20_000


def test_the_npm_package_has_the_version_of_this_one() -> None:
    described = json.loads((WEB / "package.json").read_text())
    assert described["version"] == __version__
    assert all((WEB / name).is_file() for name in described["files"])
