"""The members of one batch while they are answered (section 6): replies by their place, and those that are waited for.

Owns the order of the replies and the size of all together. Does not know how a member is answered.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from ..peer import control
from ..peer.interfaces import Waiting
from ..peer.session import Session
from ..wire.pieces import Written


class _Member(NamedTuple):
    """A member that must be waited for."""

    place: int
    message: dict[str, Any]
    later: Waiting


class Batch:
    """One batch.

    Attributes:
        size: bytes of all replies together; from where that is over `max_size` they are not kept.
        answered: the places of the members that have a reply.
        waiting: members that are not answered yet.
        words: members that belong to the conversation itself, such as cancels; heeded last.
    """

    def __init__(self, max_size: int) -> None:
        self.size = 1
        self.answered: list[int] = []
        self.waiting: list[_Member] = []
        self.words: list[dict[str, Any]] = []
        self._max_size = max_size
        self._replies: dict[int, Written] = {}

    def put(self, place: int, reply: Written | None) -> None:
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

    async def finish(self, session: Session, max_calls: int) -> list[tuple[int, dict[str, Any]]]:
        """Answer all that wait, no more of them at a time than one connection may run.

        Returns:
            Place and message of the members that were cancelled and say nothing themselves.
        """
        room = asyncio.Semaphore(max_calls)

        async def run(member: _Member) -> None:
            async with room:
                self.put(member.place, await member.later)

        tasks = [session.loop.create_task(run(member)) for member in self.waiting]
        for task, member in zip(tasks, self.waiting, strict=True):
            session.work.start_member(task, member.message)
        self.heed(session)
        try:
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for member in self.waiting:
                member.later.close()  # of those that never began
        silent = zip(self.waiting, outcomes, strict=True)
        return [(member.place, member.message) for member, outcome in silent if outcome is not None]

    def heed(self, session: Session) -> None:
        """What the batch says about the conversation, once all its calls are known: a cancel may mean one of them."""
        for message in self.words:
            control.handle(session, message, b"")

    def joined(self) -> bytes | None:
        """The array of replies, in the order of the members; None where there are none."""
        replies = self._replies
        return b"[" + b",".join([bytes(replies[place]) for place in sorted(replies)]) + b"]" if replies else None
