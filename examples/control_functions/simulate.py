"""A simulation that asks its controllers over one connection, as a program in another language does: socket and JSON.

    cd examples/control_functions && rpcstream-server -f controlFunctions -p 2102
    python examples/control_functions/simulate.py

The second command simulates ten summer days of a collector and its tank, a minute a step, and prints (times differ)

    28801 calls on one connection, 0.05 ms each
    the pump ran 65.9 hours; the tank has 51.4 degrees, at most 59.8
"""

from __future__ import annotations

import json
import math
import socket
import sys
import time
from typing import Any

STEP, DAYS = 60, 10


def main(host: str = "127.0.0.1", port: str = "2102", days: int | str = DAYS) -> None:
    with socket.create_connection((host, int(port)), timeout=10) as connection, connection.makefile("rwb") as lines:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        calls = 0

        def call(method: str, *params: object) -> Any:
            nonlocal calls
            calls += 1
            request = {"jsonrpc": "2.0", "method": method, "params": params, "id": calls}
            lines.write(json.dumps(request).encode() + b"\n")
            lines.flush()
            reply = json.loads(lines.readline())
            if "error" in reply:
                raise RuntimeError(f"{method}: {reply['error']}")
            return reply["result"]

        def control(name: str, now: int, sensors: list[float], properties: list[float]) -> list[float]:
            used = [True] * len(sensors)
            rest: list[Any] = [[], False, [True, True], 1, 0, STEP, 0, {}]
            signals, _log, _times = call(f"control_{name}", now, True, sensors, used, properties, *rest)
            return list(signals)

        call("print", "a simulation begins")
        collector, tank, highest, pump, hours = 20.0, 20.0, 20.0, 0.0, 0.0
        began = time.perf_counter()
        for now in range(0, int(days) * 86400, STEP):
            (pump,) = control("temperature_difference", now, [collector, tank, pump], [8.0, 3.0, 90.0])
            _, tapped = control("flowrate", now, [], [40.0, 160.0, 6.0, 22.0])
            sun = max(0.0, -math.cos(2 * math.pi * now / 86400))
            moved = 0.08 * pump * (collector - tank)
            collector += 1.5 * sun - 0.02 * (collector - 20) - moved
            tank += 0.1 * moved - 0.002 * tapped * (tank - 15)
            highest, hours = max(highest, tank), hours + pump * STEP / 3600
        seconds = time.perf_counter() - began
        lines.write(b"\n")  # an empty line: no more calls
        lines.flush()
    print(f"{calls} calls on one connection, {seconds / calls * 1000:.2f} ms each")
    print(f"the pump ran {hours:.1f} hours; the tank has {tank:.1f} degrees, at most {highest:.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
