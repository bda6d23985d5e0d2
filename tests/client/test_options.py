"""The options of both clients: names, errors, documentation."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rpcstream import AsyncClient, Client
from rpcstream.client.options import DEFAULTS, AsyncClientOptions, SyncClientOptions
from rpcstream.config.client import CLIENT

from ..internals import settings_of

KINDS: list[tuple[Any, Any]] = [(Client, SyncClientOptions), (AsyncClient, AsyncClientOptions)]


@pytest.mark.parametrize(("client", "kind"), KINDS)
def test_every_option_has_a_default_and_is_documented_with_it(client: Any, kind: Any) -> None:
    assert kind.__optional_keys__ <= DEFAULTS.keys()
    text = inspect.getdoc(client) or ""
    for name in kind.__optional_keys__:
        default = "Limits()" if name == "limits" else repr(DEFAULTS[name])
        assert text.count(f"\n    {name}={default}: ") == 1


def test_defaults_are_of_options_that_exist() -> None:
    assert DEFAULTS.keys() == SyncClientOptions.__optional_keys__ | AsyncClientOptions.__optional_keys__  # type: ignore[attr-defined]


@pytest.mark.parametrize(("client", "kind"), KINDS)
def test_every_default_may_be_given(client: Any, kind: Any) -> None:
    made = client("127.0.0.1:1", **{name: DEFAULTS[name] for name in kind.__optional_keys__})
    assert settings_of(made).timeout == settings_of(client("127.0.0.1:1")).timeout == 60.0


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_an_unknown_option_is_refused_with_the_nearest_known_one(client: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{client.__name__}\(\) has no option 'time_out'; did you mean 'timeout'\?$"):
        client(time_out=1)
    with pytest.raises(TypeError, match=rf"^{client.__name__}\(\) has no option 'zzz'$"):
        client(zzz=1)
    with pytest.raises(TypeError, match="has no option 'zzz'"):
        client.from_config(zzz=1)


def test_options_of_the_other_client_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Client\(\) has no option 'connect'"):
        Client(connect=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"AsyncClient\(\) has no option 'on_send'"):
        AsyncClient(on_send=None)  # type: ignore[call-arg]


def test_options_are_keywords() -> None:
    with pytest.raises(TypeError):
        Client("127.0.0.1:1", 5.0)  # type: ignore[misc]
    assert Client(address="host:1").address == Client("host:1").address == "host:1"


def test_configuration_files_have_the_clients_options() -> None:
    known = {name for name in DEFAULTS if name in CLIENT}
    assert known == DEFAULTS.keys() - {
        "on_state",
        "codec",
        "limits",
        "delimiter",
        "trace",
        "on_send",
        "on_receive",
        "connect",
        "nats",  # `nats_creds`, `nats_nkey` and so on there
    }


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_every_method_has_a_text(client: Any) -> None:
    public = [name for name in dir(client) if not name.startswith("_")]
    assert [name for name in public if not inspect.getdoc(getattr(client, name))] == []
