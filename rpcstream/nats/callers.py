"""Callers of a service, as one instance sees them: channels of sessions, and connections for the listener.

Owns how long a caller is known, and what it is told of its calls that take longer. Does not know how messages come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from ..errors import RpcError
from ..limits import Limits
from ..peer.credentials import Credentials
from ..peer.session import Session
from ..transports.message_connection import Trace
from ..wire.buffers import Encoded, first_part
from ..wire.envelope import CANCEL, error_reply, id_in_head
from ..wire.messages import HEAD_SIZE, Message
from .channel import NOTIFICATION, HeldMessages, NatsChannel
from .direct import DirectListener
from .identity import Shown
from .instance_way import InstanceWay
from .link import NO_RESPONDERS, NatsLink
from .payloads import ids_of

#: Seconds after which a caller is told that its call is here, if it is not answered by then: so it knows where to send
#: a cancel, and which instance to watch. Nearly all calls are answered sooner, and need no such message.
TELL_AFTER = 0.02

#: Ids of calls that are kept at least: of more, those that are answered are taken out at once.
BEGUN_MAX = 4096

#: Seconds without a message after which a caller of which nothing is kept is forgotten.
FORGET_AFTER = 60.0

#: Seconds between two looks whether a caller is there for whom something runs.
PROBE_EVERY = 1.0


class Instance(Protocol):
    """An instance of a service, as its callers see it; see `service.NatsService`."""

    link: NatsLink | None
    limits: Limits
    held: HeldMessages
    trace: Trace | None
    listener: DirectListener

    @property
    def is_draining(self) -> bool: ...


class Callers(Protocol):
    """All callers of an instance, as each of them sees them; see `caller_table.CallerTable`."""

    instance: Instance

    def new_session(self) -> Session: ...

    def closed(self, caller: Any) -> None: ...

    def finished(self, way: InstanceWay) -> None: ...


class CallerChannel(NatsChannel):
    """The channel to a caller of any kind, as far as the listener sees them all alike.

    Args:
        callers: all callers of the instance.
        identity: who it is; None where callers are not authenticated.
        shown: what its messages show of it.
        options: of the channel.
    """

    over_limit = False

    def __init__(
        self, callers: Callers, *, identity: Any, shown: Shown | None, target: str, own: str, **options: Any
    ) -> None:
        self.instance = instance = callers.instance
        assert instance.link is not None
        super().__init__(
            instance.link,
            callers.new_session(),
            target=target,
            own=own,
            limits=instance.limits,
            held=instance.held,
            trace=instance.trace,
            on_close=callers.closed,
            **options,
        )
        self.opened = self.last_heard
        self.shown = shown
        self.session.set_identity(identity)

    @property
    def credentials(self) -> Credentials:
        """What the caller shows, without its token; for handlers."""
        if self.shown is None:
            return Credentials(address=self.address)
        return Credentials(nats_user=self.shown.user, nats_account=self.shown.account, address=self.address)

    @property
    def is_known(self) -> bool:
        """As `Connection.is_known`."""
        return self.session.identity is not None


class Caller(CallerChannel):
    """A caller with an inbox: one of our clients, or a program that follows the same rules.

    Args:
        inbox: the subject below which it listens.
        own: the subject of this instance for its session.
        identity: who it is; None where callers are not authenticated.
        shown: what its messages show of it.
    """

    def __init__(
        self, callers: Callers, inbox: str, own: str, *, identity: Any = None, shown: Shown | None = None
    ) -> None:
        address = f"nats:{inbox}"
        super().__init__(
            callers, identity=identity, shown=shown, target=f"{inbox}.m", own=own, address=address, gathers=True
        )
        self.inbox = inbox
        self.number = own.rpartition(".")[2]
        #: The ids of calls that were not answered at once; of those the ones that the caller was not told of.
        self._begun: dict[Any, None] = {}
        self._untold: list[Any] = []
        #: The ids of calls that have come in this turn of the loop.
        self._arrived: list[Any] = []
        #: The caller has not heard of this instance; and the calls that it was told of then.
        self._is_new = True
        self._told: list[int | str] = []
        self._telling: asyncio.TimerHandle | None = None
        self._probing: asyncio.TimerHandle | None = None
        #: How many streams the session has had.
        self._streams = 0
        # The form of the inbox says so.
        self.session.sends_binary = self.session.takes_binary
        self.session.offers_binary = False
        self.way = self.direct = InstanceWay(self, self.instance.limits, self.instance.listener)
        self.way.on_over = callers.finished

    def heard(self) -> None:
        """A message has come from the caller, if only to see whether this instance is there."""
        self.last_heard = self._loop.time()

    def call(self, data: bytes, call_ids: Any, asked: dict[str, Any]) -> None:
        """Handle a message in which there are calls with these ids; or a ticket that asks for a place.

        Args:
            asked: the members of the ticket, as they were checked; none of any other message.
        """
        self.heard()
        is_new, self._is_new = self._is_new, False
        if asked:
            self.way.ask(asked)
            return
        if is_new:
            # Before a handler that may keep the loop: an instance that was not heard of may be taken for gone. nats-py
            # writes it in the next turn, before the messages of this one are handed over.
            self._told = [each for each in call_ids if type(each) in (int, str)]
            self._acknowledge(self._told)
        self._arrived += call_ids
        self.receive(data)
        if not self._gathered:  # it waits
            self.hand_over()

    def hand_over(self) -> None:
        """As `NatsChannel.hand_over`; then see which calls take longer."""
        super().hand_over()
        self._note_arrived()

    def _note_arrived(self) -> None:
        """See which of the calls that have come take longer, and tell the caller of them.

        Of those with streams before any item or credit: the caller answers credit with items, which it cannot send
        before it knows where the call is.
        """
        arrived, self._arrived = self._arrived, []
        session = self.session
        if arrived and (session.running or session.queue or self._held):
            for call_id in arrived:
                if type(call_id) is int or type(call_id) is str:
                    self._begun[call_id] = None
                    self._untold.append(call_id)
        has_opened = session.streams.opened != self._streams
        self._streams = session.streams.opened
        if not self._untold:
            return
        if has_opened:
            self._tell()
        elif self._telling is None:
            self._telling = self._loop.call_later(TELL_AFTER, self._tell)

    def answer(self, payload: bytes) -> None:
        """Send a ticket that is not in the order of messages."""
        self._link.publish(f"{self.inbox}.ticket", payload, self.own)

    def call_placed(self, message: Message, call_ids: Sequence[Any]) -> None:
        """Handle a message with calls that has come by the direct connection."""
        self.heard()
        self._begun.update(dict.fromkeys(call_ids))
        self.deliver(message)

    def take_ticket(self, data: bytes, members: dict[str, Any]) -> None:
        """Take a ticket that came to this very instance."""
        if "failed" in members:  # what waits for that connection does so in vain
            self.way.failed(members["failed"], str(members.get("reason")))
        elif "unused" in members:
            self.way.give_back(members["unused"])
        else:
            self.receive(data)

    def note_cancel(self, read: Any) -> None:
        """A message may cancel a call that has not come by the direct connection."""
        if type(read) is dict and read.get("method") == CANCEL and type(read.get("params")) is dict:
            self.way.cancel(read["params"].get("id"))

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`."""
        if self.session.streams.opened != self._streams:
            self._note_arrived()
        if len(self._begun) > BEGUN_MAX:
            self._forget(messages)
        super().send(messages)

    def _forget(self, messages: list[Encoded]) -> None:
        """Take out the ids of calls that these messages answer: the others are not looked at while much waits."""
        for message in messages:
            head = first_part(message)[:HEAD_SIZE]
            if head.startswith(NOTIFICATION):
                continue
            call_id = id_in_head(head)
            if call_id is None or head[:1] == b"[":
                for each in ids_of(orjson.loads(bytes(message))):
                    self._begun.pop(each, None)
            else:
                self._begun.pop(call_id, None)

    def _tell(self) -> None:
        """Tell the caller which of its calls are here."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        if self.is_over:
            return
        in_progress = self.in_progress()
        here = [call_id for call_id in self._untold if call_id in in_progress]
        self._untold = []
        if not here:
            return
        told, self._told = set(self._told), []
        if untold := [call_id for call_id in here if call_id not in told]:
            self._acknowledge(untold)
        if self._probing is None:
            self._probing = self._loop.call_later(PROBE_EVERY, self._probe_again)

    def _acknowledge(self, call_ids: list[int | str]) -> None:
        """Tell the caller that these calls are here."""
        payload = orjson.dumps(call_ids)
        # Ids may be long.
        is_long = len(payload) > self._link.max_payload
        for each in [orjson.dumps([call_id]) for call_id in call_ids] if is_long else [payload]:
            self._link.publish(f"{self.inbox}.ack", each, self.own)

    def _probe_again(self) -> None:
        """Look whether the caller is there, for as long as something runs for it."""
        self._probing = None
        if not self.is_over and self.session.busy:
            self.probe()
            self._probing = self._loop.call_later(PROBE_EVERY, self._probe_again)

    def in_progress(self) -> set[Any]:
        """The ids of the calls that are not answered."""
        session = self.session
        running = session.running
        if session.queue or self._held or self._arrived:  # they are not looked at before their turn comes
            arrived = [each for each in self._arrived if type(each) in (int, str)]
            return {*self._begun, *arrived, *self.way.call_ids}
        messages = [*running.handlers.values(), *running.batch_members.values()]
        found: set[Any] = {call.call_id for call in running.forwarded if type(call.call_id) in (int, str)}
        for message in messages:
            for each in message if type(message) is list else (message,):
                if type(each) is dict and type(each.get("id")) in (int, str):
                    found.add(each["id"])
        self._begun = dict.fromkeys(found)
        return found.union(self.way.call_ids)

    # -- for the listener (Connection) --------------------------------------------------------------------------------

    def refuse(self, error: RpcError) -> None:
        """As `Connection.refuse`."""
        self._publish(orjson.dumps(error_reply(None, error)))
        self.end(error.message)

    def drain(self) -> None:
        """As `Connection.drain`; not before NATS sends no more calls to the service here.

        Calls to this very instance are still taken: they belong to a call of this one to its caller, which waits.
        """
        if self.instance.is_draining and not self.is_over:
            self.hand_over()
            self.session.close_when_idle()

    @property
    def is_unused(self) -> bool:
        """Nothing is kept of it: should it call again, it is as if it had not called before."""
        return self.session.is_unused and not (self._gathered or self._held or self.way.is_in_use)

    def check(self, now: float) -> str | None:
        """As `Connection.check`: forget a silent caller of which nothing is kept, and look whether others are there."""
        silent = now - self.last_heard
        if silent > FORGET_AFTER and self.is_unused:
            self.end("nothing was heard for long")
        elif silent > PROBE_EVERY and not self.session.is_unused:
            self.probe()
        return None

    def end(self, reason: str) -> None:
        """As `NatsChannel.end`; the caller is told, so that it waits for nothing here."""
        for timer in (self._telling, self._probing):
            if timer is not None:
                timer.cancel()
        self._telling = self._probing = None
        if not self.is_over:
            self._link.publish(self.target, b"", self.own, NO_RESPONDERS)
        super().end(reason)


class MessageCaller(CallerChannel):
    """The caller of one message, which is answered with one: a program that knows NATS, and nothing of us.

    Args:
        reply: the subject for the answer; empty where none is wanted.
        identity, shown: as for `Caller`.
    """

    def __init__(self, callers: Callers, reply: str, *, identity: Any = None, shown: Shown | None = None) -> None:
        address = f"nats:{reply}" if reply else "nats"
        super().__init__(
            callers, identity=identity, shown=shown, target=reply, own="", address=address, sends_lines=False
        )
        self.session.sends_binary = self.session.offers_binary = False

    def call(self, data: bytes, call_ids: Any, asked: dict[str, Any]) -> None:
        """Handle the message. The answer may be there when this returns."""
        self.receive(data)
        if not self.is_over:
            # Nothing more comes: it ends when this is answered.
            self.session.end(self._lost)

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`: only the reply, since nothing else is understood."""
        replies = [each for each in messages if not first_part(each).startswith(NOTIFICATION)]
        if replies:
            super().send(replies)

    def refuse(self, error: RpcError) -> None:
        """As `Connection.refuse`."""
        self.session.send(orjson.dumps(error_reply(None, error)))
        self.session.end(self._lost)

    def drain(self) -> None:
        """As `Connection.drain`: it takes no second message anyway."""

    def probe(self) -> None:
        """As `Channel.probe`. Whether such a caller still waits cannot be asked: each message is an answer to it."""

    def check(self, now: float) -> str | None:
        """As `Connection.check`: how long its call may take is the server's time-out of calls."""
        return None
