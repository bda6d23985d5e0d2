"""What handlers have done behind their own replies (`Context.after_reply`).

Owns when that is: once the session has handed the reply to its transport. Knows neither replies nor what is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from ..observe.limited_log import LimitedLog
from ..peer.context import Context
from ..peer.deadline import free_context
from ..peer.state import ConversationState

#: The task whose result is a reply; None: the reply is given at once, as its message is read.
Giver = asyncio.Task[object] | None


class Planned(NamedTuple):
    """Functions that the handler of one call wants called."""

    session: ConversationState
    method: str
    functions: list[Callable[[], object]]


class AfterReplyTasks:
    """Calls functions behind the replies of the calls that they belong to."""

    def __init__(self, log: LimitedLog) -> None:
        self._log = log

    def plan(self, context: Context, giver: Giver) -> None:
        """A call went well: its reply is about to be handed to the session, or is part of a batch's."""
        planned = Planned(context.session, context.method, context.afterwards)
        if context.batch is None:
            self.call([planned], giver)
        else:
            context.batch.afterwards.append(planned)

    def call(self, planned: list[Planned], giver: Giver) -> None:
        """Call these behind a reply, all on one session, that is about to be handed to it."""
        session = planned[0].session

        def call() -> None:
            if session.channel is not None or not session.is_lasting:
                for each in planned:
                    self._call_all(each)

        def soon(_: object = None) -> None:
            # Behind the turn in which the session writes the reply.
            session.loop.call_soon(call, context=free_context())

        if giver is None:
            soon()
        else:  # behind the session, which takes the reply when the task is done
            giver.add_done_callback(soon)

    def _call_all(self, planned: Planned) -> None:
        for function in planned.functions:
            try:
                function()
            except Exception as error:
                kind = "what %r wanted done after its reply failed"
                self._log.error(planned.method, kind, planned.method, error=error)
