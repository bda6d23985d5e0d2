"""A route of a hub: the members that carry out the calls of one name, and which of them gets the next one.

Knows no messages, and not who may call what.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from ..errors import ProviderGone
from . import passthrough
from .members import Member
from .offers import Offer

#: How the calls of a shared method are distributed.
Balance = Literal["least_in_flight", "round_robin"]

#: The members of a shared method that are compared for one call: so many, beginning with the one whose turn it is.
COMPARED = 8


#: What the data of an error says of a call that no member was given.
_NOT_PASSED_ON = {"executed": False, "no_provider": True}


class Route:
    """The members that carry out the calls of one name.

    Attributes:
        method: the name of the method at these members.
        members: those that offer it: the clients of this hub, then those of others, in the order in which they came.
        here: how many of them are clients of this hub.
        shared: the method may be offered by several members.
        is_own: the route is that of a single member, with the member's name before the method's.
    """

    __slots__ = ("_called", "_text", "_turn", "here", "is_own", "members", "method", "shared")

    def __init__(self, offer: Offer, called: str, text: bytes) -> None:
        self.method = offer.name
        self.shared = offer.shared
        self.is_own = called != offer.name
        self.members: list[Member] = []
        self.here = 0
        self._turn = 0
        self._text = text
        self._called = passthrough.text_of(called) if self.is_own else text

    @property
    def is_shared(self) -> bool:
        """Several members may offer the method under this name."""
        return self.shared and not self.is_own

    @property
    def is_listed(self) -> bool:
        """The method is listed under this name: the short one, if it has that."""
        return not self.is_own or "." in self.method

    def text_at(self, member: Member) -> bytes:
        """The name of the method in a call that this member is sent, as JSON; another hub is sent the one called."""
        return self._text if member.hub is None else self._called

    def add(self, member: Member) -> None:
        """Enter one more member."""
        if member.hub is None:
            self.members.insert(self.here, member)
            self.here += 1
        else:
            self.members.append(member)

    def remove(self, member: Member) -> None:
        """Take a member out."""
        self.members.remove(member)
        self.here -= member.hub is None

    def choose(self, balance: Balance) -> Member:
        """Return the member for the next call: a client of this hub, or if none takes calls, one of another hub.

        Raises:
            ProviderGone: no member takes calls at the moment. The data says `no_provider`: none was given the call.
        """
        members, here = self.members, self.here
        if (here == 1 or len(members) == 1) and members[0].is_there:
            return members[0]
        chosen = self._choose(balance, 0, here) if here else None
        if chosen is None and here < len(members):
            chosen = self._choose(balance, here, len(members))
        if chosen is None:
            raise self._gone()
        return chosen

    def choose_here(self, balance: Balance) -> Member:
        """Return the client of this hub for the next call; as `choose`."""
        chosen = self._choose(balance, 0, self.here) if self.here else None
        if chosen is None:
            raise self._gone()
        return chosen

    def _choose(self, balance: Balance, begin: int, end: int) -> Member | None:
        """The next in turn of these members, or the one of the next in turn with the fewest unanswered calls."""
        members, count = self.members, end - begin
        first = self._turn % count if self.is_shared else 0
        self._turn = first + 1
        chosen, least = None, math.inf
        left = 1 if balance == "round_robin" or not self.is_shared else COMPARED
        # A plain loop: it runs for each call, and nearly always the first member is there and has nothing to do.
        for place in range(first, first + count):
            member = members[begin + place % count]
            if not member.is_there:
                continue
            load = member.load
            if load < least:
                chosen, least = member, load
            left -= 1
            if not (least and left):
                break
        return chosen

    def _gone(self) -> ProviderGone:
        who = {"client": self.members[0].name} if len(self.members) == 1 else {}
        return ProviderGone(data={"method": self.method, **who, **_NOT_PASSED_ON})


def check_balance(balance: str) -> None:
    """Raise ValueError unless it is a `Balance`."""
    if balance not in get_args(Balance):
        raise ValueError(f"balance must be one of {', '.join(get_args(Balance))}; got {balance!r}")
