"""The Java clients of examples/java with our server; and with servers that answer wrongly, late or not at all.

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
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rpcstream
from rpcstream import Server
from rpcstream.testing import serve_in_thread

from ..kit import logged
from .foreign import BRIEFLY, Foreign, compiled, needs_java, running
from .service import Service, check_calls, serving

EXAMPLES = Path(__file__).parents[2] / "examples"
JAVA = EXAMPLES / "java"
SOURCES = JAVA / "src" / "main" / "java"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(rpcstream.__file__).parents[1])}

pytestmark = [pytest.mark.tools, needs_java()]


def library() -> str | None:
    """The class path of jsonrpc2-base: $JSONRPC2_BASE_CLASSPATH, or the jars of pom.xml where Maven has put them."""
    if given_path := os.environ.get("JSONRPC2_BASE_CLASSPATH"):
        return given_path
    repository = Path.home() / ".m2" / "repository"
    jars = []
    for dependency in ElementTree.parse(JAVA / "pom.xml").iter("{http://maven.apache.org/POM/4.0.0}dependency"):
        group, name, version = (str(child.text) for child in dependency)
        jars.append(repository.joinpath(*group.split("."), name, version, f"{name}-{version}.jar"))
    return os.pathsep.join(map(str, jars)) if all(jar.exists() for jar in jars) else None


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


@pytest.fixture(scope="module", params=["PlainSimulation", "Jsonrpc2BaseSimulation"])
def simulation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the simulation, with each of the clients."""
    if request.param == "PlainSimulation":
        command: list[str] = request.getfixturevalue("plain")
        return command
    path = library()
    if path is None:
        pytest.skip("jsonrpc2-base is not in the local Maven repository, and $JSONRPC2_BASE_CLASSPATH is not set")
    out = tmp_path_factory.mktemp("jsonrpc2-base")
    source = SOURCES / "rpcstream" / "simulation" / f"{request.param}.java"
    compiled("-cp", path, "-d", out, "-sourcepath", SOURCES, source, folder=JAVA)
    return ["java", *BRIEFLY, "-cp", os.pathsep.join([str(out), path]), f"rpcstream.simulation.{request.param}"]


def run(command: list[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=50)


# -- the simulation ---------------------------------------------------------------------------------------------------


def test_a_simulation_measures_its_calls(simulation: list[str]) -> None:
    command = [sys.executable, "-m", "rpcstream.cli.serve", "-f", "controlFunctions", "-p", "0"]
    functions = EXAMPLES / "control_functions"
    with subprocess.Popen(command, cwd=functions, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip().removeprefix("jsonrpc2://")
            done = run(simulation, 400, address)
        finally:
            server.terminate()
        printed = server.stdout.read()
    assert done.returncode == 0, done.stderr
    times = r"mean \d+\.\d{4} ms, p50 \d+\.\d{4} ms, p99 \d+\.\d{4} ms\n"
    kinds = (rf"{kind} +400 calls, all right: {times}" for kind in ("control_flowrate", "ping"))
    assert re.fullmatch("".join(kinds), done.stdout.replace("\r\n", "\n"))
    assert "a simulation in Java begins\n" in printed


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ([[0.0, 0.0], [0.0], [21600]], None),  # right for all steps before six o'clock
        ([[0.0, 0.0], [0.0], [21601]], "IllegalStateException"),
        ([[0, 0.0], [0.0], [21600]], "IllegalStateException"),
        ("missing", "-32601"),
    ],
)
def test_a_simulation_ends_at_a_wrong_answer(simulation: list[str], answer: Any, complaint: str | None) -> None:
    server = Server()
    server.add(lambda: "pong", name="ping")
    server.add(lambda message: None, name="print")
    if answer != "missing":
        server.add(lambda *parameters: answer, name="control_flowrate")
    with serve_in_thread(server) as address:
        done = run(simulation, 300, address)
    assert (done.returncode, (complaint or "") in done.stderr) == (int(complaint is not None), True)


def test_a_simulation_says_what_it_takes(plain: list[str]) -> None:
    done = run(plain, 1, ":2102")
    assert (done.returncode, done.stdout) == (2, "")
    assert "[COUNT [HOST:PORT]]" in done.stderr


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


def test_what_is_sent(probe: Probe) -> None:
    replies = [b'{"jsonrpc":"2.0","id":%d,"result":null}\n' % number for number in (1, 2, 3)]
    with fake_server(*replies) as (port, received):
        probe.connect(port)
        for method, params in (('a"b', []), ("x", [1, [1.5, "\r\n\x7f\xe9\U0001f600"]]), ("x", {"a": {}})):
            assert probe.call(method, params) == {"result": None}
        probe("close")
    assert received[:-1] == [
        rb'{"jsonrpc":"2.0","method":"a\"b","params":[],"id":1}' + b"\n",
        '{"jsonrpc":"2.0","method":"x","params":[1,[1.5,"\\r\\n\x7f\xe9\U0001f600"]],"id":2}\n'.encode(),
        b'{"jsonrpc":"2.0","method":"x","params":{"a":{}},"id":3}\n',
    ]


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


