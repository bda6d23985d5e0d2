"""JSON-RPC batches (section 6 of the specification): several requests in one message, answered in one message.

Owns the way through the members of a batch, turn by turn, the order of their replies, and the limit of size for all
replies together. Does not know how a member is answered; the dispatcher does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from ..codec import Codec, payloads
from ..codec.image_budget import ImageTotal
from ..errors import BatchTooLarge, CallCancelled, InvalidRequest, RpcError
from ..limits import Limits
from ..peer import control_messages
from ..peer.inflight import ForwardedCall
from ..peer.interfaces import Later, Waiting
from ..peer.request_queue import name_of_id
from ..peer.slices import TimeSlices
from ..peer.state import ConversationState, Hold
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded, MessageParts
from .replies import AfterReply, AfterReplyCalls, ReplyTask, ReplyWriter

Line = bytes | bytearray


class MemberDispatch(Protocol):
    """The dispatcher that answers the members of a batch."""

    def answer(
        self, message: Any, line: Line, session: ConversationState, tagged: ImageTotal
    ) -> Encoded | Later | None:
        """Carry out one member; `tagged` adds up what the images of the whole batch cost."""

    def refuse(self, message: Any, error: RpcError) -> Encoded | None:
        """The error reply to a member that is not carried out."""

    def goes_on(self, message: Any) -> bool:
        """Whether a member is to be carried out although the connection is lost."""

    def report_slow(self, message: Any, seconds: float) -> None:
        """Log that a member kept the event loop for so long."""


class _Member(NamedTuple):
    """A member whose reply must be awaited."""

    position: int
    message: dict[str, Any]
    later: Waiting


class RpcBatch:
    """One batch while it is answered: its replies by index, and the members that are still awaited.

    Args:
        line: the message that it came as.
        max_size: bytes of all replies together.
        total: whether there may be tagged objects in the batch, and what the images in it cost.

    Attributes:
        since: when it came (loop time, s).
        taken: how many members are answered or begun; the others are left for later turns.
        size: bytes of all replies together; once that is over `max_size` they are not kept.
        answered: the indexes of the members that have a reply.
        waiting: members that are not answered yet.
        control: members that are control messages, such as cancels; handled when all members are taken.
        after_reply: functions to be called after the reply to the whole batch.
    """

    def __init__(
        self, members: list[Any], line: Line, session: ConversationState, max_size: int, total: ImageTotal
    ) -> None:
        self.members = members
        self.line = line
        self.session = session
        self.total = total
        self.since = session.loop.time() - session.waited
        self.size = 1
        self.answered: list[int] = []
        self.waiting: list[_Member] = []
        self.control: list[dict[str, Any]] = []
        self.after_reply: list[AfterReply] = []
        self._max_size = max_size
        self._begun: dict[int, asyncio.Task[None]] = {}
        self._replies: dict[int, Encoded] = {}
        self.taken = 0
        #: The connection has received cancels ahead of this batch.
        self._is_overtaken = session.queue.cancels > 0
        #: The ids of the calls that are not taken yet, made when the first cancel asks for them; and those cancelled.
        self._ids: set[str] | None = None
        self._cancelled: set[str] = set()

    # -- taking the members up --------------------------------------------------------------------------------------

    @property
    def is_taken(self) -> bool:
        """True if all members are answered or begun."""
        return self.taken == len(self.members)

    @property
    def may_be_cancelled(self) -> bool:
        """True if some calls may have been cancelled before their turn, so that `was_cancelled` must be asked."""
        return self._is_overtaken or bool(self._cancelled)

    def cancel(self, call_id: Any) -> bool:
        """Do not carry out the call with this id; false if no member that is left has it."""
        if self._ids is None:
            rest = self.members[self.taken :]
            self._ids = {name_of_id(each["id"]) for each in rest if type(each) is dict and "id" in each}
        name = name_of_id(call_id)
        if name not in self._ids:
            return False
        self._cancelled.add(name)
        return True

    def was_cancelled(self, member: dict[str, Any]) -> bool:
        """True if this member was cancelled before its turn. To be asked once for each member."""
        if self._is_overtaken and self.session.queue.was_cancelled(member):
            return True
        if not self._cancelled or "id" not in member:
            return False
        name = name_of_id(member["id"])
        if name not in self._cancelled:
            return False
        self._cancelled.discard(name)
        return True

    def drop(self, goes_on: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the members that have not begun, except those that `goes_on` says are to be carried out."""
        waiting, self.waiting = self.waiting, []
        for member in waiting:
            if member.position in self._begun or goes_on(member.message):
                self.waiting.append(member)
            else:
                member.later.close()

    # -- answers ----------------------------------------------------------------------------------------------------

    def add_reply(self, index: int, reply: Encoded | None) -> None:
        """Keep the reply of a member, as long as all replies together are within the limit."""
        if reply is not None:
            if type(reply) is AttachedMessage:  # a batch has no attachments, and its arrays may change until it is sent
                reply = MessageParts(reply.parts)
            self.size += len(reply) + 1
            self.answered.append(index)
            if self.size <= self._max_size:
                self._replies[index] = reply
            else:
                self._replies.clear()

    def add_waiting(self, index: int, message: dict[str, Any], later: Waiting) -> None:
        """Note a member whose reply `later` gives."""
        self.waiting.append(_Member(index, message, later))

    @property
    def is_unfinished(self) -> bool:
        """True if some members are still to be awaited."""
        return any(not (each.position in self._begun and self._begun[each.position].done()) for each in self.waiting)

    def begin_last(self) -> None:
        """Begin the member that was added last to those that wait, ahead of the others."""
        member = self.waiting[-1]
        self._begin(member, self._await_reply(member))

    async def finish(self, slices: TimeSlices, max_calls: int) -> dict[int, dict[str, Any]]:
        """Await all members that wait, at most `max_calls` of them at a time.

        Args:
            slices: spread the beginnings over turns of the loop, where they keep it for long.

        Returns:
            The members that were cancelled without giving a reply, by index.
        """
        session, room = self.session, asyncio.Semaphore(max_calls)

        async def run(member: _Member) -> None:
            async with room:
                if slices.is_crowded():
                    await slices.come(session)
                await self._await_reply(member)

        for member in self.waiting:
            if member.position not in self._begun:
                self._begin(member, run(member))
        tasks = [self._begun[member.position] for member in self.waiting]
        self.handle_control_messages()
        try:
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            # Nothing of them is kept here: their contexts know this batch, and the cycle would keep what they have.
            waiting, self.waiting = self.waiting, []
            self._begun.clear()
            for member in waiting:
                member.later.close()  # of those that never began
        silent = zip(waiting, outcomes, strict=True)
        return {member.position: member.message for member, outcome in silent if outcome is not None}

    async def _await_reply(self, member: _Member) -> None:
        self.add_reply(member.position, await member.later)

    def _begin(self, member: _Member, reply: Coroutine[Any, Any, None]) -> None:
        task = self._begun[member.position] = self.session.loop.create_task(reply)
        self.session.running.start_member(task, member.message)

    def handle_control_messages(self) -> None:
        """Handle the control messages among the members, now that all calls they may refer to are known."""
        messages, self.control = self.control, []
        for message in messages:
            control_messages.handle(self.session, message, b"")

    def joined(self) -> bytes | None:
        """The array of replies, in the order of the members; None where there are none."""
        replies = self._replies
        return b"[" + b",".join([bytes(replies[index]) for index in sorted(replies)]) + b"]" if replies else None


