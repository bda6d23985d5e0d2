"""Random runs of steps on a stepped loop, with hypothesis: what every such test checks when a run is over."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from .logs import LogLines
from .loops import SteppedLoop

#: Seconds of real time that threads and sockets of a busy machine have to let go of what they did last.
PATIENCE = 10.0


class RandomRun(RuleBasedStateMachine):
    """A run of random steps; at its end no session, no task and no logged error may be left.

    Subclasses make the simulation, and add their own steps.

    Attributes:
        simulation: what the steps act on. It has a `loop` that is turned by hand, `advance` and `settle`; `finish` lets
            every call come to its right end; `close` gives references to the sessions, which should be gone then.
    """

    simulation: Any

    def __init__(self) -> None:
        super().__init__()
        self.errors = LogLines(logging.ERROR)
        logging.getLogger().addHandler(self.errors)

    @rule(seconds=st.sampled_from([3.0, 6.0, 21.0, 70.0]))
    def advance(self, seconds: float) -> None:
        self.simulation.advance(seconds)

    @rule(count=st.integers(1, 4))
    def turn(self, count: int) -> None:
        self.simulation.loop.turn(count)

    @rule()
    def settle(self) -> None:
        self.simulation.settle()

    def teardown(self) -> None:
        loop = self.simulation.loop
        try:
            self.simulation.finish()
            sessions = self.simulation.close()
            del self.simulation
            left = _sessions_left(sessions, loop)
            assert not left, f"sessions are left behind: {left}"
            assert not loop.reports, loop.reports
            assert not self.errors.lines, self.errors.lines
        finally:
            logging.getLogger().removeHandler(self.errors)
            loop.dispose()


def _sessions_left(references: list[weakref.ref[Any]], loop: SteppedLoop) -> list[Any]:
    """The sessions that still exist. Threads and sockets may take a moment to drop their last references."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        references = [reference for reference in references if reference() is not None]
        if not references:
            break
        gc.collect()
        loop.jump(0.1)
        loop.settle()
        time.sleep(0.001)
    return [reference() for reference in references]


def run_settings(steps: int, examples: int) -> settings:
    """The settings of a test with this many runs, of this many steps each."""
    return settings(
        deadline=None,
        stateful_step_count=steps,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        max_examples=examples,
    )
