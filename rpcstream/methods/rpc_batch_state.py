"""The members of one batch while they are answered (section 6): replies by their place, and those that are waited for.

Owns how far the batch is, the order of the replies and the size of all together. Knows not how a member is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from ..codec.image_budget import ImageTotal
from ..peer import control_messages
from ..peer.interfaces import Waiting
from ..peer.request_queue import name_of_id
from ..peer.slices import TimeSlices
from ..peer.state import ConversationState
from ..wire.buffers import Encoded


class _Member(NamedTuple):
    """A member that must be waited for."""

    place: int
    message: dict[str, Any]
    later: Waiting


class RpcBatch:
    """One batch.

    Args:
        line: the message that it came as.
        max_size: bytes of all replies together.
        total: whether there may be tagged objects in it, and what the images in it cost.

    Attributes:
        since: when it came (loop time, s).
        taken: how many members are answered, or begun; the rest is for later turns.
        size: bytes of all replies together; from where that is over `max_size` they are not kept.
        answered: the places of the members that have a reply.
        waiting: members that are not answered yet.
        words: members that belong to the conversation itself, such as cancels; heeded last.
        afterwards: what is to be called behind the reply to all of it.
    """

    def __init__(
        self, members: list[Any], line: bytes | bytearray, session: ConversationState, max_size: int, total: ImageTotal
    ) -> None:
        self.members = members
        self.line = line
        self.session = session
        self.total = total
        self.since = session.loop.time() - session.waited
        self.size = 1
        self.answered: list[int] = []
        self.waiting: list[_Member] = []
        self.words: list[dict[str, Any]] = []
        self.afterwards: list[Any] = []
        self._max_size = max_size
        self._begun: dict[int, asyncio.Task[None]] = {}
        self._replies: dict[int, Encoded] = {}
        self.taken = 0
        #: Cancels may have overtaken it.
        self._is_overtaken = session.backlog.noted > 0
        #: The ids of the calls that are not taken yet, once that is asked for; and those that were cancelled.
        self._ids: set[str] | None = None
        self._cancelled: set[str] = set()

    # -- taking the members up --------------------------------------------------------------------------------------

    @property
    def is_taken(self) -> bool:
        """All members are answered, or begun."""
        return self.taken == len(self.members)

    @property
    def may_be_cancelled(self) -> bool:
        """Some of its calls were cancelled, perhaps."""
        return self._is_overtaken or bool(self._cancelled)

    def cancel(self, call_id: Any) -> bool:
        """A call is to be answered without being carried out; false if there is none with this id left."""
        if self._ids is None:
            rest = self.members[self.taken :]
            self._ids = {name_of_id(each["id"]) for each in rest if type(each) is dict and "id" in each}
        name = name_of_id(call_id)
        if name not in self._ids:
            return False
        self._cancelled.add(name)
        return True

    def was_cancelled(self, member: dict[str, Any]) -> bool:
        """Was this member cancelled before its turn came? Asked once for each."""
        if self._is_overtaken and self.session.backlog.was_cancelled(member):
            return True
        if not self._cancelled or "id" not in member:
            return False
        name = name_of_id(member["id"])
        if name not in self._cancelled:
            return False
        self._cancelled.discard(name)
        return True

    def drop(self, goes_on: Callable[[dict[str, Any]], bool]) -> None:
        """The caller is gone: of the members that wait for their beginning, keep only those that are to go on."""
        waiting, self.waiting = self.waiting, []
        for member in waiting:
            if member.place in self._begun or goes_on(member.message):
                self.waiting.append(member)
            else:
                member.later.close()

    # -- answers ----------------------------------------------------------------------------------------------------

    def put(self, place: int, reply: Encoded | None) -> None:
        """A member was answered."""
        if reply is not None:
            self.size += len(reply) + 1
            self.answered.append(place)
            if self.size <= self._max_size:
                self._replies[place] = reply
            else:
                self._replies.clear()

    def wait(self, place: int, message: dict[str, Any], later: Waiting) -> None:
        """A member will be answered by what `later` gives."""
        self.waiting.append(_Member(place, message, later))

    @property
    def unfinished(self) -> bool:
        """Are there members that still have to be waited for?"""
        return any(not (each.place in self._begun and self._begun[each.place].done()) for each in self.waiting)

    def begin_last(self) -> None:
        """Begin with the member that was the last to be put among those that wait, before all others."""
        member = self.waiting[-1]
        self._begin(member, self._answered(member))

    async def finish(self, slices: TimeSlices, max_calls: int) -> list[tuple[int, dict[str, Any]]]:
        """Answer all that wait, no more of them at a time than one connection may run.

        Args:
            slices: share out the beginnings, where these keep the event loop for long.

        Returns:
            Place and message of the members that were cancelled and say nothing themselves.
        """
        session, room = self.session, asyncio.Semaphore(max_calls)

        async def run(member: _Member) -> None:
            async with room:
                if slices.is_crowded():
                    await slices.come(session)
                await self._answered(member)

        for member in self.waiting:
            if member.place not in self._begun:
                self._begin(member, run(member))
        tasks = [self._begun[member.place] for member in self.waiting]
        self.heed()
        try:
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            # Nothing of them is kept here: their contexts know this batch, and the cycle would keep what they have.
            waiting, self.waiting = self.waiting, []
            self._begun.clear()
            for member in waiting:
                member.later.close()  # of those that never began
        silent = zip(waiting, outcomes, strict=True)
        return [(member.place, member.message) for member, outcome in silent if outcome is not None]

    async def _answered(self, member: _Member) -> None:
        self.put(member.place, await member.later)

    def _begin(self, member: _Member, answered: Coroutine[Any, Any, None]) -> None:
        task = self._begun[member.place] = self.session.loop.create_task(answered)
        self.session.work.start_member(task, member.message)

    def heed(self) -> None:
        """What the batch says about the conversation, once all its calls are known: a cancel may mean one of them."""
        words, self.words = self.words, []
        for message in words:
            control_messages.handle(self.session, message, b"")

    def joined(self) -> bytes | None:
        """The array of replies, in the order of the members; None where there are none."""
        replies = self._replies
        return b"[" + b",".join([bytes(replies[place]) for place in sorted(replies)]) + b"]" if replies else None
