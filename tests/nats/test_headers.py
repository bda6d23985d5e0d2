"""The headers of a message, as any sender may write them."""

from __future__ import annotations

import pytest

pytest.importorskip("nats")

from rpcstream.nats.protocol import read_headers

pytestmark = pytest.mark.nats

TOLD = b'Nats-Request-Info: {"acc":"WEB"}\r\n'


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        (b"NATS/1.0\r\nA: b\r\nC:d\r\n\r\n", {"A": "b", "C": "d"}),
        (b"NATS/1.0\r\nA: b: c\t\r\nEmpty:\r\n\r\n", {"A": "b: c", "Empty": ""}),
        (b"NATS/1.0\r\nA: \xc3\xb6\xff\r\n\r\n", {"A": "ö\ufffd"}),
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n",
            {"Status": "100", "Nats-Last-Consumer": "7"},
        ),
        (b"NATS/1.0\r\nA: b\r\n" + TOLD + b"\r\n", {"A": "b", "Nats-Request-Info": '{"acc":"WEB"}'}),
        (b"NATS/1.0\r\n\r\n", None),
    ],
    ids=repr,
)
def test_headers_of_libraries_and_of_the_server(block: bytes, headers: dict[str, str] | None) -> None:
    assert read_headers(block) == headers


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"N",
        b"NATS/1.0",
        b"NATS/1.0\r\nA: b",
        b"NATS/1.0\r\nA: b\r\n",
        b"NATS/1.1\r\nA: b\r\n\r\n",
        b"NATS/1.0\r\nA : b\r\n\r\n",
        b"NATS/1.0\r\n A: b\r\n\r\n",
        b"NATS/1.0\r\nA\r\n\r\n",
        b"NATS/1.0\r\n: b\r\n\r\n",
        b"NATS/1.0\r\n\xc3\xb6: b\r\n\r\n",
        b"NATS/1.0\r\nA: b\nC: d\r\n\r\n",
        b"NATS/1.0\r\nA: b\rC: d\r\n\r\n",
        b"NATS/1.0\r\nA: b\r\n\r\nC: d\r\n\r\n",
        b"NATS/1.0\r\n" + TOLD + b"A: b\r\n\r\n",
        b"NATS/1.0\r\n" + TOLD + TOLD + b"\r\n",
        b"NATS/1.0\r\n" + TOLD.lower() + b"\r\n",
        b"NATS/1.0\r\n" + TOLD.lower() + TOLD + b"\r\n",
        b"NATS/1.0\r\nZ" + TOLD + b"\r\n",
        b"NATS/1.0\r\n" + TOLD.replace(b": ", b":") + b"\r\n",
        b"NATS/1.0\r\n" + TOLD.replace(b":", b" :", 1) + b"Z" + TOLD + b"\r\n",
    ],
    ids=repr,
)
def test_what_is_not_headers_is_not_read(block: bytes) -> None:
    assert read_headers(block) is None
