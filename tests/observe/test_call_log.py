"""Lines of the access log and of slow calls: their fields, hostile values, and how many there may be."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from rpcstream.testing import memory_client

from ..kit import UsualServer, logged, raw_peers, request
from .reading import value

ACCESS = "rpcstream.access"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


async def lines_of(format: str, *messages: Any, identity: Any = None) -> list[str]:
    """What the access log says of these calls, all of somebody with this identity."""
    options = {} if identity is None else {"authenticate": lambda credentials: identity}
    with logged(ACCESS, alone=True) as log:
        async with raw_peers(UsualServer(access_log=format, **options)) as connect:
            peer = await connect()
            if identity is not None:
                await peer.result("rpc.authenticate", "any")
                log.lines.clear()
            for message in messages:
                await peer.ask(message)
    assert len(log.lines) == len(messages)
    assert all(line.isprintable() for line in log.lines)
    return log.lines


async def json_line(message: Any, identity: Any = None) -> dict[str, Any]:
    (line,) = await lines_of("json", message, identity=identity)
    found: dict[str, Any] = orjson.loads(line)
    return found


async def test_what_a_line_says() -> None:
    message = request("add", 1, 2, id=7)
    sizes = len(orjson.dumps(message)), len('{"jsonrpc":"2.0","id":7,"result":3}')
    (text,) = await lines_of("text", message, identity="alice")
    pattern = rf"{TIME} 127\.0\.0\.1:\d+ tcp alice add id=7 code=0 ms=\d+\.\d{{3}} in={sizes[0]} out={sizes[1]}"
    assert re.fullmatch(pattern, text)
    line = await json_line(message)
    assert re.fullmatch(TIME, line.pop("time"))
    assert re.fullmatch(r"127\.0\.0\.1:\d+", line.pop("address"))
    assert 0 < line.pop("ms") < 20_000
    assert line == {
        **{"transport": "tcp", "identity": None, "method": "add", "id": 7, "code": 0},
        **{"request_bytes": sizes[0], "reply_bytes": sizes[1]},
    }


async def test_what_there_is_not_is_a_dash() -> None:
    with logged(ACCESS, alone=True) as log:
        async with memory_client(UsualServer(access_log="text")) as client:
            await client.notify.note(1)
            await client.add(1, 2)
    assert re.fullmatch(rf"{TIME} unix://memory memory - note id=- code=0 ms=\S+ in=\d+ out=-", log.lines[0])


HOSTILE = [
    *("a b", "a\nb code=0", "\x1b[2J", '"quoted"', "back\\slash", "\u202edesrever", "line\u2028end"),
    *("-", "", "id=1", "\x00"),
]


async def test_hostile_names_and_ids_are_one_quoted_word_of_a_line_and_values_of_json() -> None:
    messages = [request(name, id=name) for name in HOSTILE]
    for name, line in zip(HOSTILE, await lines_of("text", *messages, identity="alice"), strict=True):
        method, _, rest = line.partition("alice ")[2].partition(" id=")
        assert (orjson.loads(method), orjson.loads(rest.rpartition(" code=")[0])) == (name, name)
    for name, text in zip(HOSTILE, await lines_of("json", *messages), strict=True):
        line = orjson.loads(text)
        assert (line["method"], line["id"]) == (name, name)


@pytest.mark.parametrize(
    ("call_id", "shown"),
    [
        (str(2**62), 2**62),
        (str(2**70), str(2**70)),
        ("1" * 300, "1" * 200 + "…"),
        ("1.50", "1.50"),
        ("-1", -1),
        ("null", None),
        ('["a"]', '["a"]'),
    ],
)
async def test_ids_of_any_kind(call_id: str, shown: Any) -> None:
    line = await json_line(f'{{"jsonrpc":"2.0","id":{call_id},"method":"add","params":[1,2]}}')
    assert line["id"] == shown


@pytest.mark.parametrize("method", [None, 5, ["x"], {"a": 1}])
async def test_a_method_that_is_no_text_is_left_out(method: Any) -> None:
    message = {**request("", id=7), "method": method}
    assert (await json_line(message))["method"] is None
    (line,) = await lines_of("text", message, identity="alice")
    assert " alice - id=" in line


async def test_long_values_are_cut() -> None:
    line = await json_line(request("m" * 100_000, id="i" * 100_000), identity="n" * 100_000)
    assert [len(line[name]) for name in ("method", "id", "identity")] == [201, 201, 201]
    (text,) = await lines_of("text", request("\x1b" * 100_000, id="\x1b" * 100_000))
    assert len(text) < 3000


@dataclass
class User:
    name: str
    token: str = "correct-horse"


class Secret:
    def __repr__(self) -> str:
        return "Secret(token='correct-horse')"

    __str__ = __repr__


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        (User("bob"), "bob"),
        (Secret(), "Secret"),
        ({"token": "correct-horse"}, "dict"),
        ("a\ud800b", "a?b"),
    ],
)
async def test_of_an_identity_its_name_is_written_and_nothing_else(identity: object, name: str) -> None:
    assert (await json_line(request("add", 1, 2), identity))["identity"] == name
    (text,) = await lines_of("text", request("add", 1, 2), identity=identity)
    assert "correct-horse" not in text


async def test_lines_beyond_those_of_a_second_are_counted_and_the_count_is_written() -> None:
    text, json = [UsualServer(access_log=format, metrics=True) for format in ("text", "json")]

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
    of_text, _, of_json, _ = log.lines
    assert re.fullmatch(rf"{TIME} - dropped={dropped(text)}", of_text)
    assert orjson.loads(of_json)["dropped"] == dropped(json)


async def test_a_logger_with_a_higher_level_writes_nothing() -> None:
    with logged(ACCESS, alone=True) as log:
        async with memory_client(UsualServer(access_log="text")) as client:
            logging.getLogger(ACCESS).setLevel(logging.WARNING)
            await client.add(1, 2)
    assert not log.lines


async def test_slow_calls_of_a_method_are_limited_in_number() -> None:
    with logged("rpcstream.server") as log:
        async with raw_peers(UsualServer(log_slow_calls=1e-9)) as connect:
            peer = await connect()
            peer.send(*[request("slow\nforged line", id=number) for number in range(30)])
            await peer.receive_many(30)
    shown = r'slow call: "slow\\nforged line" took 0\.\d{3} s from its request to its reply \(log_slow_calls: 1e-09 s\)'
    lines = log.matching("^slow call")
    assert len(lines) == 10
    assert re.fullmatch(rf"{shown}; id 0, code -32601, from 127\.0\.0\.1:\d+", lines[0])
