"""`rpcstream-server --docs`: when the explorer is there."""

from __future__ import annotations

from typing import Any

import pytest

from rpcstream import Server
from rpcstream.cli.load import is_local, make_hub, prepare
from rpcstream.cli.serve import banner
from rpcstream.cli.serve_options import make_parser, parse
from rpcstream.testing import serve_in_thread


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, True),
        ({"host": "127.0.0.1"}, True),
        ({"host": "localhost"}, True),
        ({"host": "::1"}, True),
        ({"host": ""}, False),
        ({"host": "0.0.0.0"}, False),
        ({"host": "example.org"}, False),
        ({"unix": "/run/rpc.sock"}, False),
        ({"sockets": [object()]}, False),
    ],
)
def test_by_itself_only_where_no_other_machine_reaches_it(where: dict[str, Any], expected: bool) -> None:
    assert is_local(where) is expected


@pytest.mark.parametrize(
    ("argument", "own", "expected"),
    [
        ([], None, False),
        (["--docs"], None, True),
        (["--no-docs"], True, False),
        ([], True, True),
        (["--docs"], False, True),
    ],
)
def test_the_option_counts_before_the_program(argument: list[str], own: bool | None, expected: bool) -> None:
    server = Server(docs=own)
    prepare(server, parse(make_parser(), ["app.py", *argument]))
    assert (server.routes.explorer_path == "/docs") is expected


@pytest.mark.parametrize(("argument", "expected"), [([], False), (["--docs"], True)])
def test_a_hub_has_it_too(argument: list[str], expected: bool) -> None:
    assert make_hub(parse(make_parser(), ["--hub", *argument])).routes.explorer_path == ("/docs" if expected else None)


def test_the_banner_names_it(tmp_path) -> None:
    server = Server(docs=True)
    with serve_in_thread(server) as address:
        assert f"\nExplorer at http://{address}/docs\n" in banner(server, address, functions=False)
        assert "Explorer" not in banner(server, address, functions=True)
    with serve_in_thread(server, unix=tmp_path / "s") as address:
        assert "Explorer" not in banner(server, address, functions=False)
