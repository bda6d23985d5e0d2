"""The items that answer a call which goes through the hub: items one way, credit the other.

Owns how many items the provider may send: no more than the caller permits, no more than a window at a time, and none
while the caller does not read what it was sent. So a slow caller slows the provider, and the hub keeps a window of
items for it at most.
"""

from __future__ import annotations

from typing import Any

from ..errors import CallCancelled, InternalError
from ..peer.flow_control import CREDIT_MAX
from ..peer.session import Session
from ..peer.stream_table import reply_key
from .credit import Credit
from .members import Member


class Download:
    """One stream; a `Source` at the caller's connection.

    Args:
        pending_id: the id of the call where it is carried out.
        credit: items that the caller permits at first.

    Attributes:
        given: items that the provider may send now.
    """

    __slots__ = (
        "_asked",
        "_caller",
        "_client",
        "_credit",
        "_has_ended",
        "_key",
        "_permission",
        "_window",
        "given",
    )

    def __init__(self, caller: Session, call_id: Any, client: Member, pending_id: int, credit: int) -> None:
        self._caller = caller
        self._key = reply_key(call_id)
        self._client = client
        self._permission = Credit(client.session, {"id": pending_id})
        self._window = caller.limits.stream_window
        #: Items that the caller still takes.
        self._credit = min(credit, CREDIT_MAX)
        self.given = min(self._credit, self._window)
        #: The caller will permit no more.
        self._has_ended = False
        #: It is looked at again when the caller reads.
        self._asked = False

    def open(self) -> None:
        """The call is on its way: credit may come."""
        self._caller.flows.enter_outflow(self._key, self)

    def over(self) -> None:
        """The call is over."""
        self._permission.is_over = True
        self._caller.flows.close_outflow(self._key, self)

    def count(self) -> None:
        """An item has come.

        Raises:
            CallCancelled: the caller takes none any more, and cannot say that it does: as from a handler of the hub's.
            InternalError: the provider was not permitted to send it.
        """
        if not self.given:
            reason = "it sent more items than were permitted (credit)"
            raise InternalError("The provider does not keep to the protocol", {"reason": reason})
        if not self._credit:
            raise CallCancelled("Cancelled: whoever asked for the stream permits no more items")
        self.given -= 1
        self._credit -= 1

    def permit(self, n: int) -> None:
        """The caller takes `n` more."""
        self._credit = min(self._credit + n, CREDIT_MAX)
        self.renew()

    def close(self) -> None:
        """The caller permits no more; what it has permitted still comes."""
        self._has_ended = True
        self.renew()

    def renew(self) -> None:
        """Permit the provider more, if half a window is used, and the caller takes what there is."""
        most = min(self._credit, self._window)
        if not most and self._has_ended:
            most = 1  # only so it shows whether there is one more
        if self._permission.is_over or self.given >= most or self.given * 2 > self._window:
            return
        flows = self._caller.flows
        if flows.is_free:
            n, self.given = most - self.given, most
            # Never before the request, which may wait.
            self._permission.give(n, now=self._client.is_flowing)
        elif not self._asked:
            self._asked = True
            flows.when_flowing(self._flows_again)

    def _flows_again(self) -> None:
        self._asked = False
        self.renew()
