"""The channel of a session over NATS, between two ends that know each other's subject."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import orjson

from ..errors import ConnectionLost, ParseError, RpcError
from ..limits import Limits
from ..peer.credentials import Credentials
from ..peer.frame_admission import FrameAdmission
from ..peer.session import Session
from ..transports.message_connection import Trace, trace_all, trace_sent
from ..transports.stream import LineStream
from ..wire import envelope
from ..wire.binary_frame import MARK, FrameError, parts_of_frame, whole_frame
from ..wire.buffers import AttachedMessage, Encoded, first_part, json_of
from ..wire.envelope import HEAD_SIZE, Message, Oversize
from .link import NatsLink
from .messages import no_way, read_payload, refusal_of

#: How a message begins that is a binary frame.
_MARK = bytes((MARK,))

#: Bytes of messages that are joined to one payload, as lines, at most.
JOIN_MAX = 64 * 1024

#: The beginning of each notification, such as progress and items, which come before the reply of their call.
NOTIFICATION = b'{"jsonrpc":"2.0","method"'


class Home(Protocol):
    """What the channels of one instance or client share."""

    limits: Limits
    trace: Trace | None

    @property
    def link(self) -> NatsLink | None: ...


class NatsChannel:
    """A channel of one session (`peer.inflight.Channel`).

    Args:
        home: carries the messages, and traces them.
        session: gets the messages, and is told when it is connected and lost.
        target: the subject of the other end; empty: nothing is sent.
        own: the subject of this end, the reply subject of all messages.

    Attributes:
        carrier: the name of the transport, for metrics and logs.
        reads_lines: a payload may have several messages, as lines.
        sends_lines: the other end reads several messages in one payload.
        gathers: messages that arrive in one turn of the loop are handled together, and their replies are sent together.
        detour: sends all messages by the direct connection; None while NATS carries them.
    """

    carrier = "nats"
    reads_lines = False
    sends_lines = True
    gathers = False

    def __init__(self, home: Home, session: Session, *, target: str, own: str, address: str) -> None:
        assert home.link is not None
        self.address = address
        self.reason: str | None = None
        self.session = session
        self.target = target
        self.own = own
        self._link = home.link
        self._limits = home.limits
        self._max_size = home.limits.max_message_size
        self._trace = home.trace
        self._gathered: list[Message] = []
        self._frames = FrameAdmission(session)
        self.is_over = False
        self.detour: Detour | None = None
        session.ledger.can_pause = False
        self._loop = asyncio.get_running_loop()
        self.last_heard = self._loop.time()

    @property
    def credentials(self) -> Credentials:
        """The credentials of the other end."""
        return Credentials(address=self.address)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle the payload of a message."""
        if self.is_over:
            return
        if data[:1] == _MARK:
            self._take_frame(data)
            return
        lines = [line for line in data.split(b"\n") if line] if self.reads_lines and b"\n" in data else [data]
        messages: list[Message] = list(lines)
        if len(data) > self._max_size:
            limit = self._max_size
            messages = [line if len(line) <= limit else Oversize(len(line), line[:HEAD_SIZE], limit) for line in lines]
        self._deliver(messages)

    def _deliver(self, messages: list[Message]) -> None:
        """Give messages to the session, at once or at the end of this turn."""
        if self.gathers and not self._gathered:
            self._loop.call_soon(self.hand_over)
        self._gathered += messages
        if not self.gathers:
            self.hand_over()

    def receive_directly(self, messages: list[Message]) -> None:
        """Handle messages that came by the direct connection."""
        self._gathered += messages
        self.hand_over()

    def hand_over(self) -> None:
        """Give the gathered messages to the session."""
        messages, self._gathered = self._gathered, []
        if not messages or self.is_over:
            return
        if self._trace is not None:
            trace_all(self._trace, "receive", messages)
        self.session.intake.receive(messages)

    def _take_frame(self, data: bytes) -> None:
        try:
            message = whole_frame(data, self._frames, self._max_size)
        except FrameError as error:
            refusal = ParseError(data={"reason": str(error)})
            payload = refusal_of(read_payload(data, self._limits)[0], refusal, self._link.max_payload)
            if payload is None:  # it was no call: the session cannot go on without it
                self.abort(f"a message was not taken: {refusal.message}")
            else:
                self.session.send(payload)
        else:
            self._deliver([message])

    # -- for the session (Channel) ------------------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`. Short messages are sent in one payload if the other end reads lines."""
        if self.is_over or not self.target:
            return
        if self._trace is not None:
            trace_sent(self._trace, messages, as_frames=self.session.sends_binary)
        self._send_all(messages)

    def _send_all(self, messages: list[Any]) -> None:
        if self.detour is not None:  # perhaps since the message before
            self.detour.send(messages)
        elif len(messages) <= 1:
            for message in messages:
                self._send_one(message)
        elif self._are_lines(messages):
            self.publish(b"\n".join(messages))
        else:
            half = len(messages) // 2
            self._send_all(messages[:half])
            self._send_all(messages[half:])

    def _are_lines(self, messages: list[Encoded]) -> bool:
        """Whether messages fit into one payload, as lines."""
        room = min(JOIN_MAX, self._link.max_payload)
        is_short = self.sends_lines and sum(map(len, messages)) + len(messages) <= room
        return is_short and all(type(message) is bytes for message in messages)

    def _send_one(self, message: Encoded) -> None:
        if not self.has_published(message):
            self._send_large(message)

    def has_published(self, message: Encoded) -> bool:
        """Send a message by NATS; return False, without sending it, if it is over `max_payload`."""
        payload = payload_of(message, self.session, self._link.max_payload)[0]
        if payload is not None:
            self.publish(payload)
        return payload is not None

    def publish(self, payload: bytes) -> None:
        """Send a payload by NATS."""
        self._link.publish(self.target, payload, self.own)

    def _send_large(self, message: Encoded) -> None:
        """Send a message over `max_payload`, or refuse it."""
        self.refuse_large(message, "this message can take none")

    def refuse_large(self, message: Encoded, why: str) -> None:
        """Refuse a message over `max_payload`, because there is no direct connection."""
        self.send_instead(message, no_way(len(message), self._link.max_payload, why))

    def take_control(self, params: dict[str, Any]) -> None:
        """Take a control message about this session.

        It has one of these members:

        * `has`: an instance has the calls with these ids; `alive`: it has handled all that was sent to it before.
        * `wanted`: an instance has a large message, and the client is to open a direct connection; `failed`: the client
          could not, with the reason.
        """

    def pause(self) -> None:
        """As `Channel.pause`: NATS cannot pause, so requests wait in the session, within its limits."""

    def resume(self) -> None:
        """As `Channel.resume`."""

    def close(self) -> None:
        """As `Channel.close`: the other end learns it with its next probe."""
        self.end(self.reason or "the session is over")

    def abort(self, reason: str) -> None:
        """As `Channel.abort`."""
        self.reason = self.reason or reason
        self.end(self.reason)

    def probe(self) -> None:
        """As `Channel.probe`: NATS returns the message if the other end is gone."""
        if not self.is_over and self.target:
            self._link.publish(self.target, b"", self.own)

    def end(self, reason: str) -> None:
        """End the session."""
        if self.is_over:
            return
        self.is_over = True
        self.reason = self.reason or reason
        self._frames.give_up()
        if self.detour is not None:
            self.detour.over()
        if self.session.channel is self:
            self.session.lost(self._lost)
        self.closed()

    def closed(self) -> None:
        """The session is over."""

    def _lost(self, method: str) -> ConnectionLost:
        return ConnectionLost(self.reason or "the session is over", method=method, address=self.address)

    def send_instead(self, message: Encoded, error: RpcError) -> None:
        """Report that a message cannot be sent: to the other end, or for a call to the caller here."""
        head = first_part(message)[:HEAD_SIZE]
        if envelope.is_reply_head(head):
            self.publish(orjson.dumps(envelope.error_reply(envelope.id_in_head(head), error)))
            return
        read = orjson.loads(json_of(message))
        params = read.get("params") if type(read) is dict else None
        if type(params) is dict and read["method"] == envelope.ITEM:
            token = params.get("stream")
            # An item of a result ends the call for its caller.
            told = envelope.error_reply(params.get("id"), error) if token is None else envelope.end(token, error)
            self.publish(orjson.dumps(told))
        elif type(read) is dict and (call := self.session.pending.find(read.get("id"))) is not None:
            self.session.pending.discard(read["id"])
            call.fail(error)


