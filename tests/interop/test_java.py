"""The Java clients of examples/java with our server; and with servers that answer wrongly, late or not at all."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
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
from rpcstream import RpcError, Server
from rpcstream.testing import serve_in_thread

EXAMPLES = Path(__file__).parents[2] / "examples"
JAVA = EXAMPLES / "java"
SOURCES = JAVA / "src" / "main" / "java"
#: Options of a JVM that does little, which takes less to start so.
BRIEFLY = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(rpcstream.__file__).parents[1])}


def jdk() -> int:
    """The version of the JDK; 0 where there is none."""
    if shutil.which("javac") is None or shutil.which("java") is None:
        return 0
    done = subprocess.run(["javac", "-version"], capture_output=True, text=True, timeout=50)
    found = re.search(r"^javac (\d+)", done.stdout, re.MULTILINE)
    return int(found[1]) if found else 0


pytestmark = [pytest.mark.tools, pytest.mark.skipif(jdk() < 17, reason="there is no JDK of at least 17 (javac)")]


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


def compiled(*arguments: object) -> None:
    options = [*(f"-J{option}" for option in BRIEFLY), "-encoding", "UTF-8", "-Xlint:all", "-Werror"]
    command = ["javac", *options, *map(str, arguments)]
    done = subprocess.run(command, cwd=JAVA, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr


def command_of_the_readme(program: str) -> list[str]:
    found = re.search(rf"^{program} .*$", (JAVA / "README.md").read_text(), re.MULTILINE)
    assert found is not None
    return shlex.split(found[0])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the simulation with the plain client, compiled as the README says."""
    out = tmp_path_factory.mktemp("java") / "out"
    compiled(*(str(out) if word == "out" else word for word in command_of_the_readme("javac")[1:]))
    program, *words = command_of_the_readme("java")
    return [program, *BRIEFLY, *(str(out) if word == "out" else word for word in words)]


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
    compiled("-cp", path, "-d", out, "-sourcepath", SOURCES, source)
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
    assert server.returncode == 0


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ([[0.0, 0.0], [0.0], [21600]], None),  # right for all steps before six o'clock
        ([[0.0, 0.0], [0.5], [21600]], "IllegalStateException"),
        ([[0.0, 0.0], [0.0], [21601]], "IllegalStateException"),
        ([[0, 0.0], [0.0], [21600]], "IllegalStateException"),
        ([[0.0, 0.0], [0.0], [21600], []], "IllegalStateException"),
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
    if complaint is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 1
        assert complaint in done.stderr


