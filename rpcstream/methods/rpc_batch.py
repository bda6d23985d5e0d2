"""JSON-RPC batches (section 6 of the specification): several requests in one message, answered in one message.

Members are answered in order, in a loop that yields to others after a slice; those that wait run in tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any

from ..codec import payloads
from ..codec.codec import Reading
from ..errors import BatchTooLarge, CallCancelled, InvalidRequest
from ..peer import control_messages
from ..peer.inflight import Hold, Later, Waiting, is_call
from ..peer.session import Session
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded, MessageParts
from .replies import ReplyWriter


def answer_batch(dispatch: Any, members: Any, line: bytes | bytearray, session: Session) -> Encoded | Later | None:
    """Carry out a batch; the reply is one array, or None where no member gets a reply.

    Args:
        dispatch: the `Dispatcher`, which answers the members.
        members: the message as parsed; what is no array, or an empty one, is answered with one error.
    """
    replies: ReplyWriter = dispatch.replies
    if type(members) is not list or not members:
        reason = "an empty batch" if members == [] else "a request must be an object, a batch an array"
        return replies.error(None, InvalidRequest(data={"reason": reason}))
    size, limit = len(members), replies.limits.max_batch
    if size > limit:
        text = f"Batch too large: {size} members, the {replies.side}'s limit is {limit} (max_batch): send several"
        error = BatchTooLarge(text, {"size": size, "limit": limit})
        return replies.error(envelope.id_of_batch(members), error, in_array=True)
    if envelope.may_hold_big_integers(line):
        members = payloads.parse_exactly(line)
    reading = replies.codec.reading(is_counted=True, is_tagged=replies.codec.holds_tags(line))
    return RpcBatch(dispatch, members, line, session, reading, session.loop.time() - session.waited).answer()


@dataclass(eq=False)
class RpcBatch:
    """One batch while it is answered.

    Attributes:
        dispatch: the `Dispatcher`, whose `batch` this is while a member is answered.
        line: the message that it came as.
        reading: what the values of all members cost.
        since: when it came, in the time of the loop.
        taken: how many members are answered or begun; the others are left for later slices.
        cancelled: indexes of members that were cancelled before their turn.
        size: bytes of all replies together.
        replies: by the index of the member; they are not kept once they are too long together.
        tasks: of members that must be awaited, each with its index and what it awaits.
        hold: keeps the requests behind the batch waiting until all members are taken.
        after_reply: functions to be called after the reply to the whole batch.
    """

    dispatch: Any
    members: list[Any]
    line: bytes | bytearray
    session: Session
    reading: Reading
    since: float
    taken: int = 0
    size: int = 1
    cancelled: set[int] = field(default_factory=set)
    replies: dict[int, Encoded] = field(default_factory=dict)
    tasks: dict[asyncio.Task[None], tuple[int, Waiting]] = field(default_factory=dict)
    hold: Hold | None = None
    after_reply: list[Callable[[], object]] = field(default_factory=list)

    def answer(self) -> Encoded | Later | None:
        """Answer all members: at once, or in a coroutine if that takes longer than a slice, or some must be awaited."""
        self._take_members()
        if self.taken < len(self.members):
            self.session.running.batch = self
            self.hold = Hold(self.session)
        return self._go_on() if self.tasks or self.hold is not None else self._joined()

    @cached_property
    def _room(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.dispatch.replies.limits.max_calls)

    def cancel(self, call_id: Any) -> bool:
        """Do not carry out the call with this id; False if no member that is left has it."""
        for index in range(self.taken, len(self.members)):
            if is_call(self.members[index], call_id):
                self.cancelled.add(index)
                return True
        return False

    def _take_members(self) -> None:
        """Take members in order, for one slice: sync ones are answered, others begun.

        Stops at one that keeps its place before the next while its images are decoded, or while it is a generator in
        the event loop: it holds the session.
        """
        session, dispatch, members = self.session, self.dispatch, self.members
        holds, own_holds = session.running.holds, len(session.running.holds)
        before = perf_counter()
        end = before + session.turn_time
        dispatch.batch = self
        try:
            while self.taken < len(members) and len(holds) <= own_holds and before <= end:
                member = members[self.taken]
                self.taken += 1
                self._take(member)
                now = perf_counter()
                if now > end and now - before > session.slow:
                    dispatch.report_slow(member, now - before)
                before = now
        finally:
            dispatch.batch = None
        if self.tasks and session.channel is None:  # a member ended the connection
            session.running.abandon(dispatch.goes_on)

    def _take(self, member: Any) -> None:
        """Answer a member or begin with it; the members before it are taken."""
        session, dispatch, index = self.session, self.dispatch, self.taken - 1
        if envelope.is_reply(member):
            self.line = payloads.shared(self.line)
            session.pending.settle(member, self.line)
        elif control_messages.is_control(member):
            control_messages.handle(session, member, b"")
        elif index in self.cancelled:
            self._add(index, dispatch.refuse(member, CallCancelled()))
        else:  # what is no object is answered with an error
            self._add(index, dispatch.answer(member if type(member) is dict else None, b"", session))

    def _add(self, index: int, reply: Any) -> None:
        """Keep the reply of a member, as long as all replies together are within the limit; or begin to await it."""
        if reply is None:
            return
        if not isinstance(reply, bytes | MessageParts):
            task = self.session.loop.create_task(self._await_member(index, reply))
            self.tasks[task] = index, reply
            self.session.running.start_member(task, self.members[index])
            return
        if type(reply) is AttachedMessage:  # a batch has no attachments, and its arrays may change until it is sent
            reply = MessageParts(reply.parts)
        limit = self.dispatch.replies.limits.max_message_size
        before, self.size = self.size, self.size + len(reply) + 1
        if before <= limit < self.size:
            self.replies = dict.fromkeys(self.replies, b"")
        self.replies[index] = reply if self.size <= limit else b""

    async def _await_member(self, index: int, later: Waiting) -> None:
        slices = self.dispatch.slices
        async with self._room:
            if slices.is_crowded():
                await slices.come(self.session)
            self._add(index, await later)

    async def _go_on(self) -> Encoded | None:
        """Answer a batch that takes longer than a slice, or has members that wait."""
        session, hold = self.session, self.hold
        try:
            while self.taken < len(self.members):
                others = [over for over in session.running.holds if hold is None or over is not hold.over]
                await (asyncio.shield(others[-1]) if others else self.dispatch.slices.come(session))
                if session.channel is None:  # the connection is lost: the other members are not begun
                    break
                session.waited = session.loop.time() - self.since
                try:
                    self._take_members()
                finally:
                    session.waited = 0.0
        finally:
            if hold is not None:
                session.running.batch = None
                hold.release()
        if self.tasks:
            await asyncio.wait(self.tasks)
        tasks, self.tasks = self.tasks, {}  # their contexts know this batch, and the cycle would keep what they have
        for task, (index, later) in tasks.items():
            later.close()  # of a member that was cancelled before it began
            if task.cancelled() or task.exception() is not None:
                self._add(index, self.dispatch.refuse(self.members[index], CallCancelled()))
        return self._joined()

    def _joined(self) -> Encoded | None:
        """The replies in one array. If they are too long together, each call gets an error with its id instead.

        One error without an id would fail every call that waits at the client.
        """
        replies: ReplyWriter = self.dispatch.replies
        limit, error = replies.limits.max_message_size, None
        if self.size > limit:
            error = envelope.oversize(self.size, limit, side=replies.side)
            refusals = {index: replies.error_to(self.members[index], error) for index in self.replies}
            self.replies = {index: refusal for index, refusal in refusals.items() if refusal is not None}
        else:
            for function in self.after_reply:
                function()
        joined = b"[" + b",".join([bytes(self.replies[index]) for index in sorted(self.replies)]) + b"]"
        if error is not None and len(joined) > limit:
            return replies.error(envelope.id_of_batch(self.members), error, in_array=True)
        return joined if self.replies else None
