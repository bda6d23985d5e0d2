"""The plain client of examples/java with our server; and with servers that answer wrongly, late or not at all.

`java/Probe.java` holds the plain client and does what these tests say.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Server
from rpcstream.testing import serve_in_thread

from ..kit import logged
from .foreign import BRIEFLY, Foreign, compiled, needs_java, running
from .service import Service, check_calls, serving

JAVA = Path(__file__).parents[2] / "examples" / "java"

pytestmark = [pytest.mark.tools, needs_java()]


def command_of_the_readme(program: str, out: Path) -> list[str]:
    found = re.search(rf"^{program} .*$", (JAVA / "README.md").read_text(), re.MULTILINE)
    assert found is not None
    return [str(out) if word == "out" else word for word in shlex.split(found[0])]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the simulation with the plain client, compiled as the README says."""
    out = tmp_path_factory.mktemp("java") / "out"
    compiled(*command_of_the_readme("javac", out)[1:], folder=JAVA)
    program, *words = command_of_the_readme("java", out)
    return [program, *BRIEFLY, *words]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ([[0.0, 0.0], [0.0], [21600]], ""),  # right for all steps before six o'clock
        ([[0.0, 0.0], [0.0], [21601]], "IllegalStateException"),
        ([[0, 0.0], [0.0], [21600]], "IllegalStateException"),
        ("missing", "-32601"),
    ],
)
def test_a_simulation_ends_at_a_wrong_answer(plain: list[str], answer: Any, complaint: str) -> None:
    """That it is content with the functions of the example is in `examples/java/run.sh`."""
    server = Server()
    server.add(lambda: "pong", name="ping")
    server.add(lambda message: None, name="print")
    if answer != "missing":
        server.add(lambda *parameters: answer, name="control_flowrate")
    with serve_in_thread(server) as address:
        done = subprocess.run([*plain, "300", address], capture_output=True, text=True, timeout=50)
    assert (done.returncode, complaint in done.stderr) == (int(complaint != ""), True)


# -- the plain client -------------------------------------------------------------------------------------------------


class Probe(Foreign):
    """The program with it; a call gives what it prints."""

    __call__ = Foreign.tell

    def connect(self, port: int, milliseconds: int = 20_000) -> None:
        assert self("connect", port, milliseconds) == {"result": None}

    def call(self, method: str, params: Any) -> Any:
        return self("call", method, params)

    def raises(self, exception: str, *words: Any) -> str:
        outcome = self(*words)
        assert outcome.get("raised") == exception, outcome
        return str(outcome["message"])

    def is_closed(self) -> bool:
        return self.raises("java.net.SocketException", "call", "x") == "the connection is closed"


@pytest.fixture(scope="module")
def probe(plain: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    out = plain[plain.index("-cp") + 1]
    folder = tmp_path_factory.mktemp("probe")
    compiled("-cp", out, "-d", folder, Path(__file__).parent / "java" / "Probe.java", folder=JAVA)
    with running("java", *BRIEFLY, "-cp", os.pathsep.join([out, str(folder)]), "Probe", program=Probe) as program:
        yield program


@contextmanager
def fake_server(*replies: bytes, closes: bool = False) -> Iterator[tuple[int, list[bytes]]]:
    """A server for one connection: for each line a reply. Then it closes, or reads until the client does.

    Gives the port, and what is received: the lines, and once the block is left, the rest.
    """
    received: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as lines:
            for reply in replies:
                received.append(lines.readline())
                lines.write(reply)
                lines.flush()
            if not closes:
                received.append(lines.read())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1], received
        finally:
            thread.join(20)


def test_calls_and_errors_on_one_connection(probe: Probe, service: Service) -> None:
    probe.connect(service.port)
    check_calls(probe.call)
    assert probe("echo nested", 126) == {"result": True}  # with the request around it as deep as may be
    assert "128" in probe.raises("java.lang.IllegalArgumentException", "echo nested", 127)
    assert probe("echo in threads", 4, 200) == {"result": 800}
    assert service.connections == 1


TAKES_FRAMES = b'{"jsonrpc":"2.0","id":1,"result":{"binary":1,"more":[]}}\n'


