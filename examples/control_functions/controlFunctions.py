"""Controllers of a simulation as plain functions: nothing here knows that they are called from another program.

    cd examples/control_functions && rpcstream-server -f controlFunctions -p 2102
    echo '{ "jsonrpc": "2.0", "method": "ping", "params": [], "id": 1}' | nc 127.0.0.1 2102

The first command prints where it listens and what it offers, the second {"jsonrpc":"2.0","result":"pong","id":1}.

The signature is that of a caller in Java, a solar simulation, which calls each controller in each time step and sends
all by position. Temperatures are in degrees Celsius, flows in litres an hour, times in seconds. A controller gives its
control signals, the values it wants logged, and the times at which it must be called besides the regular steps.

They keep nothing from call to call, so simulations that run at once cannot disturb each other.
"""

from __future__ import annotations

Result = tuple[list[float], list[float], list[int]]  # control signals, log values, time points

HOUR, DAY = 3600, 86400


def control_flowrate(
    simulationTime: int, status: bool, sensors: list[float], sensorsUsed: list[bool], properties: list[float],
    propertiesStr: list[str], preRun: bool, controlSignalsUsed: list[bool], numLogValues: int, stage: int,
    fixedTimestep: int, verboseLevel: int, parameters: dict,
) -> Result:  # fmt: skip
    """A pump that holds a flow rate between two hours of the day.

    properties: the flow wanted, the greatest flow of the pump, the hour it starts and the hour it stops.
    Signals: on or off, and the speed from 0 to 1. It asks to be called when the pump next starts or stops.
    """
    wanted, greatest, start, stop = properties
    now = simulationTime % DAY
    on = status and start * HOUR <= now < stop * HOUR
    speed = min(wanted / greatest, 1.0) if on else 0.0
    midnight = simulationTime - now
    changes = sorted(midnight + int(hour * HOUR) + day for hour in (start, stop) for day in (0, DAY))
    coming = next(time for time in changes if time > simulationTime)
    return [float(on), speed], [speed * greatest][:numLogValues], [coming]


def control_temperature_difference(
    simulationTime: int, status: bool, sensors: list[float], sensorsUsed: list[bool], properties: list[float],
    propertiesStr: list[str], preRun: bool, controlSignalsUsed: list[bool], numLogValues: int, stage: int,
    fixedTimestep: int, verboseLevel: int, parameters: dict,
) -> Result:  # fmt: skip
    """A collector's pump with hysteresis: on above one difference, off below a smaller one, as it was in between.

    sensors: temperature of the collector, temperature of the tank, and the pump as it is now (0 or 1).
    properties: the difference above which it starts, the one below which it stops, the tank's highest temperature.
    """
    collector, tank, running = sensors
    start, stop, highest = properties
    difference = collector - tank
    on = status and tank < highest and difference > (stop if running else start)
    return [float(on)], [difference][:numLogValues], []