# -- arrays and bytes, in binary frames and as text -------------------------------------------------------------------


@contextmanager
def traced_server(**options: Any) -> Iterator[tuple[Service, list[str]]]:
    """A server with a trace; and the sizes of the payloads in it, for each frame."""
    with logged("rpcstream.wire", logging.INFO) as seen, serving(debug=True, **options) as service:

        @service.server
        def sum(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[Any]:
            return [[str(each.dtype), list(each.shape), float(each.sum())] for each in (a, b, c)]

        sizes: list[str] = []
        yield service, sizes
        sizes += re.findall(r"payloads of ([\d, ]+) bytes", "\n".join(seen.lines))


def test_arrays_travel_in_frames_once_the_server_has_said_that_it_takes_them(probe: Probe) -> None:
    with traced_server() as (service, sizes):
        probe.connect(service.port)
        as_text = probe("echo array", 1000)
        assert as_text == {"result": ["ndarray", "<f8", [2, 500], True]}
        assert probe("offer frames") == {"result": True}
        assert probe("echo array", 1000) == as_text
        assert probe("echo array", 2) == {"result": ["ndarray", "<f8", [2, 1], True]}
        assert probe("array sum") == {
            "result": [["float32", [2], 3.5], ["int64", [1, 2], 7.0], ["int32", [1], 5.0]],
        }
        probe("close")
    assert sizes == ["8000", "8000"]


@pytest.mark.parametrize("binary", [True, False])
def test_bytes_of_any_size_come_back(probe: Probe, binary: bool) -> None:
    with traced_server(binary=binary) as (service, sizes):
        probe.connect(service.port)
        assert probe("offer frames") == {"result": binary}
        for sent in ([4096, 4097, 4103, 5000], [4095], [10_000, 0, 7, 9999], [3_000_001], [4096] * 70):
            assert probe("echo bytes", sent) == {"result": True}
        probe("close")
    # Our server answers in text where there are more payloads than a frame takes; this client sends the rest as text.
    frames = ["4096, 4097, 4103, 5000"] * 2 + ["10000, 9999"] * 2 + ["3000001"] * 2 + [", ".join(["4096"] * 64)]
    assert sizes == (frames if binary else [])


def test_the_bytes_of_a_frame(probe: Probe) -> None:
    """As the wire page has them: the first payload begins at a multiple of 8, zeros stand between payloads only."""
    with fake_server(TAKES_FRAMES) as (port, received):
        probe.connect(port, 300)
        assert probe("offer frames") == {"result": True}
        probe.raises("java.net.SocketTimeoutException", "echo bytes", [4097, 5000])
    header, _, rest = received[1].partition(b"\n")
    json_size, *sizes = map(int, header[1:].split())
    assert sizes == [4097, 5000]
    assert (len(header) + 1 + json_size) % 8 == 0
    assert json.loads(rest[:json_size])["params"]["value"][1] == {"$type": "bytes", "data": {"$bin": 1}}
    body = rest[json_size:]
    assert body[4097:4104] == bytes(7)
    assert len(body) == 4104 + 5000


# -- its JSON ---------------------------------------------------------------------------------------------------------

HARD = [
    "".join(map(chr, range(0x20))),
    '"\\/\b\f\n\r\t \x7f\x80\x85\xa0\u2028\u2029\ufeff\ufffd\uffff\U00010000\U0010ffff\ud7ff\ue000\\u0041',
    [0, -1, 2**31, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 10**300],
    [0.0, -0.0, 0.1, 1e16, 1e22, 1e23, 1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, 2**53 + 2.0],
    {"": {"": []}, "\x00": [None, True, {}], "\U0001f600": 4, "$type": "unknown"},
]

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
@given(value=VALUES | st.sampled_from(HARD))
def test_any_value_comes_back_from_the_server(echoing: Probe, value: Any) -> None:
    assert same(echoing.call("echo", [value]), {"result": value})


def test_what_is_read(probe: Probe) -> None:
    for text, kind, value in [
        (" \t\r\n1 ", "Long", 1),
        ("-0", "Long", 0),
        ("9223372036854775808", "BigInteger", 2**63),
        ("1E2", "Double", 100.0),
        ("1e-999", "Double", 0.0),
        ("null", "null", None),
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