def framed(result: bytes) -> bytes:
    text = b'{"jsonrpc":"2.0","id":2,"result":%b}\n' % result
    return b"@%d 1\n%bx" % (len(text), text)


@pytest.mark.parametrize(
    "reply",
    [
        b'{"jsonrpc":"2.0","id":3,"result":1}\n',
        b'{"jsonrpc":"2.0","id":"2","result":1}\n',
        b'{"jsonrpc":"2.0","id":null,"result":1}\n',
        b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"m"}}\n',
        b'{"jsonrpc":"2.0","id":2}\n',
        b'{"jsonrpc":"2.0","id":2,"result":1,"error":null}\n',
        b'{"id":2,"error":"Internal error"}\n',
        b'{"id":2,"error":{"code":1}}\n',
        b'{"jsonrpc":"2.0","method":"m","id":2}\n',
        b"[]\n",
        b"\n",
        b'{"jsonrpc":"2.0","id":2,"result":1e999}\n',
        b"@2 0\n{}",
        b"@2\n{}",
        b"@2 8 x\n{}",
        b"@999999999999 1\n",
        b"@2 67108863\n",
        framed(b"[]"),
        framed(b'{"$bin":true}'),
        framed(b'{"$bin":1}'),
        framed(b'[{"$bin":0},{"$bin":0}]'),
    ],
)
def test_what_is_no_reply_to_the_call_ends_the_connection(probe: Probe, reply: bytes) -> None:
    right = b'{"jsonrpc":"2.0","id":2,"result":1}\n'
    with fake_server(TAKES_FRAMES, reply + right) as (port, received):
        probe.connect(port)
        assert probe("offer frames") == {"result": True}
        probe.raises("java.net.ProtocolException", "call", "x")
        assert probe.is_closed()
    assert b"".join(received[2:]) == b""


def test_notifications_before_the_reply_and_an_error_without_an_id(probe: Probe) -> None:
    replies = (
        b'{"jsonrpc":"2.0","method":"tick","params":[1]}\n' * 3 + b' {"result": 5 ,"id": 1,"jsonrpc":"2.0"}\r\n',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}\n',
    )
    with fake_server(*replies) as (port, _):
        probe.connect(port)
        assert probe("call", "x") == {"result": 5}
        assert probe("call", "x") == {"error": [-32700, "Parse error", None]}
        probe("close")


@pytest.mark.parametrize("part", [b"", b'{"jsonrpc":"2.0","id":1,"res', b'{"jsonrpc":"2.0","method":"tick"}\n'])
def test_a_server_that_does_not_answer_is_waited_for_so_long(probe: Probe, part: bytes) -> None:
    with fake_server(part) as (port, received):
        probe.connect(port, 300)
        assert probe.raises("java.net.SocketTimeoutException", "call", "x") == "no reply to x in 300 ms"
        assert probe.is_closed()
    assert received[1:] == [b""]


def test_a_connection_that_ends_or_never_begins(probe: Probe) -> None:
    with fake_server(b'{"jsonrpc":"2.0","id":1,"result":1}', closes=True) as (port, _):
        probe.connect(port)
        assert probe.raises("java.io.EOFException", "call", "x").endswith("has not answered x")
    with fake_server(b"") as (port, received):
        probe.connect(port)
        probe.raises("java.net.SocketException", "close while waiting")
    assert received[1:] == [b""]
    probe.raises("java.net.ConnectException", "connect", port, 1000)
    probe.raises("java.lang.IllegalArgumentException", "connect", port, 0)


