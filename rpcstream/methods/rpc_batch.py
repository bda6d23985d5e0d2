"""Batches: several requests in one message, answered in one message (section 6).

Owns the way through the members, turn by turn, and what becomes of their replies. How one of them is answered is the
dispatcher's matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..codec import Codec, payloads
from ..codec.image_budget import ImageTotal
from ..errors import BatchTooLarge, CallCancelled, InvalidRequest, RpcError
from ..limits import Limits
from ..peer import control_messages
from ..peer.inflight import ForwardedCall
from ..peer.interfaces import Later
from ..peer.slices import TimeSlices
from ..peer.state import ConversationState, Hold
from ..wire import envelope
from ..wire.buffers import Encoded, MessageParts
from .after_reply import AfterReplyTasks, Giver
from .rpc_batch_state import RpcBatch

Line = bytes | bytearray

#: As `Dispatcher.answer`, with what the images of the batch cost; as `Dispatcher._error`.
Answer = Callable[[Any, Line, ConversationState, ImageTotal], Encoded | Later | None]
ErrorReply = Callable[[Any, RpcError], Encoded | None]


def refused_batch(error_reply: ErrorReply, call_id: Any, error: RpcError) -> Encoded | None:
    """One error for a batch as a whole: in an array, and with the id of one of its calls.

    Clients look for their calls by id in an array; some never end a call that finds nothing there.
    """
    reply = error_reply(call_id, error)
    return None if reply is None else b"[%b]" % bytes(reply)


class RpcBatches:
    """Answers batches.

    Args:
        answer: answers one member.
        error_reply, refuse, goes_on, report_slow: as the dispatcher's.
        side: what errors call the end whose limits these are.

    Attributes:
        current: the batch whose member is answered now.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        error_reply: ErrorReply,
        refuse: Callable[[Any, RpcError], Encoded | None],
        goes_on: Callable[[Any], bool],
        report_slow: Callable[[Any, float], None],
        codec: Codec,
        limits: Limits,
        side: str,
        slices: TimeSlices,
        afterwards: AfterReplyTasks,
    ) -> None:
        self.current: RpcBatch | None = None
        self._answer = answer
        self._error = error_reply
        self._refuse = refuse
        self._goes_on = goes_on
        self._report_slow = report_slow
        self._codec = codec
        self._limits = limits
        self._max_size = limits.max_message_size
        self._side = side
        self._slices = slices
        self._afterwards = afterwards

    def answer(self, members: Any, line: Line, session: ConversationState) -> Encoded | Later | None:
        """One array of replies in one message; nothing where there are none."""
        if type(members) is not list:
            return self._error(None, InvalidRequest(data={"reason": "a request must be an object, a batch an array"}))
        if not members:
            return self._error(None, InvalidRequest(data={"reason": "an empty batch"}))
        if len(members) > self._limits.max_batch:
            return self.too_many(members, line)
        if envelope.may_hold_big_integers(line):
            members = payloads.parse_exactly(line)
        if any(type(member) is dict and type(member.get("id")) is float for member in members):
            envelope.with_exact_ids(members, line)
        total = ImageTotal(is_tagged=self._codec.holds_tags(line), has_images=self._codec.holds_images(line))
        batch = RpcBatch(members, line, session, self._max_size, total)
        begun = self._take_members(batch)
        if begun is not None or not batch.is_taken:
            session.work.begin_batch(batch)
            return self._batch_in_turns(batch, begun, Hold(session))
        return self._batch_later(batch) if batch.waiting else self._joined(batch)

    def too_many(self, members: list[Any], line: Line) -> Encoded | None:
        """The reply to a batch over `max_batch`, of which nothing is carried out."""
        error = BatchTooLarge(data={"size": len(members), "limit": self._limits.max_batch})
        return refused_batch(self._error, envelope.id_of_batch(members, line), error)

    def _take_members(self, batch: RpcBatch) -> asyncio.Future[None] | None:
        """Answer members in order, for one turn: sync ones at once; what others wait for is noted.

        Stops behind a member that must have begun before those after it. That is when the future is done; the member is
        the last one of those that wait.
        """
        session, members, line, total = batch.session, batch.members, batch.line, batch.total
        may_be_cancelled, answer, put, clock = batch.may_be_cancelled, self._answer, batch.put, perf_counter
        holds, place = session.holds, batch.taken - 1
        last_hold = holds[-1] if holds else None
        before = perf_counter()
        end = before + session.turn_time
        self.current = batch
        try:
            for place in range(batch.taken, len(members)):
                member = members[place]
                reply: Encoded | Later | None
                if type(member) is not dict:
                    reason = {"reason": "a member of a batch must be an object"}
                    reply = self._error(None, InvalidRequest(data=reason))
                elif "method" in member:
                    if "id" not in member and control_messages.is_word(member):
                        batch.words.append(member)
                        continue
                    if may_be_cancelled and batch.was_cancelled(member):
                        reply = self._refuse(member, CallCancelled())
                    else:
                        reply = answer(member, b"", session, total)
                elif envelope.is_reply(member):
                    line = batch.line = payloads.shared(line)
                    session.pending.settle(member, line)
                    continue
                else:
                    reply = answer(member, b"", session, total)
                if type(reply) is bytes or reply is None or isinstance(reply, bytes | MessageParts):
                    put(place, reply)
                else:
                    assert not isinstance(reply, ForwardedCall), "a member of a batch is waited for here"
                    batch.wait(place, member, reply)
                    if holds and holds[-1] is not last_hold:
                        return holds[-1]
                now = clock()
                if now > end:
                    if now - before > session.slow:
                        self._report_slow(member, now - before)
                    break
                before = now
        finally:
            self.current = None
            batch.taken = place + 1
        return None

    async def _batch_in_turns(self, batch: RpcBatch, begun: asyncio.Future[None] | None, hold: Hold) -> Encoded | None:
        """The same for one that takes longer than a turn. The requests behind it wait until all members are taken.

        Args:
            begun: done when the next members may be taken: the last one keeps its place while its images are decoded,
                or while it is a generator in the event loop.
        """
        session = batch.session
        try:
            while begun is not None or not batch.is_taken:
                if begun is None:
                    await self._slices.come(session)
                else:
                    batch.begin_last()
                    await asyncio.shield(begun)
                if session.channel is None:  # what has not begun by now never will
                    batch.drop(self._goes_on)
                    break
                session.set_waited(session.loop.time() - batch.since)
                try:
                    begun = self._take_members(batch)
                finally:
                    session.set_waited(0.0)
            session.work.end_batch()
            if batch.unfinished:
                hold.release()  # all sync handlers are done
            return await self._batch_later(batch)
        except BaseException:
            batch.drop(lambda message: False)
            raise
        finally:
            session.work.end_batch()
            hold.release()

    async def _batch_later(self, batch: RpcBatch) -> Encoded | None:
        for place, message in await batch.finish(self._slices, self._limits.max_calls):
            batch.put(place, self._refuse(message, CallCancelled()))
        return self._joined(batch, asyncio.current_task())

    def _joined(self, batch: RpcBatch, giver: Giver = None) -> Encoded | None:
        """The replies in one array. Where they are too long together, each call is told so: by an error with its id.

        One without an id would fail whatever else waits at the client.
        """
        batch.heed()
        if batch.size <= self._max_size:
            if batch.afterwards:
                self._afterwards.call(batch.afterwards, giver)
            return batch.joined()
        error = envelope.oversize(batch.size, self._max_size, side=self._side)
        told = RpcBatch(batch.members, b"", batch.session, self._max_size, batch.total)
        for place in batch.answered:
            member = batch.members[place]
            call_id = member.get("id") if type(member) is dict and envelope.has_valid_id(member) else None
            told.put(place, self._error(call_id, error))
        if told.size <= self._max_size:
            return told.joined()
        return refused_batch(self._error, envelope.id_of_batch(batch.members, b""), error)
