"""Lines of the access log and of slow calls: their fields, hostile values, and how many there may be."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from rpcstream.observe.call_log import MAX_LINES, AccessLog, AccessLogFormat, SlowCallLog, name_of
from rpcstream.observe.calls import EndedCall
from rpcstream.observe.limited_log import LimitedLog
from rpcstream.text import get_logger

CALL = EndedCall(
    address="127.0.0.1:5000",
    identity="alice",
    transport="tcp",
    method="math.sum",
    call_id=7,
    code=0,
    seconds=0.0015,
    request_size=56,
    reply_size=38,
)


class Written(logging.Handler):
    """Keeps the lines of a logger, as a handler of a program would write them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.logger = get_logger(name)
        self.logger.handlers, self.logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make(format: AccessLogFormat, clock: Clock | None = None) -> tuple[AccessLog, Written]:
    written = Written("rpcstream.test.access")
    return AccessLog(format, logger=written.logger, clock=clock or Clock(), now=lambda: 1_700_000_000.25), written


def text_line(**changes: Any) -> str:
    log, written = make("text")
    log(CALL._replace(**changes))
    (line,) = written.lines
    return line


def json_line(**changes: Any) -> dict[str, Any]:
    log, written = make("json")
    log(CALL._replace(**changes))
    (line,) = written.lines
    assert "\n" not in line
    found: dict[str, Any] = orjson.loads(line)
    return found


def test_a_line_of_text() -> None:
    assert text_line() == "2023-11-14T22:13:20.250Z 127.0.0.1:5000 tcp alice math.sum id=7 code=0 ms=1.500 in=56 out=38"


def test_what_is_not_known_is_a_dash() -> None:
    line = text_line(address="", identity=None, transport="", call_id=None, request_size=None, reply_size=None)
    assert line == "2023-11-14T22:13:20.250Z - - - math.sum id=- code=0 ms=1.500 in=- out=-"


def test_a_line_of_json() -> None:
    assert json_line() == {
        "time": "2023-11-14T22:13:20.250Z",
        "address": "127.0.0.1:5000",
        "transport": "tcp",
        "identity": "alice",
        "method": "math.sum",
        "id": 7,
        "code": 0,
        "ms": 1.5,
        "request_bytes": 56,
        "reply_bytes": 38,
    }


HOSTILE = [
    "a b",
    "a\nb code=0",
    "\x1b[2J",
    '"quoted"',
    "back\\slash",
    "\u202edesrever",
    "line\u2028end",
    "-",
    "",
    "id=1",
    "\x00",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_and_ids_are_one_quoted_word_of_a_line(name: str) -> None:
    line = text_line(method=name, call_id=name)
    assert line.isprintable()
    behind = line.partition("alice ")[2]
    method, _, rest = behind.partition(" id=")
    shown = orjson.loads(method)
    assert shown == name
    assert orjson.loads(rest.rpartition(" code=")[0]) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_and_ids_are_values_of_json(name: str) -> None:
    line = json_line(method=name, call_id=name)
    assert (line["method"], line["id"]) == (name, name)


@pytest.mark.parametrize(
    ("call_id", "shown"),
    [
        (2**62, 2**62),
        (2**70, str(2**70)),
        pytest.param(10**5000, "(int)", id="huge"),
        (orjson.Fragment(b"1.50"), "1.50"),
        (-1, -1),
        (None, None),
        (["a"], '["a"]'),
        (object(), "(object)"),
    ],
)
def test_ids_of_any_kind(call_id: Any, shown: Any) -> None:
    assert json_line(call_id=call_id)["id"] == shown


@pytest.mark.parametrize("method", [None, 5, ["x"], {"a": 1}])
def test_a_method_that_is_no_text_is_left_out(method: Any) -> None:
    assert json_line(method=method)["method"] is None
    assert " alice - id=7" in text_line(method=method)


def test_long_values_are_cut() -> None:
    line = json_line(method="m" * 1_000_000, call_id="i" * 1_000_000, identity="n" * 1_000_000)
    assert [len(line[name]) for name in ("method", "id", "identity")] == [201, 201, 201]
    assert len(text_line(method="\x1b" * 1_000_000, call_id="\x1b" * 1_000_000)) < 3000


def test_a_surrogate_that_stands_alone_is_replaced() -> None:
    assert json_line(identity="a\ud800b")["identity"] == "a?b"


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
        ("alice", "alice"),
        (User("bob"), "bob"),
        (Secret(), "Secret"),
        ({"token": "correct-horse"}, "dict"),
        (None, None),
    ],
)
def test_of_an_identity_its_name_is_written_and_nothing_else(identity: object, name: str | None) -> None:
    assert name_of(identity) == name
    assert json_line(identity=identity)["identity"] == name
    assert "correct-horse" not in text_line(identity=identity)


@pytest.mark.parametrize("format", ["text", "json"])
def test_lines_beyond_those_of_a_second_are_counted_and_the_count_is_written(format: AccessLogFormat) -> None:
    clock = Clock()
    log, written = make(format, clock)
    for _ in range(MAX_LINES + 30):
        log(CALL)
    assert (len(written.lines), log.dropped) == (MAX_LINES, 30)
    clock.now += 1
    log(CALL)
    dropped, line = written.lines[MAX_LINES:]
    assert ("dropped=30" in dropped) if format == "text" else orjson.loads(dropped)["dropped"] == 30
    assert "math.sum" in line


def test_a_logger_with_a_higher_level_writes_nothing() -> None:
    log, written = make("text")
    written.logger.setLevel(logging.WARNING)
    try:
        log(CALL)
    finally:
        written.logger.setLevel(logging.NOTSET)
    assert written.lines == []
    assert log.dropped == 0


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="access_log must be 'text', 'json' or None, got 'xml'"):
        AccessLog("xml")  # type: ignore[arg-type]


def test_slow_calls_of_a_method_are_limited_in_number() -> None:
    written = Written("rpcstream.test.slow")
    log = SlowCallLog(0.5, LimitedLog(written.logger))
    for number in range(100):
        log(CALL._replace(seconds=2.0, call_id=number, method="slow\nforged line"))
    assert len(written.lines) == 10
    assert written.lines[0] == (
        'slow call: "slow\\nforged line" took 2.000 s from its request to its reply (log_slow_calls: 0.5 s); id 0, '
        "code 0, from 127.0.0.1:5000"
    )