class RpcBatches:
    """Answers the batches of a dispatcher.

    Args:
        dispatch: answers the members.
        side: whose limits these are, for errors: "server" or "client".
        slices: share the event loop out among long batches.

    Attributes:
        current: the batch whose member is answered at the moment.
    """

    def __init__(
        self,
        dispatch: MemberDispatch,
        *,
        replies: ReplyWriter,
        codec: Codec,
        limits: Limits,
        side: str,
        slices: TimeSlices,
        after_reply: AfterReplyCalls,
    ) -> None:
        self.current: RpcBatch | None = None
        self._dispatch = dispatch
        self._replies = replies
        self._codec = codec
        self._limits = limits
        self._max_size = limits.max_message_size
        self._side = side
        self._slices = slices
        self._after_reply = after_reply

    def answer(self, members: Any, line: Line, session: ConversationState) -> Encoded | Later | None:
        """Carry out a batch; the reply is one array, or None where no member gets a reply.

        Args:
            members: the message as parsed; what is no array, or an empty one, is answered with one error.
        """
        if type(members) is not list:
            reason = "a request must be an object, a batch an array"
            return self._replies.error(None, InvalidRequest(data={"reason": reason}))
        if not members:
            return self._replies.error(None, InvalidRequest(data={"reason": "an empty batch"}))
        if len(members) > self._limits.max_batch:
            size, limit = len(members), self._limits.max_batch
            text = f"Batch too large: {size} members, the {self._side}'s limit is {limit} (max_batch): send several"
            too_large = BatchTooLarge(text, {"size": size, "limit": limit})
            return self._replies.error_to_batch(envelope.id_of_batch(members, line), too_large)
        if envelope.may_hold_big_integers(line):
            members = payloads.parse_exactly(line)
        if any(type(member) is dict and type(member.get("id")) is float for member in members):
            envelope.with_exact_ids(members, line)
        total = ImageTotal(is_tagged=self._codec.holds_tags(line), has_images=self._codec.holds_images(line))
        batch = RpcBatch(members, line, session, self._max_size, total)
        begun = self._take_members(batch)
        if begun is not None or not batch.is_taken:
            session.running.begin_batch(batch)
            return self._answer_in_turns(batch, begun, Hold(session))
        return self._answer_later(batch) if batch.waiting else self._joined(batch)

    def _take_members(self, batch: RpcBatch) -> asyncio.Future[None] | None:  # noqa: PLR0912 (one loop)
        """Take members in order, for one turn of the loop: sync ones are answered, others noted as waiting.

        Stops at a member that must have begun before those after it.

        Returns:
            A future that is done when that member has begun, which is the last one that waits; else None.
        """
        session, members, total = batch.session, batch.members, batch.total
        may_be_cancelled, answer, add_reply = batch.may_be_cancelled, self._dispatch.answer, batch.add_reply
        clock, is_control_message = perf_counter, control_messages.is_control_message
        holds, index = session.holds, batch.taken - 1
        last_hold = holds[-1] if holds else None
        before = perf_counter()
        end = before + session.turn_time
        self.current = batch
        try:
            for index in range(batch.taken, len(members)):
                member = members[index]
                reply: Encoded | Later | None
                if type(member) is dict and "method" in member and ("id" in member or not is_control_message(member)):
                    if may_be_cancelled and batch.was_cancelled(member):
                        reply = self._dispatch.refuse(member, CallCancelled())
                    else:
                        reply = answer(member, b"", session, total)
                elif self._is_taken_here(batch, member):
                    continue
                elif type(member) is dict:
                    reply = answer(member, b"", session, total)
                else:
                    reason = {"reason": "a member of a batch must be an object"}
                    reply = self._replies.error(None, InvalidRequest(data=reason))
                if type(reply) is bytes or reply is None or isinstance(reply, bytes | MessageParts):
                    add_reply(index, reply)
                else:
                    assert not isinstance(reply, ForwardedCall), "a member of a batch is awaited here"
                    batch.add_waiting(index, member, reply)
                    if holds and holds[-1] is not last_hold:
                        return holds[-1]
                now = clock()
                if now > end:
                    if now - before > session.slow:
                        self._dispatch.report_slow(member, now - before)
                    break
                before = now
        finally:
            self.current = None
            batch.taken = index + 1
        return None

    def _is_taken_here(self, batch: RpcBatch, member: Any) -> bool:
        """Take a member that is no request: a control message or a reply; false if it is neither."""
        if type(member) is dict and "method" in member:
            batch.control.append(member)
            return True
        if not envelope.is_reply(member):
            return False
        batch.line = payloads.shared(batch.line)
        batch.session.pending.settle(member, batch.line)
        return True

    async def _answer_in_turns(self, batch: RpcBatch, begun: asyncio.Future[None] | None, hold: Hold) -> Encoded | None:
        """Answer a batch that takes longer than a turn of the loop.

        Args:
            begun: done when the next members may be taken. The last one keeps its place before them while its images
                are decoded, or while it is a generator in the event loop.
            hold: keeps the requests behind the batch waiting until all sync members are done.
        """
        session = batch.session
        try:
            while begun is not None or not batch.is_taken:
                if begun is None:
                    await self._slices.come(session)
                else:
                    batch.begin_last()
                    await asyncio.shield(begun)
                if session.channel is None:  # the connection is lost: the other members are not begun
                    batch.drop(self._dispatch.goes_on)
                    break
                session.set_waited(session.loop.time() - batch.since)
                try:
                    begun = self._take_members(batch)
                finally:
                    session.set_waited(0.0)
            session.running.end_batch()
            if batch.is_unfinished:
                hold.release()  # all sync handlers are done
            return await self._answer_later(batch)
        except BaseException:
            batch.drop(lambda message: False)
            raise
        finally:
            session.running.end_batch()
            hold.release()

    async def _answer_later(self, batch: RpcBatch) -> Encoded | None:
        """Await the members that wait, then join the replies."""
        cancelled = await batch.finish(self._slices, self._limits.max_calls)
        for index, message in cancelled.items():
            batch.add_reply(index, self._dispatch.refuse(message, CallCancelled()))
        return self._joined(batch, asyncio.current_task())

    def _joined(self, batch: RpcBatch, task: ReplyTask = None) -> Encoded | None:
        """The replies in one array. If they are too long together, each call gets an error with its id instead.

        One error without an id would fail every call that waits at the client.
        """
        batch.handle_control_messages()
        if batch.size <= self._max_size:
            if batch.after_reply:
                self._after_reply.plan_all(batch.after_reply, task)
            return batch.joined()
        error = envelope.oversize(batch.size, self._max_size, side=self._side)
        refused = RpcBatch(batch.members, b"", batch.session, self._max_size, batch.total)
        for index in batch.answered:
            member = batch.members[index]
            call_id = member.get("id") if type(member) is dict and envelope.has_valid_id(member) else None
            refused.add_reply(index, self._replies.error(call_id, error))
        if refused.size <= self._max_size:
            return refused.joined()
        return self._replies.error_to_batch(envelope.id_of_batch(batch.members, b""), error)
