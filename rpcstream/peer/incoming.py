"""Messages as they come in: parsing, what becomes of those that cannot be parsed, and the offer of binary frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ..codec import payloads
from ..codec.attachments import CutLine
from ..codec.payloads import OverLimit
from ..errors import InternalError, InvalidRequest, ParseError
from ..wire import envelope, json_scan
from ..wire.buffers import Encoded
from ..wire.envelope import HEAD_SIZE, BinaryFrame, Message, Oversize
from .pending import PendingCall


class _Offer(PendingCall):
    """The request `rpc.hello` of a session. An end of an older version answers with an error: then it is sent text."""

    __slots__ = ("_session",)
    method = envelope.HELLO

    def __init__(self, session: Any) -> None:
        self._session = session

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        result = reply.get("result")
        if type(result) is dict and result.get("binary") == 1:
            use_binary(self._session, result.get("shm"))

    def fail(self, error: Exception) -> None:
        """Text is sent for as long as the connection lasts, which is not for long."""


def offer_binary(session: Any) -> None:
    """Say that binary frames are read here, and ask the peer whether it reads some; its answer is not waited for.

    Not said before there is a large payload on the connection, so that peers without any never see it.
    """
    session.offers_binary = False
    if session.channel is not None and session.is_lasting:
        params: dict[str, Any] = {"binary": 1}
        if session.shared is not None and (memory := session.shared.offer()) is not None:
            params["shm"] = memory
        call_id = session.pending.add(_Offer(session))
        session.reply(orjson.dumps(envelope.request(envelope.HELLO, params, call_id=call_id)))


def use_binary(session: Any, memory: Any = None) -> dict[str, Any] | None:
    """Send binary frames from now on, by the shared memory that the peer has described; gives that of this end."""
    session.sends_binary = True
    session.calls.marshaller.attach_payloads()
    return session.shared.accept(memory) if session.shared is not None else None


#: Parses a long message that came in a session; results and errors as of `payloads.parse`.
ParseLong = Callable[[bytes, Any], tuple[Any, bytes]]


def parse_long(line: bytes, session: Any) -> tuple[Any, bytes]:
    """Parse a message of `LONG` bytes or more: as `payloads.parse`.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
        OverLimit: it is over `max_values` or `max_json_size`.
    """
    return payloads.parse(line, session.limits)


def content_of(session: Any, line: Any) -> tuple[Any, bytes]:
    """The message and its line, of one that is long or was parsed before.

    Raises:
        orjson.JSONDecodeError: it is not JSON, or was refused: `unparsed` says what becomes of it.
    """
    if isinstance(line, BinaryFrame):
        message, line = frame_content(line)
    elif isinstance(line, Oversize):
        raise orjson.JSONDecodeError("too long", "", 0)
    else:
        message, line = session.parse_long(line, session)
    if session.offers_binary and isinstance(line, CutLine) and line.has_payloads:
        offer_binary(session)
    return message, line


def frame_content(frame: BinaryFrame) -> tuple[Any, bytes]:
    """The message of a frame, and its line. Raises JSONDecodeError if the frame was refused."""
    if frame.refusal is not None:
        raise orjson.JSONDecodeError("a refused frame", "", 0)
    content: tuple[Any, bytes] = frame.content
    return content


def unparsed(session: Any, line: Message, error: orjson.JSONDecodeError) -> tuple[list[bytes], Encoded | None]:
    """What a message comes to that was not parsed, being too large, refused, or not JSON.

    Returns:
        The messages that stand in it one after the other, to be handled; and an error reply. Neither if it begins like
        a reply: the call that waits for it fails, and nothing is answered.
    """
    if isinstance(error, OverLimit):
        line = error.stand_in(line)  # type: ignore[arg-type]  # it was read
    refuse, pending = session.dispatch.refuse, session.pending
    if isinstance(line, Oversize):
        too_long = envelope.refusal_of(line, session.limits.max_message_size, side=session.side)
        return [], None if pending.settled_unread(line.head, too_long) else refuse(line, too_long)
    if isinstance(line, BinaryFrame):
        return [], _refuse_frame(session, line)
    values = json_scan.split_values(line)
    if values and session.splits_values:
        return values, None
    reason = envelope.unreadable(line, error)
    # A client ends the connection, and with it all calls.
    broken = InternalError("The reply is not JSON", reason.data)
    if session.side == "server" and pending.settled_unread(bytes(line[:HEAD_SIZE]), broken):
        return [], None
    return [], refuse({"id": None if values else envelope.id_of_request(line)}, reason)


def _refuse_frame(session: Any, frame: BinaryFrame) -> Encoded | None:
    """The error reply to a frame that was refused; if it is a reply, the call that waits for it fails."""
    message, error = frame.content[0], frame.refusal
    assert error is not None
    call_id = message.get("id") if type(message) is dict else None
    if any(map(envelope.is_reply, message if type(message) is list else [message])):
        if isinstance(error, InvalidRequest | ParseError):  # of the peer's
            error = InternalError("The reply cannot be read", error.data)
        session.pending.settle(envelope.error_reply(call_id, error), b"")
        return None
    if type(message) is not dict or ("id" not in message and isinstance(error, InvalidRequest)):
        message = {"id": None}  # it may not have been a notification
    return session.dispatch.refuse(message, error)  # type: ignore[no-any-return]