class Detour:
    """Sends the messages of a channel by a direct connection, from the first message over `max_payload` on.

    The client asks the instance with a call of `rpc.direct`, the last message that it sends to the session by NATS. The
    instance answers with its address and a secret. Large messages, and all that must not overtake them, wait at both
    ends until the client has connected and shown the secret. So nothing overtakes what was sent by NATS.

    Attributes:
        stream: the connection; None until it is made, while messages wait.
    """

    def __init__(self, channel: NatsChannel) -> None:
        self.stream: LineStream | None = None
        self._channel = channel
        self._held: list[Encoded] = []

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`."""
        if self.stream is not None:
            self.stream.send(messages)
            return
        for message in messages:
            self._hold(message)

    def add(self, message: Encoded) -> None:
        """Send a message after those that wait; not twice in a row."""
        if self.stream is not None:
            self.stream.send([message])
        elif self._held[-1:] != [message]:
            self._held.append(message)

    def _hold(self, message: Encoded) -> None:
        if type(message) is AttachedMessage:
            message.secure()
        self._held.append(message)

    def begin(self, stream: LineStream) -> None:
        """The connection is made."""
        self.stream = stream
        held, self._held = self._held, []
        for message in held:
            stream.send([message])

    def fail(self, why: str) -> None:
        """No connection can be made: send the waiting messages by NATS, or refuse them."""
        self._channel.detour = None
        held, self._held = self._held, []
        for message in held:
            if not self._channel.has_published(message):
                self._channel.refuse_large(message, why)

    def over(self) -> None:
        """The session is over."""
        self._held = []
        if self.stream is not None:
            self.stream.close()


def payload_of(message: Encoded, session: Session, limit: int) -> tuple[bytes | None, int]:
    """The payload for a message, or None if it has more bytes than the limit; and its size."""
    size = len(message)
    if type(message) is AttachedMessage:
        if not session.sends_binary:
            size = message.text_size
        elif size <= limit:
            payload = b"".join(parts_of_frame(message))
            if session.counters is not None:
                session.counters.frames_sent += 1
            return payload if len(payload) <= limit else None, len(payload)
    if size > limit:
        return None, size
    return message if type(message) is bytes else bytes(message), size