@pytest.mark.parametrize("arguments", ["0", "many", "1 2102", "1 :2102", "1 localhost:x", "1 localhost:0", "1 h:1 2"])
def test_a_simulation_says_what_it_takes(plain: list[str], arguments: str) -> None:
    done = run(plain, *arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert "[COUNT [HOST:PORT]]" in done.stderr


# -- the plain client -------------------------------------------------------------------------------------------------

#: Does what a test says, a JSON array a line, and prints what came of it.
PROBE = r"""
import java.io.*;
import java.math.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import rpcstream.client.*;

public class Probe {
    private static RpcClient client;

    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> outcome = new HashMap<>();
            try {
                outcome.put("result", obey((List<?>) Json.read(line)));
            } catch (RpcException error) {
                outcome.put("error", Arrays.asList(error.code(), error.getMessage(), error.data()));
            } catch (Exception error) {
                outcome.put("raised", error.getClass().getName());
                outcome.put("message", error.getMessage());
            }
            out.print(Json.write(outcome) + "\n");
            out.flush();
        }
    }

    private static Object obey(List<?> words) throws Exception {
        Object second = words.size() > 1 ? words.get(1) : null;
        Object third = words.size() > 2 ? words.get(2) : null;
        switch ((String) words.get(0)) {
            case "connect":
                if (client != null) {
                    client.close();
                }
                client = RpcClient.connect("127.0.0.1", ((Long) second).intValue(), Duration.ofMillis((Long) third));
                return null;
            case "call":
                return third == null ? client.call((String) second)
                        : third instanceof List<?> list ? client.call((String) second, list)
                        : client.call((String) second, named(third));
            case "close":
                client.close();
                return null;
            case "read":
                Object value = Json.read((String) second);
                return Arrays.asList(value == null ? "null" : value.getClass().getSimpleName(), value);
            case "write":
                return Json.write(odd((String) second));
            case "offer frames":
                return client.offerFrames();
            case "echo array":
                double[] values = new Random(0).doubles((Long) second).toArray();
                Tagged array = Tagged.of(client.call("echo", List.of(Tagged.array(values, 2, values.length / 2))));
                return Arrays.asList(array.type(), array.member("dtype"), array.shape(),
                        Arrays.equals(array.doubles(), values));
            case "echo bytes":
                return echoBytes((List<?>) second);
            case "array sum":
                return client.call("sum", List.of(
                        Tagged.array(new float[] {1.5f, 2}), Tagged.array(new long[] {3, 4}, 1, 2),
                        Tagged.array(new int[] {5})));
            case "echo nested":
                return client.call("echo", List.of(nested(((Long) second).intValue()))) != null;
            case "echo in threads":
                return echoInThreads(((Long) second).intValue(), ((Long) third).intValue());
            case "close while waiting":
                new Timer(true).schedule(new TimerTask() {
                    @Override
                    public void run() {
                        try {
                            client.close();
                        } catch (IOException error) {
                            throw new UncheckedIOException(error);
                        }
                    }
                }, 200);
                return client.call("wait");
            default:
                throw new UnsupportedOperationException();
        }
    }

    /** Random bytes of these numbers, sent and compared: all right? */
    private static Object echoBytes(List<?> sizes) throws Exception {
        List<Tagged> sent = new ArrayList<>();
        for (Object size : sizes) {
            byte[] bytes = new byte[((Long) size).intValue()];
            new Random((Long) size).nextBytes(bytes);
            sent.add(Tagged.bytes(bytes));
        }
        List<?> back = (List<?>) client.call("echo", Map.of("value", sent));
        boolean same = back.size() == sent.size();
        for (int each = 0; same && each < sent.size(); each++) {
            same = Arrays.equals(Tagged.of(back.get(each)).bytes(), sent.get(each).bytes());
        }
        return same;
    }

    @SuppressWarnings("unchecked")
    private static Map<String, ?> named(Object params) {
        return (Map<String, ?>) params;
    }

    private static Object nested(int depth) {
        Object value = List.of();
        for (int each = 1; each < depth; each++) {
            value = List.of(value);
        }
        return value;
    }

    private static long echoInThreads(int threads, int calls) throws InterruptedException {
        var right = new java.util.concurrent.atomic.AtomicLong();
        List<Thread> all = new ArrayList<>();
        for (long thread = 0; thread < threads; thread++) {
            long first = thread * calls;
            all.add(new Thread(() -> {
                try {
                    for (long each = first; each < first + calls; each++) {
                        right.addAndGet(client.call("echo", List.of(each)).equals(each) ? 1 : 0);
                    }
                } catch (IOException | RpcException error) {
                    error.printStackTrace();
                }
            }));
        }
        for (Thread each : all) {
            each.start();
        }
        for (Thread each : all) {
            each.join();
        }
        return right.get();
    }

    private static Object odd(String name) {
        List<Object> itself = new ArrayList<>();
        itself.add(itself);
        return switch (name) {
            case "nan" -> Double.NaN;
            case "infinity" -> List.of(Double.NEGATIVE_INFINITY);
            case "float nan" -> Map.of("x", Float.NaN);
            case "nan in an array" -> new double[] {1, Double.NaN};
            case "high half" -> "a\ud83d";
            case "high half inside" -> "a\ud83da";
            case "low half" -> Map.of("\ude00", 1);
            case "number as key" -> Map.of(1, 1);
            case "itself" -> itself;
            case "object" -> new Object();
            case "atomic" -> new java.util.concurrent.atomic.AtomicInteger();
            case "arrays" -> new Object[] {
                new double[] {1, 0.1, 1e300}, new float[] {0.1f}, new long[] {Long.MIN_VALUE}, new int[0],
                new byte[] {-1}, new boolean[] {true}, new String[] {"x", null}
            };
            case "numbers" -> Arrays.asList((byte) 1, (short) 2, 3, 4L, BigInteger.TEN.pow(30), -0.0, Double.MIN_VALUE,
                    new BigDecimal("1E+3"), Float.MAX_VALUE);
            case "others" -> Arrays.asList(new StringBuilder("x"), new TreeSet<>(Set.of(2, 1)), null);
            default -> throw new NoSuchElementException(name);
        };
    }
}
"""


class Probe:
    """The program above; a call gives what it prints."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __call__(self, *words: Any, ascii_only: bool = True) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words, ensure_ascii=ascii_only).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def connect(self, port: int, milliseconds: int = 20_000) -> None:
        assert self("connect", port, milliseconds) == {"result": None}

    def raises(self, exception: str, *words: Any) -> str:
        outcome = self(*words)
        assert outcome.get("raised") == exception, outcome
        return str(outcome["message"])


@pytest.fixture(scope="module")
def probe(plain: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    out = plain[plain.index("-cp") + 1]
    folder = tmp_path_factory.mktemp("probe")
    (folder / "Probe.java").write_text(PROBE)
    compiled("-cp", out, "-d", folder, folder / "Probe.java")
    command = ["java", *BRIEFLY, "-cp", os.pathsep.join([out, str(folder)]), "Probe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Probe(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = Server()

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def refuse(data: Any) -> None:
        raise RpcError(4711, "out of \u00e4nything \U0001f600", data)

    with serve_in_thread(server) as address:
        yield int(address.rpartition(":")[2])


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


def test_parameters_go_by_position_and_by_name(probe: Probe, port: int) -> None:
    probe.connect(port)
    assert probe("call", "add", [1, 2]) == {"result": 3}
    assert probe("call", "add", {"b": 2, "a": 1}) == {"result": 3}
    assert probe("call", "rpc.ping") == {"result": "pong"}


def test_an_error_has_code_message_and_data_and_the_connection_stays(probe: Probe, port: int) -> None:
    probe.connect(port)
    data = {"text": "\n\u2028\U0001f600", "list": [1, None, 2.5]}
    assert probe("call", "refuse", [data]) == {"error": [4711, "out of \u00e4nything \U0001f600", data]}
    assert probe("call", "refuse", [None]) == {"error": [4711, "out of \u00e4nything \U0001f600", None]}
    code, _, data = probe("call", "add", ["1", 2])["error"]
    assert code == -32602
    assert data["parameter"] == "a"
    assert probe("call", "missing")["error"][0] == -32601
    assert probe("call", "add", [1, 2]) == {"result": 3}


def test_what_cannot_be_written_is_not_sent_and_the_connection_stays(probe: Probe, port: int) -> None:
    probe.connect(port)
    assert probe("echo nested", 126) == {"result": True}  # with the request around it as deep as may be
    assert "128" in probe.raises("java.lang.IllegalArgumentException", "echo nested", 127)
    assert probe("call", "add", [1, 2]) == {"result": 3}


def test_threads_share_a_client(probe: Probe, port: int) -> None:
    probe.connect(port)
    assert probe("echo in threads", 4, 200) == {"result": 800}


def test_what_is_sent(probe: Probe) -> None:
    replies = [b'{"jsonrpc":"2.0","id":%d,"result":null}\n' % number for number in (1, 2, 3)]
    with fake_server(*replies) as (port, received):
        probe.connect(port)
        assert probe("call", 'a"b', []) == {"result": None}
        assert probe("call", "x", [1, [1.5, "\r\n\x7f\xe9\U0001f600"]]) == {"result": None}
        assert probe("call", "x", {"a": {}}) == {"result": None}
        probe("close")
    assert received[:-1] == [
        rb'{"jsonrpc":"2.0","method":"a\"b","params":[],"id":1}' + b"\n",
        '{"jsonrpc":"2.0","method":"x","params":[1,[1.5,"\\r\\n\x7f\xe9\U0001f600"]],"id":2}\n'.encode(),
        b'{"jsonrpc":"2.0","method":"x","params":{"a":{}},"id":3}\n',
    ]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b'{"jsonrpc":"2.0","id":2,"result":1}\n', "a reply to 2 came where one to 1 was due"),
        (b'{"jsonrpc":"2.0","id":"1","result":1}\n', "a reply to 1 came where one to 1 was due"),
        (b'{"jsonrpc":"2.0","id":1.0,"result":1}\n', "a reply to 1.0 came where one to 1 was due"),
        (b'{"jsonrpc":"2.0","id":null,"result":1}\n', "a reply to null came where one to 1 was due"),
        (b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"m"}}\n', "a reply to 7 came where one to 1 was due"),
        (b'{"jsonrpc":"2.0","id":1}\n', "a reply must have either a result or an error"),
        (b'{"jsonrpc":"2.0","id":1,"result":1,"error":null}\n', "a reply must have either a result or an error"),
        (b'{"id":1,"error":"Internal error"}\n', "an error must have a code and a message, not Internal error"),
        (b'{"id":1,"error":{"code":1}}\n', "an error must have a code and a message, not {code=1}"),
        (b'{"id":1,"error":{"message":""}}\n', "an error must have a code and a message, not {message=}"),
        (b'{"jsonrpc":"2.0","method":"m","id":1}\n', "the server calls m: nobody answers here"),
        (b"[]\n", "a reply must be an object"),
        (b"\n", "a reply cannot be read: not JSON: a value wanted at character 0, not the end"),
        (b'{"jsonrpc":"2.0","id":1,"result":1e999}\n', "a reply cannot be read: a number that no double holds: 1e999"),
    ],
)  # fmt: skip
def test_what_is_no_reply_to_the_call_ends_the_connection(probe: Probe, reply: bytes, message: str) -> None:
    right = b'{"jsonrpc":"2.0","id":1,"result":1}\n'
    with fake_server(reply + right) as (port, received):
        probe.connect(port)
        assert probe.raises("java.net.ProtocolException", "call", "x") == message
        assert probe.raises("java.net.SocketException", "call", "x") == "the connection is closed"
    assert received[1:] == [b""]


def test_an_error_without_an_id_is_the_answer(probe: Probe) -> None:
    reply = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}\n'
    with fake_server(reply) as (port, _):
        probe.connect(port)
        assert probe("call", "x") == {"error": [-32700, "Parse error", None]}
        probe("close")


def test_notifications_of_the_server_are_passed_over(probe: Probe) -> None:
    reply = b'{"jsonrpc":"2.0","method":"tick","params":[1]}\n' * 3 + b' {"result": 5 ,"id": 1,"jsonrpc":"2.0"}\r\n'
    with fake_server(reply) as (port, _):
        probe.connect(port)
        assert probe("call", "x") == {"result": 5}
        probe("close")


def test_a_server_that_closes_is_not_waited_for(probe: Probe) -> None:
    reply_without_its_end = b'{"jsonrpc":"2.0","id":1,"result":1}'
    with fake_server(reply_without_its_end, closes=True) as (port, _):
        probe.connect(port)
        assert probe.raises("java.io.EOFException", "call", "x").endswith("has not answered x")


@pytest.mark.parametrize("part", [b"", b'{"jsonrpc":"2.0","id":1,"res', b'{"jsonrpc":"2.0","method":"tick"}\n'])
def test_a_server_that_does_not_answer_is_waited_for_so_long(probe: Probe, part: bytes) -> None:
    with fake_server(part) as (port, received):
        probe.connect(port, 300)
        assert probe.raises("java.net.SocketTimeoutException", "call", "x") == "no reply to x in 300 ms"
        assert probe.raises("java.net.SocketException", "call", "x") == "the connection is closed"
    assert received[1:] == [b""]


def test_closing_ends_a_call_that_waits(probe: Probe) -> None:
    with fake_server(b"") as (port, received):
        probe.connect(port)
        probe.raises("java.net.SocketException", "close while waiting")
    assert received[1:] == [b""]


def test_a_connection_that_nobody_takes_is_an_error(probe: Probe) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    probe.raises("java.net.ConnectException", "connect", port, 1000)
    probe.raises("java.lang.IllegalArgumentException", "connect", port, 0)


# -- arrays and bytes, in binary frames and as text -------------------------------------------------------------------

HELLO = b'{"jsonrpc":"2.0","method":"rpc.hello","params":{"binary":1},"id":1}\n'
TAKES_FRAMES = b'{"jsonrpc":"2.0","id":1,"result":{"binary":1,"more":[]}}\n'


@contextmanager
def traced_server(**options: Any) -> Iterator[tuple[int, list[str]]]:
    """A server that echoes; gives its port, and a list of the messages of its log."""
    said: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    server = Server(debug=True, **options)

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    def sum(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[Any]:
        return [[str(each.dtype), list(each.shape), float(each.sum())] for each in (a, b, c)]

    log, handler = logging.getLogger("rpcstream.wire"), Handler()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with serve_in_thread(server) as address:
            yield int(address.rpartition(":")[2]), said
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


def test_arrays_travel_in_frames_once_the_server_has_said_that_it_takes_them(probe: Probe) -> None:
    with traced_server() as (port, said):
        probe.connect(port)
        as_text = probe("echo array", 1000)
        assert as_text == {"result": ["ndarray", "<f8", [2, 500], True]}
        assert not any("payloads of" in each for each in said)
        assert probe("offer frames") == {"result": True}
        assert probe("echo array", 1000) == as_text
        assert probe("echo array", 2) == {"result": ["ndarray", "<f8", [2, 1], True]}
        assert [each.partition(" bytes, and ")[2].partition(" bytes")[0] for each in said if "payloads of" in each] == [
            "payloads of 8000",
            "payloads of 8000",
        ]
        assert probe("array sum") == {
            "result": [["float32", [2], 3.5], ["int64", [1, 2], 7.0], ["int32", [1], 5.0]],
        }
        probe("close")


@pytest.mark.parametrize(
    "sizes", [[4096, 4097, 4103, 5000], [4095], [10_000, 0, 7, 9999], [4096] * 70, [3_000_001]], ids=str
)
def test_bytes_of_any_size_come_back(probe: Probe, sizes: list[int]) -> None:
    with traced_server() as (port, said):
        probe.connect(port)
        assert probe("offer frames") == {"result": True}
        assert probe("echo bytes", sizes) == {"result": True}
        probe("close")
    large = [size for size in sizes if size >= 4096][:64]
    shown = f"payloads of {', '.join(map(str, large))} bytes"
    # Our server answers in text where there are more payloads than a frame takes; this client sends the rest as text.
    frames = 0 if not large else 1 if len(sizes) > 64 else 2
    assert sum(shown in each for each in said) == frames


def test_a_server_without_frames_gets_text(probe: Probe) -> None:
    with traced_server(binary=False) as (port, said):
        probe.connect(port)
        assert probe("offer frames") == {"result": False}
        assert probe("echo bytes", [5000]) == {"result": True}
        probe("close")
    assert not any("payloads of" in each for each in said)


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
    assert rest[:json_size] == (
        b'{"jsonrpc":"2.0","method":"echo","params":{"value":[{"$type":"bytes","data":{"$bin":0}},'
        b'{"$type":"bytes","data":{"$bin":1}}]},"id":2}\n'
    )
    body = rest[json_size:]
    assert body[4097:4104] == bytes(7)
    assert len(body) == 4104 + 5000


def framed(result: bytes) -> bytes:
    text = b'{"jsonrpc":"2.0","id":2,"result":%b}\n' % result
    return b"@%d 1\n%bx" % (len(text), text)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b'@2 0\n{}', "the header of a frame is malformed"),
        (b"@2\n{}", "the header of a frame is malformed"),
        (b"@2 8 x\n{}", "the header of a frame is malformed"),
        (b"@999999999999 1\n", "a reply is longer than 67108864 bytes"),
        (b"@2 67108863\n", "a reply is longer than 67108864 bytes"),
        (framed(b"[]"), "a payload of a frame stands nowhere in its message"),
        (framed(b'{"$bin":true}'), "a frame has no payload true, or has it in two places"),
        (framed(b'{"$bin":1}'), "a frame has no payload 1, or has it in two places"),
        (framed(b'[{"$bin":0},{"$bin":0}]'), "a frame has no payload 0, or has it in two places"),
    ],
)  # fmt: skip
def test_what_is_no_frame_ends_the_connection(probe: Probe, frame: bytes, message: str) -> None:
    with fake_server(TAKES_FRAMES, frame) as (port, _):
        probe.connect(port)
        assert probe("offer frames") == {"result": True}
        assert probe.raises("java.net.ProtocolException", "call", "x") == message
        assert probe.raises("java.net.SocketException", "call", "x") == "the connection is closed"


# -- its JSON ---------------------------------------------------------------------------------------------------------

HARD = [
    "",
    "".join(map(chr, range(0x20))),
    '"\\/\b\f\n\r\t \x7f\x80\x85\xa0\u2028\u2029\ufeff\ufffd\uffff',
    "\U00010000\U0001f600\U0010ffff\ud7ff\ue000",
    '\\"\\\\"\\u0041',
    "x" * 100_000,
    [0, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 10**17, 10**18, 10**19, 10**300],
    [0.0, -0.0, 1.0, 0.1, 1e15, 1e16, 1e22, 1e23, 1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, 2**53 + 2.0],
    [[], {}, [[]], [{}], {"": {"": []}}, None, True, False, [None], {"null": None}],
    {"a": 1, "A": 2, "\x00": 3, "\U0001f600": 4, "$type": "unknown"},
    list(range(10_000)),
    [[{}], {"": []}] * 200,
]


def shortened(parameter: Any) -> str:
    return ascii(parameter)[:30]


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: 1 is neither 1.0 nor true, 0.0 is not -0.0."""
    return json.dumps(one) == json.dumps(other)


def test_what_the_server_gets_is_what_was_given(probe: Probe) -> None:
    got: list[Any] = []
    server = Server()
    server.add(got.append, name="take")
    with serve_in_thread(server) as address:
        probe.connect(int(address.rpartition(":")[2]))
        for value in HARD:
            probe("call", "take", [value])
        probe("close")
    assert same(got, HARD)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=50, deadline=None)
