"""Streams of calls through the hub: items one way, credit the other.

`ReplyStream` carries the items that answer a call, `ArgumentStream` a stream among the arguments. Each counts how many
items may be sent and knows the id of the stream at both ends. A slow receiver slows the sender, so the hub keeps at
most one window of items.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from ..codec import TAG_KEY
from ..errors import CallCancelled, InternalError, InvalidParams, InvalidRequest, RpcError
from ..peer.control_messages import argument_key, reply_key
from ..peer.flow_control import CREDIT_MAX, CreditWindow
from ..peer.outgoing import STREAM_TAG
from ..peer.session import Session
from ..wire import envelope
from ..wire.json_scan import is_deeper
from . import passthrough
from .members import Member
from .passthrough import Line


class _CreditMessages:
    """Sends credit to the end of a stream that makes the items; while it does not read, all of it in one message.

    Args:
        session: of the sender.
        stream: how the sender knows the stream, as in `$/credit`.

    Attributes:
        is_over: the stream has ended; nothing is sent any more.
    """

    def __init__(self, session: Session, stream: dict[str, Any]) -> None:
        self._session = session
        self._stream = stream
        #: Items granted, of which the sender is still to be told.
        self._owed = 0
        self.is_over = False

    def send(self, n: int, *, now: bool) -> None:
        """Tell the sender of `n` more items: now, or behind what waits for it."""
        waits = self._owed > 0
        self._owed = min(self._owed + n, CREDIT_MAX)
        if waits:
            return
        if now:
            self._send_owed()
        else:
            self._session.write_gate.when_open(self._send_owed)

    def _send_owed(self) -> None:
        n, self._owed = self._owed, 0
        if not self.is_over:
            self._session.send(envelope.credit(self._stream, n))


class ReplyStream:
    """The items that answer one call; a sender at the caller's connection.

    The provider gets credit for no more items than the caller has granted, for no more than a window at a time, and
    for none while the caller does not read.

    Args:
        provider: the member that sends the items.
        pending_id: the id of the call at the provider.
        credit: items that the caller grants at first.
    """

    def __init__(self, caller: Session, call_id: Any, provider: Member, pending_id: int, credit: int) -> None:
        self._caller = caller
        self._key = reply_key(call_id)
        self._provider = provider
        #: Items that the caller still takes.
        self._credit = CreditWindow(credit=credit)
        #: Items that the provider may send.
        self._window = CreditWindow(caller.limits.stream_window, self._credit.credit)
        self._credit_messages = _CreditMessages(provider.session, {"id": pending_id})
        #: The caller will grant no more.
        self._has_ended = False
        #: `renew` is called again when the caller reads.
        self._is_waiting = False

    @property
    def credit(self) -> int:
        """Items that the provider may send now."""
        return self._window.credit

    def open(self) -> None:
        """Begin to take credit from the caller: the call is on its way."""
        self._caller.streams.add_sender(self._key, self)

    def stop(self) -> None:
        """Send and take no more credit: the call is over."""
        self._credit_messages.is_over = True
        self._caller.streams.remove_sender(self._key, self)

    def count(self) -> None:
        """Count an item that has come.

        Raises:
            CallCancelled: the caller has granted no more, and cannot: as with a handler of the hub itself.
            InternalError: the provider had no credit for it.
        """
        if not self._window.credit:
            reason = "it sent more items than were permitted (credit)"
            raise InternalError("The provider does not keep to the protocol", {"reason": reason})
        if not self._credit.spend():
            raise CallCancelled("Cancelled: the receiver of the stream grants no more credit")
        self._window.spend()

    def grant(self, n: int) -> None:
        """Allow `n` items more: the caller takes them."""
        self._credit.grant(n)
        self.renew()

    def close(self) -> None:
        """Note that the caller grants no more; items that it has granted still come."""
        self._has_ended = True
        self.renew()

    def renew(self) -> None:
        """Grant the provider more, if half a window is used and the caller takes what there is."""
        # Without credit, once the caller is gone, one item shows whether there are any more.
        limit = self._credit.credit or int(self._has_ended)
        n = self._window.next_grant(limit=limit)
        if not n or self._credit_messages.is_over:
            return
        write_gate = self._caller.write_gate
        if write_gate.is_open:
            self._window.grant(n)
            # Never before the request, which may wait.
            self._credit_messages.send(n, now=self._provider.is_flowing)
        elif not self._is_waiting:
            self._is_waiting = True
            write_gate.when_open(self._renew_again)

    def _renew_again(self) -> None:
        self._is_waiting = False
        self.renew()


class ArgumentStream:
    """A stream among the arguments of a call.

    A receiver at the caller's connection, a sender at the provider's.

    Args:
        token: its name at the caller.
        provider: the member that the items go to.
        fail: ends the call with an error of the stream.

    Attributes:
        is_broken: it has ended with an error.
    """

    def __init__(self, caller: Session, token: str, provider: Member, fail: Callable[[RpcError], object]) -> None:
        self.token = token
        self._caller = caller
        self._provider = provider
        self._fail = fail
        # Not to be guessed: other calls to the provider may hold the name of a stream too, and would get the items of
        # this one.
        self._provider_token = f"{provider.session.streams.new_token()}-{secrets.token_hex(8)}"
        self._window = CreditWindow()
        self._credit_messages = _CreditMessages(caller, {"stream": token})
        self.is_broken = False

    @property
    def reference(self) -> bytes:
        """The tagged object that stands for it among the arguments at the provider; as JSON."""
        return passthrough.text_of({TAG_KEY: STREAM_TAG, "id": self._provider_token})

    def open(self) -> None:
        """Begin to take items and credit: the call is on its way."""
        self._provider.session.streams.add_sender(argument_key(self._provider_token), self)
        self._caller.streams.add_receiver(self.token, self)

    def stop(self) -> None:
        """Take no more items and no more credit: the call is over."""
        self._credit_messages.is_over = True
        self._provider.session.streams.remove_sender(argument_key(self._provider_token), self)
        self._caller.streams.remove_receiver(self.token, self)

    # -- messages of the caller ---------------------------------------------------------------------------------------

    def put(self, params: dict[str, Any], line: Line) -> None:
        """Pass an item on; the call fails if there was no credit for it, or it cannot be read."""
        if self._credit_messages.is_over:
            return
        if not self._window.credit:
            self._fail(InvalidRequest(data={"reason": "the stream had more items than were permitted (credit)"}))
            return
        depth = self._caller.limits.max_depth
        if "value" not in params or is_deeper(line, depth):
            self._fail(InvalidParams("Invalid params: an item of a stream cannot be read"))
            return
        self._window.spend()
        line = passthrough.line_of(line, {"params": params})
        self._send(passthrough.carrier(line, envelope.ITEM, "stream", passthrough.text_of(self._provider_token)))

    def end(self, error: Exception | None = None) -> None:
        """Tell the provider that no more items come."""
        if not self._credit_messages.is_over:
            self._credit_messages.is_over = True
            self.is_broken = error is not None
            told = error if error is None or isinstance(error, RpcError) else InternalError("The stream broke off")
            try:
                message = passthrough.text_of(envelope.end(self._provider_token, told))
            except TypeError:  # the data of the error is nested too deep
                message = passthrough.text_of(envelope.end(self._provider_token, InternalError("The stream broke off")))
            self._send(message)

    # -- messages of the provider -------------------------------------------------------------------------------------

    def grant(self, n: int) -> None:
        """Allow `n` items more: the provider takes them."""
        self._window.grant(n)
        self._credit_messages.send(n, now=self._caller.write_gate.is_open)

    def close(self) -> None:
        """Do nothing: without its provider, the call ends."""

    def _send(self, message: Any) -> None:
        try:
            self._provider.send(message)
        except RpcError as error:
            self._fail(error)


def argument_streams(
    line: Line, params: Any, caller: Session, provider: Member, fail: Callable[[RpcError], object]
) -> tuple[list[ArgumentStream], bytes | None]:
    """Return the streams among the arguments of a call, and the arguments as they go on (None if as they came).

    Args:
        line: of the request.
        params: its arguments as they were read.
        caller: the session that it came on.
        provider: the member that it goes to.
        fail: ends the call with an error of a stream.

    Raises:
        InvalidParams: one has the name of a stream that is open.
    """
    streams: dict[Any, ArgumentStream] = {}
    tokens: set[str] = set()
    for place, value in params.items() if isinstance(params, dict) else enumerate(params):
        if type(value) is dict and value.get(TAG_KEY) == STREAM_TAG and type(value.get("id")) is str:
            token = value["id"]
            if token in caller.streams.receivers or token in tokens:
                raise InvalidParams(f"Invalid params: the stream {token!r} is open already", {"stream": token})
            tokens.add(token)
            streams[place] = ArgumentStream(caller, token, provider, fail)
    if not streams:
        return [], None
    members: Any = passthrough.members_of(line)
    for place, stream in streams.items():
        members[place] = stream.reference
    return list(streams.values()), passthrough.joined(members)
