"""`rpcstream --subscribe` and `--publish`: one event a line, and how that ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import Client, Hub, Server
from rpcstream.cli.call import main
from rpcstream.testing import drop_connections, serve_in_thread

from .conftest import environment
from .test_terminal import on_a_terminal

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def hub() -> Iterator[tuple[Hub, str]]:
    hub = Hub(drain_timeout=0.1)
    with serve_in_thread(hub) as address, Client(address) as client:
        client.publish("plain", {"a": [1]}, retain=True)
        client.publish("nasty", "x\x1b[2J", retain=True)
        client.publish("sensors.roof", 31.5, retain=True)
        client.publish("sensors.cellar", "wet", retain=True)
        client.publish("arrays", np.zeros((100, 3)), retain=True)
        client.publish("camera", Image.new("RGB", (2, 3)), retain=True)
        yield hub, address


@pytest.fixture
def run(hub: tuple[Hub, str], capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str, scheme: str = "") -> tuple[int, str, str]:
        status = main([*argv, "--uri", scheme + hub[1]])
        return status, *capfd.readouterr()

    return run


@pytest.fixture
def started(hub: tuple[Hub, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(*argv: str) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, "-m", "rpcstream", "--uri", hub[1], *argv], subprocess.PIPE
        processes.append(subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


class TestSubscribe:
    def test_a_topic_gives_its_values(self, run: Run) -> None:
        assert run("--subscribe", "plain", "--max-events", "1") == (0, '{"a":[1]}\n', "")

    def test_a_pattern_gives_topics_too(self, run: Run) -> None:
        status, out, err = run("--subscribe", "sensors.*", "--max-events", "2", "--format", "json")
        events = sorted((json.loads(line) for line in out.splitlines()), key=lambda event: event["topic"])
        assert (status, err) == (0, "")
        assert events == [{"topic": "sensors.cellar", "value": "wet"}, {"topic": "sensors.roof", "value": 31.5}]

    def test_text(self, run: Run) -> None:
        status, out, _ = run("--subscribe", "sensors.>", "--max-events", "2", "--format", "text")
        assert (status, sorted(out.splitlines())) == (0, ['sensors.cellar  "wet"', "sensors.roof  31.5"])
        one = ("--max-events", "1", "--format", "text")
        assert run("--subscribe", "arrays", *one)[1] == "ndarray float64 (100, 3)\n"
        assert run("--subscribe", "nasty", *one)[1] == '"x\\u001b[2J"\n'

    def test_raw_has_the_values_alone(self, run: Run) -> None:
        assert run("--subscribe", "*.cellar", "--max-events", "1", "--format", "raw") == (0, "wet\n", "")

    def test_over_websocket(self, run: Run) -> None:
        assert run("--subscribe", "plain", "--max-events", "1", scheme="ws://") == (0, '{"a":[1]}\n', "")

    def test_on_a_terminal(self, hub: tuple[Hub, str]) -> None:
        argv = ("--max-events", "1", "--uri", hub[1])
        assert on_a_terminal("--subscribe", "nasty", *argv, NO_COLOR="1") == (0, '"x\\u001b[2J"\n')
        assert on_a_terminal("--subscribe", "*.roof", *argv) == (
            0,
            "\x1b[34msensors.roof\x1b[0m  \x1b[36m31.5\x1b[0m\n",
        )
        assert on_a_terminal("--subscribe", "camera", *argv, NO_COLOR="1") == (0, "image PNG 2 x 3 RGB\n")

    def test_files(self, run: Run, tmp_path: Path) -> None:
        assert run("--subscribe", "camera", "--max-events", "1", "-o", str(tmp_path / "x.png")) == (0, "", "")
        with Image.open(tmp_path / "x-0001.png") as image:
            assert image.size == (2, 3)

    def test_verbose(self, run: Run) -> None:
        err = run("--subscribe", "plain", "--max-events", "1", "-v")[2]
        assert '> {"jsonrpc":"2.0","id":1,"method":"rpc.subscribe"' in err
        assert '< {"jsonrpc":"2.0","method":"$/event"' in err


class TestEnds:
    def test_a_time_out(self, run: Run) -> None:
        status, out, err = run("--subscribe", "plain", "--timeout", "0.2")
        assert (status, out) == (4, '{"a":[1]}\n')
        assert err == "rpcstream: the time-out of 0.2 s has passed, after 1 events\n"

    def test_ctrl_c(self, started: Callable[..., subprocess.Popen[str]]) -> None:
        process = started("--subscribe", "plain")
        assert process.stdout is not None
        assert process.stdout.readline() == '{"a":[1]}\n'
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 130

    def test_a_reader_who_leaves(self, hub: tuple[Hub, str], started: Callable[..., subprocess.Popen[str]]) -> None:
        process = started("--subscribe", "*")
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        while process.poll() is None:
            hub[0].publish("more", 1)
            time.sleep(0.01)
        assert (process.returncode, process.stderr.read()) == (141, "")

    def test_a_reader_who_leaves_while_nothing_comes(self, started: Callable[..., subprocess.Popen[str]]) -> None:
        process = started("--subscribe", "plain")
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == ("", 141)

    @pytest.mark.parametrize("again", [False, True])
    def test_a_lost_connection(
        self, again: bool, hub: tuple[Hub, str], started: Callable[..., subprocess.Popen[str]]
    ) -> None:
        process = started("--subscribe", "plain", *(["--reconnect", "--max-events", "3"] if again else []))
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == '{"a":[1]}\n'
        drop_connections(hub[0])
        if again:
            assert process.stderr.readline() == "rpcstream: the connection is lost; connecting again\n"
            again_text = "rpcstream: connected again; events of the meantime may be missing\n"
            assert process.stderr.readline() == again_text
            hub[0].publish("plain", 2)
            assert process.communicate(timeout=30) == ('{"a":[1]}\n2\n', "")
            assert process.returncode == 0
        else:
            out, err = process.communicate(timeout=30)
            assert (process.returncode, out, err.count("\n")) == (3, "", 1)

    def test_no_server(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert main(["--subscribe", "x", "--uri", "unix:///no/such/socket"]) == 3
        assert capfd.readouterr().err.count("\n") == 1

    @pytest.mark.parametrize(
        ("uri", "other"),
        [("http://h:1/x", "ws://h:1/x"), ("https://h", "wss://h"), ("http+unix:///run/s", "unix:///run/s")],
    )
    def test_over_http_the_error_names_what_to_use(
        self, uri: str, other: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["--subscribe", "x", "--uri", uri]) == 2
        assert f"use --uri {other}\n" in capfd.readouterr().err

    def test_a_wrong_pattern(self, run: Run) -> None:
        status, out, err = run("--subscribe", "a.>.b")
        assert (status, out) == (1, "")
        assert err.startswith("error -32602")


class TestPublish:
    @pytest.mark.parametrize(
        ("values", "published"),
        [
            (["hello"], "hello"),
            (["31.5"], 31.5),
            (["-5"], -5),
            ([":str=1"], "1"),
            ([':=[1, {"a": null}]'], [1, {"a": None}]),
            (["a=1", "b:str=1"], {"a": 1, "b": "1"}),
            (["--positional", "null"], None),
        ],
    )
    def test_values(self, values: list[str], published: Any, hub: tuple[Hub, str], run: Run) -> None:
        with Client(hub[1]) as client, client.subscribe("topic") as events:
            assert run("--publish", "topic", *values) == (0, "1\n", "")
            assert next(events) == published

    def test_an_image(self, hub: tuple[Hub, str], run: Run, tmp_path: Path) -> None:
        Image.new("RGB", (7, 8)).save(tmp_path / "x.png")
        with Client(hub[1]) as client, client.subscribe("topic") as events:
            assert run("--publish", "topic", "-i", str(tmp_path / "x.png"))[0] == 0
            assert next(events).size == (7, 8)

    @pytest.mark.parametrize("scheme", ["", "http://"])
    def test_retained(self, scheme: str, run: Run) -> None:
        assert run("--publish", f"kept{scheme[:4]}", "1", "--retain", scheme=scheme) == (0, "0\n", "")
        assert run("--subscribe", f"kept{scheme[:4]}", "--max-events", "1") == (0, "1\n", "")

    def test_from_standard_input(self, hub: tuple[Hub, str], run: Run) -> None:
        command = [sys.executable, "-m", "rpcstream", "--publish", "in", "-", "--retain", "--uri", hub[1]]
        subprocess.run(command, env=environment(), input=b"[1, 2]", capture_output=True, timeout=30, check=True)
        assert run("--subscribe", "in", "--max-events", "1") == (0, "[1,2]\n", "")

    def test_to_a_server_that_is_no_hub(self, capfd: pytest.CaptureFixture[str]) -> None:
        with serve_in_thread(Server()) as address:
            assert main(["--publish", "x", "1", "--uri", address]) == 1
        assert "only a hub takes events from clients" in capfd.readouterr().err

    @pytest.mark.parametrize(
        "argv",
        [
            ["--publish", "x"],
            ["--publish", "x", "hello", "world"],
            ["--publish", "x", "a=1", "b"],
            ["--publish", "x", "1", "--subscribe", "x"],
            ["--retain", "x"],
            ["--subscribe", "x", "y"],
            ["--subscribe", "x", "--format", "table"],
            ["--subscribe", "x", "--max-events", "0"],
            ["--max-events", "3", "sum"],
            ["--reconnect", "sum"],
        ],
    )
    def test_wrong_use(self, argv: list[str], run: Run) -> None:
        status, out, err = run(*argv)
        assert (status, out) == (2, "")
        assert err.splitlines()[-1].startswith("rpcstream: ")
