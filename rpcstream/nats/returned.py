"""Calls that NATS has given back because nothing subscribes to their subject. Finds out what that means.

After a restart of NATS the instances of a service join again one after the other. Until then NATS says of every method
that it has no subscriber. So a method is missing only if an instance that has joined says that it is there, and NATS
still knows no subscriber of the method after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

#: Seconds for each of the two answers, since handlers may keep the event loops of instances for a while. A late one
#: counts as none: the calls may be made again.
ANSWER_TIME = 2.0

#: What is sent to the subject of a method to see whether anything subscribes: JSON that no subscriber takes for a call.
PROBE = b"0"

#: How the reply subjects of probes begin, and the one of the question to the service.
PROBE_TOKEN, SERVICE_TOKEN = "p", "q0"


class ReturnedCalls:
    """The calls of one client to one service that NATS has given back.

    Args:
        ask: asks whether an instance has joined; the answer comes with `SERVICE_TOKEN`.
        probe: publishes `PROBE` to this subject, with this token for the answer.
        fail: called with the ids of calls, and whether their method is missing; else the service is away.
    """

    def __init__(
        self,
        *,
        ask: Callable[[], None],
        probe: Callable[[str, str], None],
        fail: Callable[[Sequence[int | str], bool], None],
    ) -> None:
        self._ask = ask
        self._probe = probe
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        #: By their subject; none of these was probed.
        self._calls: dict[str, list[int | str]] = {}
        self._asking: asyncio.TimerHandle | None = None
        #: By the token of the probe.
        self._probed: dict[str, tuple[list[int | str], asyncio.TimerHandle]] = {}
        self._last = 0

    def add(self, subject: str, call_id: int | str) -> None:
        """A call came back from this subject."""
        self._calls.setdefault(subject, []).append(call_id)
        if self._asking is None:
            self._asking = self._loop.call_later(ANSWER_TIME, self.service_is, False)
            self._ask()

    def service_is(self, is_there: bool) -> None:
        """An instance has said that it has joined, or there is none that could."""
        if self._asking is None:
            return
        self._asking.cancel()
        calls, self._calls, self._asking = self._calls, {}, None
        for subject, call_ids in calls.items():
            if not is_there:
                self._fail(call_ids, False)
                continue
            self._last += 1
            token = f"{PROBE_TOKEN}{self._last}"
            self._probed[token] = call_ids, self._loop.call_later(ANSWER_TIME, self.probed, token, False)
            self._probe(subject, token)

    def probed(self, token: str, is_missing: bool) -> None:
        """NATS says that a method still has no subscriber, or one has answered."""
        call_ids, timer = self._probed.pop(token, ((), None))
        if timer is not None:
            timer.cancel()
            self._fail(call_ids, is_missing)

    def stop(self) -> None:
        """Nothing is heard any more."""
        self.service_is(False)
        for token in list(self._probed):
            self.probed(token, False)
