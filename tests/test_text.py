"""Text from a peer: control characters are escaped where it is shown."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rpcstream
from rpcstream.text import get_logger, visible
from rpcstream.wire.http_messages import problem

NASTY = "x\x1b[2J\x9b2J\x7f\r\u202e\u2066\u200f\u2028\udc80"
SHOWN = r"x\u001b[2J\u009b2J\u007f\u000d\u202e\u2066\u200f\u2028\udc80"

CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]


def test_controls_are_written_as_in_json() -> None:
    assert visible(NASTY) == SHOWN
    for code in (*CONTROLS, 0xD800, 0xDFFF):
        assert visible(f"a{chr(code)}b") == f"a\\u{code:04x}b"
    assert visible("a\nb\tc\rd", keep="\n\t") == "a\nb\tc\\u000dd"
    assert visible("äöü 漢字 😀 \u200d") == "äöü 漢字 😀 \u200d"


@given(st.recursive(st.text(), st.lists))
def test_json_stays_json_and_means_the_same(value: object) -> None:
    shown = visible(json.dumps(value, ensure_ascii=False))
    assert not set(map(ord, shown)) & {*CONTROLS}
    shown.encode()
    assert json.loads(shown) == value


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def logged() -> Iterator[Lines]:
    lines = Lines()
    logger = get_logger("rpcstream.server")
    logger.addHandler(lines)
    yield lines
    logger.removeHandler(lines)


def test_a_log_obeys_nothing(logged: Lines) -> None:
    log = get_logger("rpcstream.server")
    log.warning("closed the connection from %s: %s", NASTY, ValueError("\x1b]0;title\x07\nERROR forged"))
    log.warning("plain %s", "ä\t1")
    log.warning("a template\nof two lines: %s", "\x1b")
    assert logged.lines == [
        f"WARNING closed the connection from {SHOWN}: \\u001b]0;title\\u0007\\u000aERROR forged",
        "WARNING plain ä\t1",
        "WARNING a template\nof two lines: \\u001b",
    ]


def test_a_traceback_in_a_log_obeys_nothing(logged: Lines) -> None:
    try:
        raise ValueError(NASTY)
    except ValueError:
        get_logger("rpcstream.server").exception("failed")
    (text,) = logged.lines
    assert text.endswith(f"ValueError: {SHOWN}")
    assert text.splitlines()[1].startswith("Traceback")


def test_a_plain_record_is_not_changed() -> None:
    record = logging.LogRecord("x", logging.INFO, "p", 1, "plain %s", ("text",), None)
    (make_visible,) = get_logger("rpcstream.server").filters
    assert make_visible(record)  # type: ignore[operator]
    assert (record.msg, record.args, record.exc_text) == ("plain %s", ("text",), None)


def test_every_logger_of_the_package_has_that() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(rpcstream.__file__).parent.rglob("*.py"))
    names = sorted(set(re.findall(r'(?:getLogger|get_logger)\("(rpcstream\.\w+)"\)', sources)))
    assert len(names) > 4
    pytest.importorskip("nats")
    program = (
        "import logging, sys\n"
        "import rpcstream.supervisor.run, rpcstream.supervisor.supervisor, rpcstream.nats.service\n"
        "from rpcstream import Server, Client, AsyncClient, Hub\n"
        f"print([name for name in {names} if not logging.getLogger(name).filters])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_page_that_quotes_what_it_was_sent_obeys_nothing() -> None:
    assert problem(404, f"there is no {NASTY}").text == f"there is no {SHOWN}\n"
    assert problem(500, "a traceback\n\tin lines").text == "a traceback\n\tin lines\n"
