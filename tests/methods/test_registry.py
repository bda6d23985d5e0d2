"""Functions, objects and modules as methods, and what is refused."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import pytest

from rpcstream import Server
from rpcstream.errors import RegistrationError


def own(server: Server) -> list[str]:
    """The names of registered methods, without those of rpcstream's own."""
    return sorted(name for name in server.methods if not name.startswith("rpc."))


async def later() -> None: ...


def numbers() -> Iterator[int]:
    yield 1


def test_a_function_is_returned_unchanged_and_a_name_is_taken_once() -> None:
    server = Server()
    for options in ({}, {"name": "vision.later", "ordered": True}):
        assert server(**options)(later) is later
    assert own(server) == ["later", "vision.later"]
    with pytest.raises(ValueError, match="'later' is already registered"):
        server.add(lambda: 2, name="later")
    assert server.methods["later"].function is later
    server.add(lambda: 2, name="later", replace=True)
    assert server.methods["later"].function() == 2


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        *((each, {}, "has no name of its own") for each in (lambda: 1, functools.partial(lambda: 1))),
        *((print, {"name": each}, "a string of 1 to 1000 characters") for each in ("", 5)),
        *((print, {"name": each}, "reserved") for each in ("rpc.mine", "$/mine")),
        (max, {"name": "x"}, "no signature"),
        (dict, {"name": "x"}, "it is a class: .* server.add_object$"),
        (lambda: 1, {"name": "x", "offload": "fibre"}, "offload must be"),
        (lambda: 1, {"name": "x", "timeout": 1}, "cannot stop a sync function"),
        (lambda: 1, {"name": "x", "timeout": 0, "offload": "thread"}, "positive"),
        (numbers, {"offload": "process"}, "a generator runs in a thread at most"),
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
    server.add_object(Calculator(), prefix="other/", check_result=False)
    assert own(server) == [f"{prefix}{name}" for prefix in ("calc.", "other/") for name in ("add", "twice", "who")]
    assert server.methods["calc.add"].function(1, 2) == 3
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
        ("", {"pattern": "control_*o*", "prefix": "plant"}, ["plant.control_flowrate", "plant.control_foreign"]),
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
