"""Attributes of clients as method names."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest

from rpcstream import AsyncClient, Client
from rpcstream.peer.calls import Method


def made(method: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return method, args, kwargs


def test_names_and_arguments_go_through() -> None:
    methods = Method(made)
    assert methods.sum(1, 2) == ("sum", (1, 2), {})
    assert methods.sum(a=1, self=2, method=3) == ("sum", (), {"a": 1, "self": 2, "method": 3})
    assert methods.vision.edges.count(3) == ("vision.edges.count", (3,), {})
    assert methods("any name at all", 1) == ("any name at all", (1,), {})


def test_names_with_an_underscore_are_never_remote() -> None:
    client = Client()
    for thing in (Method(made), Method(made).vision, client, client.vision, AsyncClient(), client.batch()):
        for name in ("_private", "__len__", "_repr_html_", "__deepcopy__"):
            with pytest.raises(AttributeError, match=f"{name}.*use call"):
                getattr(thing, name)
    assert not inspect.isawaitable(client.vision)
    assert repr(copy.copy(client.vision)) == repr(client.vision)


def test_a_client_does_not_keep_names_without_end() -> None:
    client = Client()
    for number in range(2000):
        getattr(client, f"name{number}")
    assert len(vars(client)) <= 256
