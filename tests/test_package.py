"""The package: its public names, its import time, and its metadata."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

import rpcstream
from rpcstream import errors


def test_every_public_name_is_there() -> None:
    for name in rpcstream.__all__:
        assert getattr(rpcstream, name) is not None
    assert set(dir(rpcstream)) == set(rpcstream.__all__)
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = rpcstream.nothing_of_this_name  # type: ignore[attr-defined]


def test_a_server_has_few_options_of_its_own() -> None:
    """Related options are one value, such as `http=Http(...)`, so that a reader can take in all of them."""
    described = inspect.getdoc(rpcstream.Server) or ""
    named = re.findall(r"(?m)^    (\w+)=", described.partition("Options:")[2])
    assert {"token", "limits", "http", "logs", "info"} < set(named)
    assert len(named) <= 24, named


@pytest.mark.parametrize("client", [rpcstream.Client, rpcstream.AsyncClient])
def test_a_client_has_few_options(client: type) -> None:
    described = inspect.getdoc(client) or ""
    named = re.findall(r"(?m)^    (\w+)=", described.partition("Options:")[2])
    assert {"token", "limits", "retry", "tls", "trace"} < set(named)
    assert len(named) <= 18, named


def test_there_are_few_limits_names_and_variables() -> None:
    """More than these cannot be kept in mind; a new one takes the place of another, or becomes a constant."""
    assert len(dataclasses.fields(rpcstream.Limits)) <= 18
    assert len(rpcstream.__all__) <= 38
    pages = [page.read_text() for page in (Path(__file__).parents[1] / "docs").rglob("*.md")]
    variables = set(re.findall(r"\bRPCSTREAM_[A-Z_]*[A-Z]\b", "".join(pages)))
    variables.remove("RPCSTREAM_WORKER")  # which is set for programs, not by users
    assert "RPCSTREAM_TOKEN" in variables
    assert len(variables) <= 12, variables


def loaded_by(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return set(out.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import rpcstream", {"asyncio", "numpy", "PIL", "msgspec", "orjson"}),
        ("from rpcstream import Client", {"asyncio", "numpy", "PIL", "msgspec", "concurrent.futures", "logging"}),
        ("from rpcstream import AsyncClient", {"numpy", "PIL", "websockets", "rpcstream.server", "rpcstream.hub"}),
        (
            "from rpcstream import Server; Server().add(lambda a: a, name='x')",
            {"numpy", "PIL", "uvloop", "rpcstream.hub"},
        ),
        ("from rpcstream import Hub, Rule; Hub(token='x', rules=[Rule('*', call='>')])", {"numpy", "PIL", "uvloop"}),
    ],
)
def test_what_is_not_needed_is_not_imported(statement: str, absent: set[str]) -> None:
    assert not loaded_by(statement) & absent


def test_codes_are_told_apart() -> None:
    for code, known in errors.BY_CODE.items():
        error = errors.error_from_wire({"code": code, "message": "words", "data": [1]}, method="m", address="a:1")
        assert type(error) is known
        assert (error.code, error.message, error.data) == (code, "words", [1])
        assert str(error) == f"[{code}] words: [1] (method 'm' at a:1)"
    assert type(errors.error_from_wire({"code": 5, "message": "own"})) is errors.RpcError
    assert len(errors.BY_CODE) == 13
    for kind, base in {
        errors.ConnectFailed: ConnectionError,
        errors.ConnectionLost: ConnectionError,
        errors.CallTimeout: TimeoutError,
        errors.DeadlineExceeded: TimeoutError,
    }.items():
        assert issubclass(kind, base)


def test_a_malformed_error_is_an_error_all_the_same() -> None:
    for wrong in (None, 5, "x", [], {}, {"code": "x"}, {"code": True, "message": "x"}):
        error = errors.error_from_wire(wrong)
        assert isinstance(error, errors.InternalError)
        assert error.data == wrong
    assert isinstance(errors.error_from_wire({"code": 1, "message": 5}), errors.RpcError)


def test_errors_survive_pickling() -> None:
    import pickle

    for error in (errors.InvalidParams("m", {"a": 1}), errors.RpcError(5, "m"), errors.DeadlineExceeded("late")):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (copy.code, copy.message, copy.data) == (error.code, error.message, error.data)


def test_the_help_of_the_package_begins_with_programs_that_run() -> None:
    text = inspect.getdoc(rpcstream) or ""
    service, call = (textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n|^\n)+", text, re.MULTILINE)[1:5:2])
    names: dict[str, Any] = {"__name__": "service"}
    exec(compile(service, "service.py", "exec"), names)
    assert names["brightness"](PIL.Image.new("RGB", (2, 2), (1, 2, 3)), 2.0).tolist() == [2.0, 4.0, 6.0]
    assert "brightness" in names["server"].methods
    compile(call, "call.py", "exec")


def test_what_users_get_has_no_members_for_the_framework() -> None:
    of_context = {name for name in dir(rpcstream.Context) if not name.startswith("_")}
    of_calls = {"metadata", "remaining", "cancelled", "check", "progress"}
    assert of_context == {*of_calls, "after_reply", "credentials", "peer"}


# -- the page for those who change it --------------------------------------------------------------------------------

ARCHITECTURE = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCE = Path(rpcstream.__file__).parent


def test_the_architecture_page_names_each_package_and_only_files_that_exist() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(re.findall(r"`(\w+)/`", ARCHITECTURE))
    paths = re.findall(r"\b([a-z_]+/[a-z_0-9]+\.py)\b", ARCHITECTURE)
    assert [path for path in paths if not (SOURCE / path).exists() and not path.startswith("tests/")] == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.InvalidRequest(data={"reason": "missing 'method'"}), "[-32600] Invalid Request: missing 'method'"),
        (
            errors.InvalidParams("Invalid params: a: not one", {"path": "$", "parameter": "a", "reason": "not one"}),
            "[-32602] Invalid params: a: not one",
        ),
        (
            errors.MethodNotFound("Method not found: 'ad'", {"method": "ad", "nearest": ["add"]}),
            "[-32601] Method not found: 'ad'",
        ),
        (
            errors.MessageTooLarge("it has 70 bytes, limit 64", {"size": 70, "limit": 64, "side": "server"}),
            "[-32001] it has 70 bytes, limit 64",
        ),
        (errors.RpcError(40, "seat 5 is taken", {"seat": 5}), "[40] seat 5 is taken: {'seat': 5}"),
        (errors.ParseError(data=["x"]), "[-32700] Parse error: ['x']"),
    ],
)
def test_the_text_does_not_say_things_twice(error: errors.RpcError, text: str) -> None:
    assert str(error) == text
