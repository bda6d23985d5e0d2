"""Streams among the arguments of a call that goes through the hub: items one way, credit the other.

Owns the two names of one such stream: callers choose theirs, so at the provider each gets one that the hub has made.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from ..codec import TAG_KEY, payloads
from ..errors import InternalError, InvalidParams, InvalidRequest, RpcError
from ..peer.flow_control import CREDIT_MAX, Item
from ..peer.session import Session
from ..peer.stream_table import argument_key
from ..peer.uploads import STREAM_TAG
from ..wire import envelope
from . import passthrough
from .credit import Credit
from .members import Member
from .passthrough import Line

#: The tag of a stream, as it is written most often.
STREAM_TEXT = b'"stream"'


class Upload:
    """One stream; a `Sink` at the caller's connection, a `Source` at the provider's.

    Args:
        token: its name at the caller.
        fail: called with the error that the call ends with, should it be one for the stream.

    Attributes:
        broke_off: it has ended with an error.
    """

    __slots__ = ("_allowed", "_caller", "_client", "_credit", "_fail", "_there", "broke_off", "token")

    def __init__(self, caller: Session, token: str, client: Member, fail: Callable[[RpcError], object]) -> None:
        self.token = token
        self._caller = caller
        self._client = client
        self._fail = fail
        # Not to be guessed: whatever else goes to the provider may have the name of a stream in it, too, and would get
        # the items of this one.
        self._there = f"{client.session.flows.new_token()}-{secrets.token_hex(8)}"
        self._allowed = 0
        self._credit = Credit(caller, {"stream": token})
        self.broke_off = False

    @property
    def reference(self) -> bytes:
        """What stands for it among the arguments, at the provider; as JSON."""
        return passthrough.text_of({TAG_KEY: STREAM_TAG, "id": self._there})

    def open(self) -> None:
        """The call is on its way: items may come, and credit."""
        self._client.session.flows.enter_outflow(argument_key(self._there), self)
        self._caller.flows.enter_inflow(self.token, self)

    def over(self) -> None:
        """The call is over: what still comes is dropped."""
        self._credit.is_over = True
        self._client.session.flows.close_outflow(argument_key(self._there), self)
        coming = self._caller.flows.coming
        if coming.get(self.token) is self:
            del coming[self.token]

    # -- what comes from the caller -----------------------------------------------------------------------------------

    def put(self, item: Item) -> None:
        """An item has come: it goes on, if it was permitted."""
        params, line = item
        if self._credit.is_over:
            return
        if not self._allowed:
            self._fail(InvalidRequest(data={"reason": "the stream had more items than were permitted (credit)"}))
            return
        depth = self._caller.limits.max_depth
        if "value" not in params or not payloads.is_json(line) or envelope.is_deeper(line, depth):
            self._fail(InvalidParams("Invalid params: an item of a stream cannot be read"))
            return
        self._allowed -= 1
        line = passthrough.line_of(line, {"params": params})
        self._send(passthrough.carrier(line, envelope.ITEM, "stream", passthrough.text_of(self._there)))

    def end(self, error: Exception | None = None) -> None:
        """No more items come."""
        if not self._credit.is_over:
            self._credit.is_over = True
            self.broke_off = error is not None
            told = error if error is None or isinstance(error, RpcError) else InternalError("The stream broke off")
            try:
                message = passthrough.text_of(envelope.end(self._there, told))
            except TypeError:  # the data of the error is nested too deep
                message = passthrough.text_of(envelope.end(self._there, InternalError("The stream broke off")))
            self._send(message)

    def clear(self) -> None:
        """Nothing waits here."""

    # -- what comes from the provider ---------------------------------------------------------------------------------

    def permit(self, n: int) -> None:
        """It takes `n` more items."""
        self._allowed = min(self._allowed + n, CREDIT_MAX)
        self._credit.give(n, now=self._caller.flows.is_free)

    def close(self) -> None:
        """It takes no more: the call ends with it."""

    def _send(self, message: Any) -> None:
        try:
            self._client.send(message)
        except RpcError as error:
            self._fail(error)


def uploads_in(
    line: Line, params: Any, caller: Session, client: Member, fail: Callable[[RpcError], object]
) -> tuple[list[Upload], bytes | None]:
    """The streams among the arguments of a call, and the arguments as they go on.

    Args:
        params: the arguments as they were read.

    Raises:
        InvalidParams: one has the name of a stream that is open.
    """
    uploads: dict[Any, Upload] = {}
    tokens: set[str] = set()
    for place, value in params.items() if isinstance(params, dict) else enumerate(params):
        if type(value) is dict and value.get(TAG_KEY) == STREAM_TAG and type(value.get("id")) is str:
            token = value["id"]
            if token in caller.flows.coming or token in tokens:
                raise InvalidParams(f"Invalid params: the stream {token!r} is open already", {"stream": token})
            tokens.add(token)
            uploads[place] = Upload(caller, token, client, fail)
    if not uploads:
        return [], None
    members: Any = passthrough.members_of(line)
    for place, upload in uploads.items():
        members[place] = upload.reference
    return list(uploads.values()), passthrough.joined(members)
