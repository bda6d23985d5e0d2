"""A route of a hub: the members that carry out the calls of one name, and which of them gets the next one."""

from __future__ import annotations

from itertools import islice
from operator import attrgetter

from ..errors import ProviderGone
from .members import Member
from .offers import Offer

#: The members of a shared method that are compared for one call: so many, beginning with the one whose turn it is.
COMPARED = 8


#: What the data of an error says of a call that no member was given.
_NOT_PASSED_ON = {"executed": False, "no_provider": True}


class Route:
    """The members that carry out the calls of one name.

    Attributes:
        method: the name of the method at these members.
        members: those that offer it, in the order in which they came.
        text: the name of the method at its members, as JSON.
        shared: the method may be offered by several members.
        is_own: the route is that of a single member, with the member's name before the method's.
    """

    def __init__(self, offer: Offer, called: str, text: bytes) -> None:
        self.method = offer.name
        self.shared = offer.shared
        self.is_own = called != offer.name
        self.members: list[Member] = []
        self._turn = 0
        self.text = text

    @property
    def is_shared(self) -> bool:
        """Several members may offer the method under this name."""
        return self.shared and not self.is_own

    @property
    def is_listed(self) -> bool:
        """The method is listed under this name: the short one, if it has that."""
        return not self.is_own or "." in self.method

    def add(self, member: Member) -> None:
        """Enter one more member."""
        self.members.append(member)

    def remove(self, member: Member) -> None:
        """Take a member out."""
        self.members.remove(member)

    def choose(self) -> Member:
        """Return the member for the next call: of the next in turn the one with the fewest unanswered calls.

        Raises:
            ProviderGone: no member takes calls at the moment. The data says `no_provider`: none was given the call.
        """
        members, count = self.members, len(self.members)
        if count == 1 and members[0].is_there:  # as nearly always: the rest takes a tenth of the hub's time for a call
            return members[0]
        first = self._turn % count if self.is_shared else 0
        self._turn = first + 1
        in_turn = (members[place % count] for place in range(first, first + count))
        there = list(islice((member for member in in_turn if member.is_there), COMPARED))
        if not there:
            raise self._gone()
        return min(there, key=attrgetter("load"))

    def _gone(self) -> ProviderGone:
        who = {"client": self.members[0].name} if len(self.members) == 1 else {}
        return ProviderGone(data={"method": self.method, **who, **_NOT_PASSED_ON})
