"""Arguments as the method takes them: what is asked for, what is remembered, and what a hostile document can do."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from rpcstream import Server
from rpcstream.cli import schemas
from rpcstream.cli.call import main
from rpcstream.cli.schemas import methods_in, remember, remembered
from rpcstream.testing import serve_in_thread

from ..client.conftest import ScriptedServer

Run = Callable[..., tuple[int, str, str]]


def make_server(discovered: list[str] | None = None) -> Server:
    server = Server(title="types", drain_timeout=0.1)

    @server
    def say(text: str) -> str:
        return repr(text)

    @server
    def maybe(text: str | None) -> str:
        return repr(text)

    @server
    def either(value: str | int) -> str:
        return repr(value)

    @server
    def choose(size: Literal["1", "2"]) -> str:
        return repr(size)

    @server
    def rest(first: int, *more: str, **named: str) -> str:
        return repr((first, more, named))

    @server
    def anything(value: Any, data: bytes = b"") -> str:
        return repr(value)

    @server
    def single(points: npt.NDArray[np.float32]) -> str:
        return f"{points.dtype} {points.tolist()}"

    @server
    def small(points: Annotated[npt.NDArray[np.uint8] | npt.NDArray[np.int16], "one of two"]) -> str:
        return f"{points.dtype} {points.tolist()}"

    @server
    async def twice(text: str) -> Any:
        for _ in range(2):
            yield repr(text)

    return server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve_in_thread(make_server()) as where:
        yield where


@pytest.fixture
def run(address: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("say", "text=1")`, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*argv: str, uri: str = address) -> tuple[int, str, str]:
        status = main([*argv, "--format", "raw", "--uri", uri])
        return status, *capfd.readouterr()

    return run


def files_in(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "cache" / "rpcstream" / "schemas"
    return sorted(folder.iterdir()) if folder.exists() else []


class TestValues:
    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["say", "text=1"], "'1'"),
            (["say", "text=1.50"], "'1.50'"),
            (["say", "text=true"], "'true'"),
            (["say", "text=null"], "'null'"),
            (["say", "--positional", "007", "--no-progress"], "'007'"),
            (["say", "--positional", "-1e3"], "'-1e3'"),
            (["maybe", "text=null"], "None"),
            (["maybe", "text=1"], "'1'"),
            (["either", "value=1"], "1"),
            (["either", "value=true"], "'true'"),
            (["choose", "size=1"], "'1'"),
            (["rest", "--positional", "1", "2", "3"], "(1, ('2', '3'), {})"),
            (["rest", "first=1", "b=2"], "(1, (), {'b': '2'})"),
            (["anything", "value=1"], "1"),
            (["single", "points:ndarray=[[1,2]]"], "float32 [[1.0, 2.0]]"),
            (["single", "--positional", ":ndarray=[0.5]"], "float32 [0.5]"),
            (["small", "points:ndarray=[300]"], "int16 [300]"),
            (["anything", "value:ndarray=[1]"], "array([1])"),
            (["--stream", "twice", "text=1"], "'1'\n'1'"),
        ],
    )
    def test_as_the_method_takes_them(self, run: Run, argv: list[str], said: str) -> None:
        assert run(*argv) == (0, f"{said}\n", "")
        assert run(*argv) == (0, f"{said}\n", "")  # now out of the cache

    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["say", "text:int=1"], "error -32602"),
            (["single", "points:ndarray:float64=[1]"], "error -32602"),
            (["single", "points:ndarray:float=[1]"], "unknown dtype 'float': use '<f8' or 'float64'"),
            (["say", "text=1", "--no-schema"], "; for text give text:str=1\n"),
            (["say", "--positional", "1", "--no-schema"], "; for text give :str=1\n"),
            (["single", "points:ndarray=[1]", "--no-schema"], "; for another dtype give points:ndarray:float32=[1]\n"),
        ],
    )
    def test_what_is_explicit_wins_and_where_nothing_is_known_the_error_says_how(
        self, run: Run, argv: list[str], said: str
    ) -> None:
        status, out, err = run(*argv)
        assert (status in (1, 2), out, err.count("\n")) == (True, "", 1)
        assert said in err


class TestAsking:
    @pytest.mark.parametrize(
        ("argv", "asked"),
        [
            (["say", "text=a"], False),
            (["say", "text:str=1"], False),
            (["say", "text=1", "--no-schema"], False),
            (["single", "points:ndarray:float32=[1]"], False),
            (["say", 'text:="a"'], False),
            (["say", "text=1"], True),
            (["single", "points:ndarray=[1]"], True),
            (["say", "text=1", "--notify"], True),
        ],
    )
    def test_only_where_that_matters_and_once(self, run: Run, argv: list[str], asked: bool) -> None:
        assert run(*argv, "-v")[2].count('"method":"rpc.discover"') == asked
        again = run(*argv, "-v")[2].count('"method":"rpc.discover"')
        assert again == ("--notify" in argv)  # whose errors nobody sees, so that no copy is trusted

    def test_a_copy_that_is_out_of_date_is_found_by_the_error(self, run: Run, address: str) -> None:
        document = {"methods": [{"name": "say", "params": [{"name": "text", "schema": {"type": "integer"}}]}]}
        remember(address, document, methods_in(document))
        assert run("say", "text=1") == (0, "'1'\n", "")
        known = remembered(address, "say")
        assert known is not None
        assert known.taken("text") == ["string"]

    def test_an_error_that_has_nothing_to_do_with_it_is_repeated_once_at_most(self, run: Run) -> None:
        assert run("say", "text=1", "other=2")[0] == 1
        status, _, err = run("say", "text=1", "other=2", "-v")
        assert status == 1
        assert err.count('"method":"say"') == 1

    def test_a_server_that_does_not_say(self, run: Run) -> None:
        def answer(line: Any) -> None:
            for code in (-32601, -32602):
                request = line.read()
                line.say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": "No"}})

        server = ScriptedServer(answer)
        try:
            status, _, err = run("say", "text=1", uri=server.address)
        finally:
            server.close()
        assert (status, err) == (1, "error -32602: No; for text give text:str=1\n")


class TestCache:
    def test_is_private_and_bounded(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(schemas, "MAX_FILES", 2)
        run("say", "text=1")
        (path,) = files_in(tmp_path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        for number in range(3):
            remember(f"host:{number}", {}, {})
        assert len(files_in(tmp_path)) == 2
        remember("host:large", {}, methods_in(_document({"name": "x" * schemas.MAX_SIZE})))
        remember("x" * 300, {}, {})
        assert len(files_in(tmp_path)) == 2

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"format":1}', "null", '{"format":2}', "x" * 10])
    def test_a_file_that_is_broken_is_not_used(self, run: Run, tmp_path: Path, text: str) -> None:
        run("say", "text=1")
        (path,) = files_in(tmp_path)
        path.write_text(text)
        assert run("say", "text=1") == (0, "'1'\n", "")
        assert json.loads(path.read_text())["format"] == 1

    @pytest.mark.parametrize("change", [{"time": 0.0}, {"time": 1e12}, {"address": "other"}, {"methods": {"say": 3}}])
    def test_a_file_that_is_old_or_of_another_server_is_not_used(
        self, run: Run, address: str, tmp_path: Path, change: dict[str, Any]
    ) -> None:
        run("say", "text=1")
        (path,) = files_in(tmp_path)
        assert remembered(address, "say") is not None
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        assert remembered(address, "say") is None

    @pytest.mark.skipif(os.name != "posix", reason="no permissions")
    def test_a_file_that_others_can_write_is_not_used(self, run: Run, address: str, tmp_path: Path) -> None:
        run("say", "text=1")
        (path,) = files_in(tmp_path)
        path.chmod(0o666)
        assert remembered(address, "say") is None
        target = path.rename(tmp_path / "elsewhere")
        target.chmod(0o600)
        path.symlink_to(target)
        assert remembered(address, "say") is None

    def test_no_folder_to_write_to(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("a file")
        assert run("say", "text=1") == (0, "'1'\n", "")


def _document(schema: Any, **more: Any) -> dict[str, Any]:
    return {"methods": [{"name": "m", "params": [{"name": "p", "schema": schema}]}], **more}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema]}
    return schema


ENDLESS = {"components": {"schemas": {"A": {"$ref": "#/components/schemas/A"}}}}


@pytest.mark.parametrize(
    ("schema", "taken"),
    [
        ({}, None),
        (True, None),
        ("string", None),
        ({"type": "string"}, ["string"]),
        ({"type": ["string", "null", 3]}, ["null", "string"]),
        ({"type": 3}, None),
        ({"type": "string", "contentEncoding": "base64"}, []),
        ({"enum": ["a", 1, None]}, ["integer", "null", "number", "string"]),
        ({"const": "a"}, ["string"]),
        ({"enum": [[1]]}, ["object"]),
        ({"anyOf": [{"type": "string"}, {}]}, None),
        ({"anyOf": "x"}, None),
        ({"$ref": "#/components/schemas/A"}, None),
        ({"$ref": 3}, None),
        (_nested(4), ["string"]),
        (_nested(50), None),
    ],
)
def test_types_of_schemas(schema: Any, taken: list[str] | None) -> None:
    assert methods_in(_document(schema, **ENDLESS))["m"].taken("p") == taken


@pytest.mark.parametrize(
    "document", [None, 3, {}, {"methods": 3}, {"methods": [3, {}, {"name": 3}]}, {"methods": {"a": 1}}]
)
def test_documents_that_are_none(document: Any) -> None:
    assert methods_in(document) == {}


def test_alternatives_that_refer_to_alternatives_are_read_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_MAX_SCHEMAS", 10_000)  # 50 * 50 * 50 * 50 in this document
    named: dict[str, Any] = {f"S{n}": {"anyOf": [{"$ref": f"S{n + 1}"}] * 50} for n in range(3)}
    named["S3"] = {"type": "integer"}
    params = [{"name": name, "schema": {"$ref": name}} for name in ("S3", "S2", "S0")]
    document = {"methods": [{"name": "m", "params": params}], "components": {"schemas": named}}
    assert [taken for _, _, taken in methods_in(document)["m"].parameters] == [["integer"], ["integer"], None]


def test_too_many_parameters_are_not_known() -> None:
    params = [{"name": f"p{number}", "schema": {"type": "string"}} for number in range(schemas.MAX_PARAMETERS + 1)]
    found = methods_in({"methods": [{"name": "m", "params": params}]})["m"]
    assert (found.taken("p0"), found.taken(0)) == (None, None)
