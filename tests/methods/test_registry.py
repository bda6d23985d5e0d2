"""Functions, objects and modules as methods, and what is refused."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest

from rpcstream import RegistrationError, Server


def own(server: Server) -> list[str]:
    """The names of registered methods, without those of rpcstream's own."""
    return sorted(name for name in server.methods if not name.startswith("rpc."))


async def later() -> None: ...


def test_the_decorated_function_is_returned_unchanged() -> None:
    server = Server()

    def add(a: int, b: int) -> int:
        return a + b

    assert server(add) is add
    assert server(name="vision.add", offload="thread", timeout=1)(add) is add
    assert server(later) is later
    assert own(server) == ["add", "later", "vision.add"]


def test_a_name_twice_is_an_error_unless_asked_for() -> None:
    server = Server()
    server.add(lambda: 1, name="one")
    with pytest.raises(ValueError, match="'one' is registered already"):
        server.add(lambda: 2, name="one")
    assert server.methods["one"].function() == 1
    server.add(lambda: 2, name="one", replace=True)
    assert server.methods["one"].function() == 2


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (lambda: 1, {}, "has no name of its own"),
        (functools.partial(lambda: 1), {}, "has no name of its own"),
        (print, {"name": ""}, "must be a string that is not empty"),
        (print, {"name": 5}, "must be a string"),
        (print, {"name": "rpc.mine"}, "reserved"),
        (print, {"name": "$/mine"}, "reserved"),
        (max, {"name": "x"}, "no signature"),
        (
            dict,
            {"name": "x"},
            r"^dict is a class, and a remote method is a function: .* server.add_object\(dict\(...\)\)$",
        ),
        (lambda: 1, {"name": "x", "offload": "fibre"}, "offload must be"),
        (lambda: 1, {"name": "x", "timeout": 1}, "cannot stop a sync function"),
        (lambda: 1, {"name": "x", "timeout": 0, "offload": "thread"}, "positive"),
        (lambda: 1, {"name": "x", "offload": "process"}, "another process can import"),
        (later, {"offload": "thread"}, "shares the loop already"),
    ],
)
def test_refused(function: Any, options: dict[str, Any], words: str) -> None:
    server = Server()
    with pytest.raises(RegistrationError, match=words):
        server.add(function, **options)
    assert own(server) == []


class Calculator:
    constant = 5

    def add(self, a: int, b: int) -> int:
        return a + b

    async def later(self) -> str:
        return "later"

    @staticmethod
    def twice(a: int) -> int:
        return 2 * a

    @classmethod
    def who(cls) -> str:
        return cls.__name__

    @property
    def trap(self) -> int:
        raise AssertionError("a property was read")

    def _private(self) -> None: ...


def test_public_methods_of_an_object_and_of_a_class_those_that_need_no_instance() -> None:
    server = Server()
    server.add_object(Calculator(), prefix="calc")
    assert own(server) == ["calc.add", "calc.later", "calc.twice", "calc.who"]
    assert server.methods["calc.add"].function(1, 2) == 3
    server.add_object(Calculator(), prefix="other/", check_result=False)
    assert "other/add" in server.methods
    server = Server()
    server.add_object(Calculator)
    assert own(server) == ["twice", "who"]
    with pytest.raises(RegistrationError, match="no public methods"):
        server.add_object(object())


SOURCE = """
from os.path import join as control_foreign
def control_flowrate(a: int) -> int: return a
def control_pump(): return 1
def helper(): return 2
def _private(): return 3
"""


@pytest.mark.parametrize(
    ("more", "options", "names"),
    [
        ("", {}, ["control_flowrate", "control_pump", "helper"]),
        (
            *("", {"pattern": "control_*", "prefix": "plant"}),
            ["plant.control_flowrate", "plant.control_foreign", "plant.control_pump"],
        ),
        ("__all__ = ['helper']", {}, ["helper"]),
    ],
)
def test_functions_of_a_module(more: str, options: Any, names: list[str]) -> None:
    module = types.ModuleType("plant")
    exec(SOURCE + more, module.__dict__)
    server = Server()
    server.add_module(module, **options)
    assert own(server) == names
    with pytest.raises(RegistrationError, match="'nothing_\\*'"):
        server.add_module(module, pattern="nothing_*")
