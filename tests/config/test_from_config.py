"""Hubs and clients that are made from a configuration."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rpcstream import AsyncClient, Client
from rpcstream.hub import Hub

from .shortcuts import SECRET


class TestFaces:
    """`from_config` of the classes, on a hub that runs."""

    async def test_both_clients_and_a_hub(self, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RPCSTREAM_TOKEN", SECRET)
        hub = Hub.from_config({"token": SECRET, "port": 0, "title": "of a mapping"}, debug=True)
        assert hub.where == {"port": 0}
        assert hub.debug
        async with hub.listening(**hub.where) as address:
            host, _, port = address.rpartition(":")
            path = write("client.json", f'{{"host": "{host}", "port": {port}, "client_id": "client1"}}')
            async with AsyncClient.from_config(path, timeout=20) as client:
                assert (await client.rpc.discover())["info"]["title"] == "of a mapping"
                assert client.registered_name == "client1"

            def call() -> Any:
                with Client.from_config(path, name="client2") as caller:
                    return [each["name"] for each in caller.call("rpc.clients")]

            assert "client2" in await asyncio.to_thread(call)

    def test_a_class_of_ones_own(self) -> None:
        class Mine(Hub): ...

        class Caller(Client): ...

        assert type(Mine.from_config({"rules": []}, token=SECRET)) is Mine
        assert type(Caller.from_config()) is Caller

    def test_the_log_level(self, monkeypatch: pytest.MonkeyPatch) -> None:
        logger = logging.getLogger("rpcstream")
        monkeypatch.setattr(logger, "level", logger.level)
        Hub.from_config({"log_level": "error"})
        assert logger.level == logging.ERROR
        Hub.from_config({})
        assert logger.level == logging.ERROR

    def test_what_the_constructor_refuses(self) -> None:
        with pytest.raises(TypeError, match="nothing_of_this_name"):
            Hub.from_config(nothing_of_this_name=1)
        with pytest.raises(ValueError, match="unknown scheme"):
            Client.from_config({"address": "gopher://x"})
        with pytest.raises(ValueError, match=r"configuration: rules: rule 1: call: 'a.' may have"):
            Hub.from_config({"rules": [{"who": "x", "call": "a*"}]}, token=SECRET)
