"""The control functions of a simulation: as functions, and over one connection as the simulation calls them."""

from __future__ import annotations

import json
import re
import socket

import pytest

pytestmark = pytest.mark.slow

HOUR, DAY = 3600, 86400


@pytest.fixture(scope="module")
def functions(load_example):
    return load_example("control_functions/controlFunctions.py")


def ask(control, *, now=0, status=True, sensors=(), properties=(), log_values=1):
    rest = ([], False, [True, True], log_values, 0, 60, 0, {})
    return control(now, status, list(sensors), [True] * len(sensors), list(properties), *rest)


@pytest.mark.parametrize(
    ("now", "status", "answer"),
    [
        (5 * HOUR, True, ([0.0, 0.0], [0.0], [6 * HOUR])),
        (6 * HOUR, True, ([1.0, 0.25], [40.0], [22 * HOUR])),
        (DAY + 12 * HOUR, True, ([1.0, 0.25], [40.0], [DAY + 22 * HOUR])),
        (12 * HOUR, False, ([0.0, 0.0], [0.0], [22 * HOUR])),
        (22 * HOUR, True, ([0.0, 0.0], [0.0], [DAY + 6 * HOUR])),
    ],
)
def test_flow_rate_is_held_between_two_hours(functions, now, status, answer):
    assert ask(functions.control_flowrate, now=now, status=status, properties=[40, 160, 6, 22]) == answer


def test_a_pump_runs_no_faster_than_it_can_and_logs_what_is_asked_for(functions):
    answer = ask(functions.control_flowrate, now=7 * HOUR, properties=[200, 160, 6, 22], log_values=0)
    assert answer == ([1.0, 1.0], [], [22 * HOUR])


@pytest.mark.parametrize(
    ("sensors", "signal"),
    [
        ([29, 20, 0], 1),  # above the difference that starts it
        ([25, 20, 0], 0),  # between the two: as it was
        ([25, 20, 1], 1),
        ([22, 20, 1], 0),  # below the one that stops it
        ([99, 91, 1], 0),  # the tank is hot enough
    ],
)
def test_temperature_difference_has_hysteresis(functions, sensors, signal):
    control = functions.control_temperature_difference
    assert ask(control, sensors=sensors, properties=[8, 3, 90]) == ([signal], [sensors[0] - sensors[1]], [])
    assert ask(control, sensors=sensors, properties=[8, 3, 90], status=False)[0] == [0]


def test_a_simulation_runs_on_one_connection(examples, served, python, promised):
    address, server = served("-f", "controlFunctions", cwd=examples / "control_functions")
    host, _, port = address.rpartition(":")
    output = python("-W", "error", "examples/control_functions/simulate.py", host, port)
    assert without_times(output) == without_times(promised("control_functions/simulate.py"))
    with socket.create_connection((host, int(port)), timeout=20) as connection, connection.makefile("rwb") as lines:
        for method, result in {"ping": "pong", "stop": None}.items():
            lines.write(b'{ "jsonrpc": "2.0", "method": "%s", "params": [], "id": 1}\n' % method.encode())
            lines.flush()
            assert json.loads(lines.readline()) == {"jsonrpc": "2.0", "id": 1, "result": result}
    rest = server.stdout.read()
    assert server.wait(20) == 0
    for line in ("control_flowrate", "control_temperature_difference", "ping", "print", "stop"):
        assert f"    - {line}\n" in rest
    assert "a simulation begins\n" in rest


def without_times(output: str) -> str:
    return re.sub(r"\d+\.\d+ ms", "... ms", output)
