"""Lines of the access log and of slow calls: their fields, hostile values, and how many there may be."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from rpcstream import Logs
from rpcstream.testing import memory_client

from ..kit import UsualServer, logged, raw_peers, request
from ..kit.messages import as_bytes
from .reading import value

ACCESS = "rpcstream.access"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@dataclass
class User:
    name: str
    token: str = "correct-horse"


with_id = '{{"jsonrpc":"2.0","id":{},"method":"add","params":[1,2]}}'.format

#: Names, and text that stands in a line without quotes but would be misread so.
HOSTILE = [
    *("a b", "a\nb code=0", "\x1b[2J", '"quoted"', "back\\slash", "\u202edesrever", "line\u2028end"),
    *("-", "", "id=1", "\x00"),
]

#: A call, who makes it, what a line of JSON says of it besides the usual, and a part of the line of text.
LINES: list[tuple[Any, Any, dict[str, Any], str]] = [
    (request("math.sum"), "alice", {"method": "math.sum", "code": -32601}, " tcp alice math.sum id=1 code=-32601 ms="),
    (with_id(str(2**62)), "alice", {"id": 2**62}, f"id={2**62} code=0"),
    (with_id(str(2**70)), "alice", {"code": -32600}, " code=-32600 "),
    (with_id(str(2**63)), "alice", {"id": str(2**63)}, f"id={2**63} code=0"),
    (with_id("1.50"), "alice", {"id": "1.5"}, "id=1.5 "),
    (with_id("-1"), "alice", {"id": -1}, "id=-1 "),
    (with_id("null"), "alice", {"id": None}, "id=- "),
    (with_id('["a"]'), "alice", {"id": "['a']"}, "id=\"['a']\" "),
    *[({"id": 7, "method": each}, "alice", {"method": None}, " alice - id=") for each in (None, 5, ["x"], {"a": 1})],
    (request("\x1b" * 5000), "alice", {"method": "\x1b" * 200 + "…"}, "id=1 "),
    (request("m" * 5000), "alice", {"method": "m" * 200 + "…"}, "m…"),
    (request("add", id="i" * 5000), "alice", {"id": "i" * 200 + "…"}, "i…"),
    (request("add"), "n" * 5000, {"identity": "n" * 200 + "…"}, "n…"),
    (request("add"), User("bob"), {"identity": "bob"}, " bob add "),
    (request("add"), object(), {"identity": "object"}, " object add "),
    (request("add"), {"token": "correct-horse"}, {"identity": "dict"}, " dict add "),
    (request("add"), "a\ud800b", {"identity": "a?b"}, ' "a?b" add '),
    *[(request(each, id=each), "alice", dict.fromkeys(("method", "id"), each), "") for each in HOSTILE],
]


@pytest.mark.parametrize(("message", "identity", "fields", "part"), LINES)
async def test_what_a_line_says(message: Any, identity: Any, fields: dict[str, Any], part: str) -> None:
    with logged(ACCESS, alone=True) as log:
        for format in ("text", "json"):
            server = UsualServer(logs=Logs(access_log=format), authenticate=lambda credentials: identity)
            async with raw_peers(server) as connect:
                peer = await connect()
                await peer.result("rpc.authenticate", "any")
                await peer.ask(message)
    _, text, _, line = log.lines
    assert text.isprintable()
    assert len(text) < 3000
    assert "correct-horse" not in text + line
    assert part in text
    found = orjson.loads(line)
    assert {name: found[name] for name in fields} == fields
    if not part:  # it is one quoted word of the line
        method, _, rest = text.partition("alice ")[2].partition(" id=")
        assert [orjson.loads(each) for each in (method, rest.rpartition(" code=")[0])] == [fields["method"]] * 2
    assert re.fullmatch(TIME, found.pop("time"))
    assert re.fullmatch(r"127\.0\.0\.1:\d+", found.pop("address"))
    assert [found.pop(name) for name in ("transport", "request_bytes")] == ["tcp", len(as_bytes(message))]
    assert found.pop("ms") > 0
    assert found.keys() == {"identity", "method", "id", "code", "reply_bytes"}


@pytest.mark.slow
async def test_lines_beyond_those_of_a_second_are_counted() -> None:
    text, json = [UsualServer(logs=Logs(access_log=format), metrics=True) for format in ("text", "json")]

    def dropped(server: UsualServer) -> int:
        return int(value(server.metrics_text(), "rpcstream_access_log_dropped_total") or 0)

    with logged(ACCESS, alone=True) as log:
        async with memory_client(text) as to_text, memory_client(json) as to_json:
            calls = 0
            for server, client in ((text, to_text), (json, to_json)):
                while not dropped(server):
                    async with client.batch() as batch:
                        for _ in range(600):
                            batch.add(1, 2)
                    calls += 600
            assert len(log.lines) == calls - dropped(text) - dropped(json)
            log.lines.clear()
            await asyncio.sleep(1)
            await to_text.add(1, 2)
            await to_json.add(1, 2)
    assert len(log.lines) == 2


async def test_slow_calls_of_a_method_are_limited_in_number() -> None:
    with logged("rpcstream.server") as log:
        async with raw_peers(UsualServer(logs=Logs(log_slow_calls=1e-9))) as connect:
            peer = await connect()
            peer.send(*[request("slow\nforged line", id=number) for number in range(30)])
            await peer.receive_many(30)
    shown = (
        r"slow call: slow\\u000aforged line took 0\.\d{3} s from its request to its reply \(log_slow_calls: 1e-09 s\)"
    )
    lines = log.matching("^slow call")
    assert len(lines) == 10
    assert re.fullmatch(rf"{shown}; id 0, code -32601, from 127\.0\.0\.1:\d+", lines[0])
