"""Which of a client's connections takes the next call. Pure: opens nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Place(Protocol):
    """A place in the pool, with or without an open connection in it."""

    @property
    def load(self) -> int:
        """Calls that wait for their answer here."""
        ...

    @property
    def is_open(self) -> bool:
        """Is there a connection? Opening one takes time."""
        ...


P = TypeVar("P", bound=Place)


def choose(places: Sequence[P]) -> P:
    """The place with the fewest calls; of those one that is open already. So a place is opened only when all open
    ones have something to do."""
    if len(places) == 1:
        return places[0]
    return min(places, key=lambda place: (place.load, not place.is_open))
