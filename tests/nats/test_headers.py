"""The headers of a message, as any sender may write them: what they show of it, to a server that trusts NATS."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import Context

from ..kit import UsualServer
from .service import Service, call_of

pytestmark = pytest.mark.nats

TOKEN = b"Authorization: Bearer t\r\n"
TOLD = b'Nats-Request-Info: {"acc":"WEB","user":"ann"}\r\n'

NOTHING = "  "

SHOWN: list[tuple[bytes, str]] = [
    (TOKEN, "t  "),
    (TOLD, " ann WEB"),
    (b"A: b: c\t\r\nEmpty:\r\n" + TOKEN.replace(b" ", b"", 1) + TOLD, "t ann WEB"),
    (TOKEN.replace(b" ", b" \t", 1), "t  "),
    (b"A: \xc3\xb6\xff\r\n" + TOKEN, "t  "),
    (b"", NOTHING),
]

#: Behind TOKEN, which does not count then.
NOT_READ = [
    b"A: b",
    b"A : b\r\n\r\n",
    b" A: b\r\n\r\n",
    b"A\r\n\r\n",
    b": b\r\n\r\n",
    b"\xc3\xb6: b\r\n\r\n",
    b"A: b\nC: d\r\n\r\n",
    b"A: b\rC: d\r\n\r\n",
    b"A: b\r\n\r\nC: d\r\n\r\n",
    TOLD + b"A: b\r\n\r\n",
    TOLD + TOLD + b"\r\n",
    TOLD.lower() + b"\r\n",
    TOLD.lower() + TOLD + b"\r\n",
    b"Z" + TOLD + b"\r\n",
    TOLD.replace(b": ", b":") + b"\r\n",
    TOLD.replace(b":", b" :", 1) + b"Z" + TOLD + b"\r\n",
]

BLOCKS = [(b"NATS/1.0\r\n" + lines + b"\r\n", shown) for lines, shown in SHOWN]
BLOCKS += [(b"NATS/1.0 100 Idle Heartbeat\r\n" + TOKEN + b"\r\n", "t  ")]
BLOCKS += [(b"NATS/1.0\r\n" + TOKEN + rest, NOTHING) for rest in NOT_READ]
BLOCKS += [
    (rest, NOTHING) for rest in (b"", b"N", b"NATS/1.0", b"NATS/1.0\r\n" + TOKEN, b"NATS/1.1\r\n" + TOKEN + b"\r\n")
]


async def test_what_headers_show(service: Service) -> None:
    server = UsualServer(authenticate=lambda shown: f"{shown.token or ''} {shown.nats_user} {shown.nats_account}")

    @server
    def whoami(ctx: Context) -> Any:
        return ctx.identity

    async with service.serving(server, trust_identity=True), service.raw("answers.*") as raw:
        for block, shown in BLOCKS:
            raw.publish(service.root + "whoami", call_of("whoami"), "answers.here", block)
            assert (await raw.next_but_acks()).json["result"] == shown, block
