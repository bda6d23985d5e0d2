"""`rpcstream --subscribe` and `--publish`: one event a line, and how that ends."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import Client, Hub, Server
from rpcstream.testing import drop_connections, serve_in_thread

from .conftest import Run, ended, on_a_terminal, started

ONE = ("--max-events", "1")


@pytest.fixture(scope="module")
def hub() -> Hub:
    return Hub(drain_timeout=0.1)


@pytest.fixture(scope="module")
def address(hub: Hub) -> Iterator[str]:
    with serve_in_thread(hub) as where, Client(where) as client:
        for topic, value in {
            "plain": {"a": [1]},
            "nasty": "x\x1b[2J",
            "sensors.roof": 31.5,
            "sensors.cellar": "wet",
            "arrays": np.zeros((100, 3)),
            "camera": Image.new("RGB", (2, 3)),
        }.items():
            client.publish(topic, value, retain=True)
        yield where


# -- subscribe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "out"),
    [
        (["plain", *ONE], '{"a":[1]}'),
        (["arrays", *ONE, "--format", "text"], "ndarray float64 (100, 3)"),
        (["nasty", *ONE, "--format", "text"], '"x\\u001b[2J"'),
        # A pattern gives topics too, but raw has the values alone.
        (["*.cellar", *ONE], '{"topic":"sensors.cellar","value":"wet"}'),
        (["*.cellar", *ONE, "--format", "text"], 'sensors.cellar  "wet"'),
        (["*.cellar", *ONE, "--format", "raw"], "wet"),
    ],
)
def test_one_event_a_line(run: Run, argv: list[str], out: str, address: str) -> None:
    for scheme in ("", "ws://"):
        assert run("--subscribe", *argv, uri=scheme + address) == (0, f"{out}\n", "")


def test_several_events_of_a_pattern(run: Run) -> None:
    status, out, err = run("--subscribe", "sensors.>", "--max-events", "2")
    events = sorted((json.loads(line) for line in out.splitlines()), key=lambda event: event["topic"])
    assert (status, err) == (0, "")
    assert events == [{"topic": "sensors.cellar", "value": "wet"}, {"topic": "sensors.roof", "value": 31.5}]


def test_on_a_terminal_in_files_and_with_messages(address: str, run: Run, tmp_path: Path) -> None:
    at = (*ONE, "--uri", address)
    assert on_a_terminal("--subscribe", "nasty", *at, NO_COLOR="1") == (0, '"x\\u001b[2J"\n')
    roof = "\x1b[34msensors.roof\x1b[0m  \x1b[36m31.5\x1b[0m\n"
    assert on_a_terminal("--subscribe", "*.roof", *at) == (0, roof)
    assert on_a_terminal("--subscribe", "camera", *at, NO_COLOR="1") == (0, "image PNG 2 x 3 RGB\n")
    assert run("--subscribe", "camera", *ONE, "-o", str(tmp_path / "x.png")) == (0, "", "")
    with Image.open(tmp_path / "x-0001.png") as image:
        assert image.size == (2, 3)
    err = run("--subscribe", "plain", *ONE, "-v")[2]
    assert '> {"jsonrpc":"2.0","id":1,"method":"rpc.subscribe"' in err
    assert '< {"jsonrpc":"2.0","method":"$/event"' in err


def test_ctrl_c(address: str) -> None:
    with started("--subscribe", "plain", "--uri", address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == '{"a":[1]}\n'
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=30), process.returncode) == (("", ""), 130)


@pytest.mark.parametrize("more_comes", [False, True])
def test_a_reader_who_leaves(more_comes: bool, address: str, hub: Hub) -> None:
    with started("--subscribe", "*", "--uri", address) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        while more_comes and process.poll() is None:
            hub.publish("more", 1)
            time.sleep(0.01)
        assert (process.stderr.read(), process.wait(30)) == ("", 141)


@pytest.mark.parametrize("again", [False, True])
def test_a_lost_connection(again: bool, address: str, hub: Hub) -> None:
    more = ["--reconnect", "--max-events", "3"] if again else []
    with started("--subscribe", "plain", *more, "--uri", address) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == '{"a":[1]}\n'
        drop_connections(hub)
        if again:
            assert process.stderr.readline() == "rpcstream: the connection is lost; connecting again\n"
            again_text = "rpcstream: connected again; events of the meantime may be missing\n"
            assert process.stderr.readline() == again_text
            hub.publish("plain", 2)
            assert process.communicate(timeout=30) == ('{"a":[1]}\n2\n', "")
            assert process.returncode == 0
        else:
            out, err = process.communicate(timeout=30)
            assert (process.returncode, out, err.count("\n")) == (3, "", 1)


# -- publish --------------------------------------------------------------------------------------------------------


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
        (["--", "-5"], -5),
    ],
)
def test_values(values: list[str], published: Any, address: str, run: Run) -> None:
    with Client(address) as client, client.subscribe("topic") as events:
        assert run("--publish", "topic", *values) == (0, "1\n", "")
        assert next(events) == published


def test_an_image_standard_input_and_what_is_retained(address: str, run: Run, tmp_path: Path) -> None:
    Image.new("RGB", (7, 8)).save(tmp_path / "x.png")
    with Client(address) as client, client.subscribe("topic") as events:
        assert run("--publish", "topic", "-i", str(tmp_path / "x.png"))[0] == 0
        assert next(events).size == (7, 8)
    assert ended("--publish", "in", "-", "--retain", "--uri", address, input="[1, 2]") == (0, "0\n", "")
    assert run("--subscribe", "in", *ONE) == (0, "[1,2]\n", "")
    assert run("--publish", "kept", "1", "--retain", uri=f"http://{address}") == (0, "0\n", "")
    assert run("--subscribe", "kept", *ONE) == (0, "1\n", "")


# -- mistakes -------------------------------------------------------------------------------------------------------


LASTS = "--subscribe needs a connection that lasts, and HTTP has none"


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["--subscribe", "sensors.roof", "--timeout", "1.5"], 4, "the timeout of 1.5 s has passed, after 1 events\n"),
        (["--subscribe", "a.>.b"], 1, "error -32602"),
        (["--subscribe", "x", "--uri", "unix:///no/such/socket"], 3, "rpcstream: "),
        (
            ["--subscribe", "x", "--uri", "http://h:1/x"],
            2,
            "--subscribe needs a connection that lasts, and HTTP has none",
        ),
        (["--subscribe", "x", "--uri", "https://h"], 2, LASTS),
        (
            ["--subscribe", "x", "--uri", "http+unix:///run/s"],
            2,
            "--subscribe needs a connection that lasts, and HTTP has none",
        ),
        (["--subscribe", "x", "--uri", "ho st:1"], 2, "rpcstream: "),
        (["--publish", "x"], 2, ""),
        (["--publish", "x", "hello", "world"], 2, ""),
        (["--publish", "x", "a=1", "b"], 2, ""),
        (["--publish", "x", "1", "--subscribe", "x"], 2, ""),
        (["--retain", "x"], 2, ""),
        (["--subscribe", "x", "y"], 2, ""),
        (["--subscribe", "x", "--max-events", "0"], 2, ""),
        (["--max-events", "3", "sum"], 2, ""),
        (["--reconnect", "sum"], 2, ""),
    ],
)
def test_mistakes(argv: list[str], status: int, words: str, run: Run) -> None:
    found, out, err = run(*argv)
    assert (found, out) == (status, "31.5\n" if status == 4 else "")
    assert words in err
    assert err.splitlines()[-1].startswith(("rpcstream: ", "error "))


def test_to_a_server_that_is_no_hub(run: Run) -> None:
    with serve_in_thread(Server()) as where:
        status, _, err = run("--publish", "x", "1", uri=where)
    assert (status, "only a hub takes events from clients" in err) == (1, True)