@given(value=VALUES)
def test_any_value_comes_back_from_the_server(connected: Probe, value: Any) -> None:
    assert same(connected("call", "echo", [value]), {"result": value})


@pytest.fixture(scope="module")
def connected(probe: Probe, port: int) -> Probe:
    probe.connect(port)
    return probe


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (" \t\r\n1 ", "Long", 1),
        ("-0", "Long", 0),
        ("-9223372036854775808", "Long", -(2**63)),
        ("9223372036854775807", "Long", 2**63 - 1),
        ("9223372036854775808", "BigInteger", 2**63),
        ("9" * 1000, "BigInteger", 10**1000 - 1),
        ("1E2", "Double", 100.0),
        ("1e-2", "Double", 0.01),
        ("-1.5e+3", "Double", -1500.0),
        ("1e-999", "Double", 0.0),
        ("0.1" + "0" * 900, "Double", 0.1),
        ("null", "null", None),
        ("true", "Boolean", True),
        (r'"\u00e4\u20AC\ud83D\uDE00\/\""', "String", '\xe4\u20ac\U0001f600/"'),
        ('{"a": 1, "a": 2}', "LinkedHashMap", {"a": 2}),
        ("[ ]", "ArrayList", []),
        ("[" * 125 + "]" * 125, "ArrayList", json.loads("[" * 125 + "]" * 125)),
    ],
    ids=shortened,
)
def test_what_is_read(probe: Probe, text: str, kind: str, value: Any) -> None:
    outcome = probe("read", text)["result"]
    assert outcome[0] == kind
    assert same(outcome[1], value)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\x00", "1\x00", "1 2", "[1]]", "[", "]", "{", "}", "[1", "[1,", "[1,]", "[,1]", "[1 2]", '{"a"',
        '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', "{1:2}", "{a:1}", '{"a" 1}', '{"a":1 "b":2}', "nul", "nulll", "True",
        "NaN", "Infinity", "-Infinity", "-", "+1", "01", "-01", "1.", ".5", "1.e1", "1e", "1e+", "0x10", "1_0", "1L",
        "1d", "\u0661", "1\u0661", '"', '"a', '"\\', '"\\"', '"\\x"', '"\\u"', '"\\u12"', '"\\u123g"', '"\\u+123"',
        "'a'", '"\n"', '"\t"', '"\x00"', '"\\ud83d"', '"\\ude00"', '"\\ud83d\\ud83d"', '"\\ud83dx"', '{"\\ud83d":1}',
        "1e999", "-1e999", "9" * 1001, "\ufeff1", "\xa01", "// x\n1",
        "[" * 129 + "]" * 129, '{"a":' * 129 + "1" + "}" * 129, "[" * 100_000,
    ],
    ids=shortened,
)  # fmt: skip
def test_what_is_no_json_is_refused(probe: Probe, text: str) -> None:
    probe.raises("java.lang.IllegalArgumentException", "read", text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("arrays", '[[1.0,0.1,1.0E300],[0.1],[-9223372036854775808],[],[-1],[true],["x",null]]'),
        ("numbers", "[1,2,3,4,1000000000000000000000000000000,-0.0,4.9E-324,1E+3,3.4028235E38]"),
        ("others", '["x",[1,2],null]'),
    ],
)
def test_what_is_written(probe: Probe, name: str, text: str) -> None:
    assert probe("write", name) == {"result": text}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "NaN"),
        ("infinity", "-Infinity"),
        ("float nan", "NaN"),
        ("nan in an array", "NaN"),
        ("high half", "half a surrogate pair at character 1"),
        ("high half inside", "half a surrogate pair at character 1"),
        ("low half", "half a surrogate pair at character 0"),
        ("number as key", "a key must be a string"),
        ("itself", "nested deeper than 128"),
        ("object", "cannot be written as JSON: java.lang.Object"),
        ("atomic", "cannot be written as JSON: java.util.concurrent.atomic.AtomicInteger"),
    ],
)
def test_what_has_no_form_in_json_is_refused(probe: Probe, name: str, message: str) -> None:
    assert message in probe.raises("java.lang.IllegalArgumentException", "write", name)
