"""A connection to NATS that ends while something is written to it."""

from __future__ import annotations

import asyncio

import pytest

from rpcstream.nats.link import NatsLink
from rpcstream.nats.options import NatsOptions

from ..internals import nats_transport
from ..kit.nats_server import NatsServer

pytestmark = pytest.mark.nats


@pytest.mark.parametrize(
    "second",
    [BrokenPipeError(32, "Broken pipe"), RuntimeError("unable to perform operation; the handler is closed")],
    ids=["asyncio", "uvloop"],
)
async def test_its_end_is_told_when_what_waits_cannot_be_written(
    shared_nats: NatsServer, monkeypatch: pytest.MonkeyPatch, second: Exception
) -> None:
    link = await NatsLink.connect(NatsOptions(servers=(f"127.0.0.1:{shared_nats.port}",)))
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    link.on_lost = lost.set_result

    async def break_off() -> None:
        if link.client.is_connected:
            link.publish("broken.writes", b"")  # comes to wait meanwhile
            raise BrokenPipeError(32, "Broken pipe")
        raise second

    monkeypatch.setattr(nats_transport(link), "drain", break_off)
    link.publish("broken.writes", b"")
    assert "Broken pipe" in await asyncio.wait_for(lost, 20)
    assert not link.is_open
    await link.close()