@pytest.mark.parametrize("binary", [True, False])
def test_arrays_and_bytes_travel_in_frames_where_the_server_takes_them(probe: Probe, binary: bool) -> None:
    with logged("rpcstream.wire", logging.INFO) as seen, serving(debug=True, binary=binary) as service:

        @service.server
        def sum(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[Any]:
            return [[str(each.dtype), list(each.shape), float(each.sum())] for each in (a, b, c)]

        probe.connect(service.port)
        assert probe("echo array", 1000) == {"result": ["ndarray", "<f8", [2, 500], True]}  # not offered yet
        assert probe("offer frames") == {"result": binary}
        for size in (2, 1000):
            assert probe("echo array", size) == {"result": ["ndarray", "<f8", [2, size // 2], True]}
        assert probe("array sum") == {"result": [["float32", [2], 3.5], ["int64", [1, 2], 7.0], ["int32", [1], 5.0]]}
        for sent in ([4096, 4097, 4103, 5000], [4095], [10_000, 0, 7, 9999], [3_000_001], [4096] * 70):
            assert probe("echo bytes", sent) == {"result": True}
        probe("close")
    sizes = re.findall(r"payloads of ([\d, ]+) bytes", "\n".join(seen.lines))
    # More payloads than a frame takes: the rest is text, so long that the log does not show the sizes behind it.
    both = ["8000", "4096, 4097, 4103, 5000", "10000, 9999", "3000001"]
    assert sizes == ([each for each in both for _ in range(2)] if binary else [])


# -- its JSON ---------------------------------------------------------------------------------------------------------

NO_JSON = r"""
[1]] [ ] { } [1 [1, [1,] [,1] {"a" {"a": {"a":1 {"a":1, {"a":1,} {1:2} {a:1} {"a"1} {"a":1"b":2} nul nulll True NaN
Infinity -Infinity - +1 01 -01 1. .5 1.e1 1e 1e+ 0x10 1_0 1L 1d " "a "\ "\" "\x" "\u" "\u12" "\u123g" "\u+123" 'a'
"\ud83d" "\ude00" "\ud83d\ud83d" "\ud83dx" {"\ud83d":1} 1e999 -1e999
"""

#: Values of the probe that have no form in JSON, by name.
ODD = "nan|infinity|float nan|nan in an array|high half|high half inside|low half|number as key|itself|object|atomic"


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: 1 is neither 1.0 nor true, 0.0 is not -0.0."""
    return json.dumps(one) == json.dumps(other)


@pytest.fixture(scope="module")
def echoing(probe: Probe) -> Iterator[Probe]:
    with serving() as service:
        probe.connect(service.port)
        yield probe


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=50, deadline=None)
@given(value=VALUES)
def test_any_value_comes_back_from_the_server(echoing: Probe, value: Any) -> None:
    assert same(echoing.call("echo", [value]), {"result": value})


def test_what_is_read(probe: Probe) -> None:
    for text, kind, value in [
        (" \t\r\n1 ", "Long", 1),
        ("9223372036854775808", "BigInteger", 2**63),
        ("1E2", "Double", 100.0),
        ("1e-999", "Double", 0.0),
        (r'"\u00e4\u20AC\ud83D\uDE00\/\""', "String", '\xe4\u20ac\U0001f600/"'),
        ('{"a": 1, "a": 2}', "LinkedHashMap", {"a": 2}),
        ("[" * 125 + "]" * 125, "ArrayList", json.loads("[" * 125 + "]" * 125)),
    ]:
        assert same(probe("read", text), {"result": [kind, value]}), text


def test_what_is_no_json_is_refused(probe: Probe) -> None:
    others = ["", " ", "\x00", "1 2", "[1 2]", '"\n"', '"\x00"', "\u0661", "1\u0661", "\ufeff1", "\xa01", "// x\n1"]
    nested = ["9" * 1001, "[" * 129 + "]" * 129, '{"a":' * 129 + "1" + "}" * 129, "[" * 100_000]
    for text in [*NO_JSON.split(), *others, *nested]:
        assert probe("read", text).get("raised") == "java.lang.IllegalArgumentException", text[:30]


def test_what_is_written_and_what_is_not(probe: Probe) -> None:
    for name, text in [
        ("arrays", '[[1.0,0.1,1.0E300],[0.1],[-9223372036854775808],[],[-1],[true],["x",null]]'),
        ("numbers", "[1,2,3,4,1000000000000000000000000000000,-0.0,4.9E-324,1E+3,3.4028235E38]"),
        ("others", '["x",[1,2],null]'),
    ]:
        assert probe("write", name) == {"result": text}
    for name in ODD.split("|"):
        probe.raises("java.lang.IllegalArgumentException", "write", name)
