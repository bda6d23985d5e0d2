"""Hubs that find each other on NATS, and have a session for each other one.

Owns the connection to NATS, joining and joining again, which hubs are there, and the channel of the session with each.
What is said on these sessions is `OtherHubs`'. Imported where a hub joins NATS, and nowhere else. Needs the extra
`rpcstream[nats]`.

Subjects of a group, each below `rpc.<group>.$hub.`:

* `all`: a hub is here, said when it has joined, and every `SAY_EVERY` seconds.
* `<id>.hello`: the same to one hub; or that a session begins, with its number (`open`).
* `<id>.<from>.<number>`: messages of a session to the hub with this id; with `.part` and `.last` behind it, the pieces
  of one that is longer than a message of NATS; with `.taken`, how many bytes the sender has taken. The reply subject is
  that of the sender, where NATS says if there is no such hub any more.

Ids are made anew for each connection to NATS. Of two hubs the one with the lesser id opens the session.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from ..errors import ConnectFailed
from ..limits import Limits
from ..nats.channel import HeldMessages
from ..nats.link import NO_RESPONDERS, REJOINING, NatsLink, NatsMessage, is_unanswerable
from ..nats.options import NatsOptions
from ..nats.subjects import of_hubs
from ..observe.limited_log import LimitedLog
from ..peer.pending import PendingCall
from ..peer.session import Session
from ..text import get_logger
from ..wire import envelope
from .channel import WINDOW_TOTAL, HubChannel
from .other_hubs import OtherHubs
from .remote_members import OtherHub

log = get_logger("rpcstream.hub")

#: Called with "receive" or "send" and the bytes of each message.
Trace = Callable[[str, bytes], None]

#: Other hubs in a group, at most: each has a session with each, and hears of each change.
MAX_HUBS = 63

#: Seconds after which a hub says again that it is there; one that was lost by mistake is found again by then.
SAY_EVERY = 5.0

#: Seconds between two looks at a hub that has not answered calls, whether it is there at all. NATS says that at once.
LOOK_EVERY = 1.0

#: How many times, `SAY_EVERY` apart, a hub that is there may leave a ping unanswered.
UNANSWERED = 3

#: Seconds that a hub which stops has for what it has still to send to others.
FAREWELL = 2.0

#: What this version of the messages between hubs is called.
_VERSION = 1

_ID = re.compile(r"[0-9a-f]{16}\Z")


class NatsGroup:
    """The group of hubs on NATS that one hub has joined; a `ConnectionSource` of its listener.

    Args:
        options: how to connect.
        name: of the group.
        hubs: takes the sessions with other hubs.
        make_session: makes one.
        takes_binary: binary frames are read here.
        limits: of the hub.
        trace: sees every message.
    """

    def __init__(
        self,
        options: NatsOptions,
        name: str,
        hubs: OtherHubs,
        *,
        make_session: Callable[[], Session],
        takes_binary: bool,
        limits: Limits,
        trace: Trace | None,
    ) -> None:
        self.name = name
        self.hub = ""
        #: The id on the connection before, which others may not know to be over.
        self._before: str | None = None
        self._options = options
        self._hubs = hubs
        self._make_session = make_session
        self._takes_binary = takes_binary
        self._limits = limits
        self._trace = trace
        self._held = HeldMessages(limits.max_held_total)
        self._link: NatsLink | None = None
        self._reason: str | None = "not joined yet"
        self._is_leaving = False
        self._own = ""
        #: By the id of the other hub.
        self._channels: dict[str, HubChannel] = {}
        self._rejoining: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._log = LimitedLog(log)

    def stats(self) -> dict[str, Any]:
        """What `rpc.stats` says of it."""
        told: dict[str, Any] = {"connected": self._link is not None, "group": self.name, "id": self.hub}
        if self._link is not None:
            told["server"] = self._link.server
        return told if self._reason is None else {**told, "reason": self._reason}

    # -- joining ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join; where NATS cannot be reached now, go on trying.

        Raises:
            ConnectFailed: NATS does not take this login, or does not permit it what hubs need.
        """
        self._hubs.events.start()
        try:
            await self._join()
        except ConnectFailed as error:
            if error.is_permanent:
                raise
            self._cut_off(error.reason)

    async def _join(self) -> None:
        link = await NatsLink.connect(self._options)
        denied: list[str] = []
        link.on_denied = lambda what, subject: denied.append(f"the {what} to {subject!r}")
        self.hub = secrets.token_hex(8)
        self._own = of_hubs(self.name, self.hub, "")
        self._hubs.events.hub = self.hub
        try:
            await link.subscribe(f"{self._own}>", partial(self._received, link))
            await link.subscribe(of_hubs(self.name, "all"), partial(self._said, link))
            await link.flush()
            self._say(link)
            await link.flush()
        except ConnectionError as error:
            await link.close()
            raise ConnectFailed(str(error), address=self._options.address) from error
        except BaseException:
            await link.close()
            raise
        reason = link.reason
        if denied:
            reason = f"the NATS server does not permit this login {denied[0]}"
        if reason is not None:
            self._end_channels(reason)
            await link.close()
            raise ConnectFailed(reason, address=self._options.address, is_permanent=bool(denied))
        self._link, self._reason = link, None
        link.on_denied = self._denied
        link.on_full = self._full
        link.on_lost = self._cut_off
        self._looking = asyncio.get_running_loop().create_task(self._look())
        log.info("joined the hubs %r at %s as %s", self.name, self._options.address, self.hub)

    def _cut_off(self, reason: str) -> None:
        """There is no connection to NATS: the hub goes on with its own clients, and tries to join again."""
        if self._link is not None:
            self._link, self._before = None, self.hub
        self._stop_looking()
        count = len(self._channels)
        self._end_channels(f"the connection to NATS was lost: {reason}")
        if self._is_leaving:
            return
        self._reason = reason
        log.warning(
            "cut off from NATS at %s: %s; %d other hubs and their clients cannot be reached. Trying again",
            self._options.address,
            reason,
            count,
        )
        self._rejoining = asyncio.get_running_loop().create_task(self._rejoin())

    def _end_channels(self, reason: str) -> None:
        for channel in list(self._channels.values()):
            channel.end(reason)

    async def _rejoin(self) -> None:
        failures = 0
        while not self._is_leaving:
            failures += 1
            await asyncio.sleep(REJOINING.pause(failures))
            try:
                await self._join()
            except ConnectFailed as error:
                self._reason = error.reason
                self._log.warning(None, "not joined to NATS at %s: %s", self._options.address, error.reason)
            else:
                return

    def _denied(self, what: str, subject: str) -> None:
        self._log.warning(None, "NATS does not permit this login the %s to %s", what, subject)

    def _full(self, is_full: bool) -> None:
        for channel in list(self._channels.values()):
            channel.set_link_full(is_full)

    # -- which hubs are there -----------------------------------------------------------------------------------------

    def _say(self, link: NatsLink, to: str | None = None, **more: Any) -> None:
        """Say to all hubs, or one, that this one is here."""
        subject = of_hubs(self.name, "all") if to is None else of_hubs(self.name, to, "hello")
        told = {"version": _VERSION, "hub": self.hub, "binary": self._takes_binary, **more}
        if self._before is not None:
            told["before"] = self._before
        link.publish(subject, orjson.dumps(told))

    def _said(self, link: NatsLink, message: NatsMessage) -> None:
        """Another hub is there: it gets a session, or is asked to open one."""
        told = _read(message.data)
        if told is None or told["hub"] == self.hub or self._is_leaving:
            return
        hub, before = told["hub"], told.get("before")
        if type(before) is str and (channel := self._channels.get(before)) is not None:
            channel.end(f"the hub has joined again, as {hub}")
        number = told.get("open")
        if type(number) is str and _ID.match(number):
            if (channel := self._channels.get(hub)) is not None:
                channel.end("the hub has begun another session")
            self._open(link, hub, number, told)
        elif hub in self._channels or not self._has_room(hub):
            pass
        elif self.hub < hub:
            number = secrets.token_hex(8)
            self._say(link, hub, open=number)
            self._open(link, hub, number, told)
        else:
            self._say(link, hub)

    def _has_room(self, hub: str) -> bool:
        if len(self._channels) < MAX_HUBS:
            return True
        self._log.warning(None, "the hub %s is left alone: there are %d others already", hub, MAX_HUBS)
        return False

    def _open(self, link: NatsLink, hub: str, number: str, told: dict[str, Any]) -> None:
        """Begin the session with another hub."""
        if not self._has_room(hub):
            return
        session = self._make_session()
        session.sends_binary = self._takes_binary and told.get("binary") is True
        session.offers_binary = False
        channel = self._channels[hub] = HubChannel(
            link,
            session,
            self._limits,
            target=of_hubs(self.name, hub, self.hub, number),
            own=f"{self._own}{hub}.{number}",
            address=f"hub:{hub}",
            held=self._held,
            trace=self._trace,
            on_close=self._closed,
        )
        self._share_window()
        channel.connect()
        channel.other = self._hubs.add(session, hub)

    def _closed(self, channel: HubChannel) -> None:
        for hub, each in list(self._channels.items()):
            if each is channel:
                del self._channels[hub]
                self._share_window()
                if self._is_leaving and self._link is not None:
                    self._link.publish(channel.target, b"", headers=NO_RESPONDERS)
                if channel.has_left:
                    log.info("the hub %s has left", hub)
                elif not self._is_leaving:
                    log.warning("the hub %s is gone: %s", hub, channel.reason)

    def _share_window(self) -> None:
        """Each other hub gets its share of what hubs may send one ahead; all of them have about as many others."""
        for channel in self._channels.values():
            channel.window = WINDOW_TOTAL // len(self._channels)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _received(self, link: NatsLink, message: NatsMessage) -> None:
        """A message to this hub."""
        hub, _, rest = message.subject[len(self._own) :].partition(".")
        if hub == "hello" and not rest:
            self._said(link, message)
            return
        number, _, piece = rest.partition(".")
        channel = self._channels.get(hub)
        if channel is None or not channel.own.endswith(f".{number}"):
            if message.reply.startswith(of_hubs(self.name, "")) and not is_unanswerable(message):
                link.publish(message.reply, b"", headers=NO_RESPONDERS)
        elif is_unanswerable(message):
            channel.end("it does not answer any more")
        elif piece == "taken":
            channel.take_acknowledged(message.data)
        elif piece:
            channel.take_part(message.data, is_last=piece == "last")
        elif message.data:
            channel.receive(message.data)

    # -- whether they are there ---------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look after the sessions, and say that this hub is there, again and again."""
        said = 0.0
        loop = asyncio.get_running_loop()
        while (link := self._link) is not None:
            await asyncio.sleep(LOOK_EVERY)
            is_due = loop.time() - said >= SAY_EVERY
            if is_due:
                said = loop.time()
                self._say(link)
            for channel in list(self._channels.values()):
                if is_due:
                    self._check(channel)
                elif channel.session.pending:
                    channel.probe()

    def _check(self, channel: HubChannel) -> None:
        """Ask a hub whether it is there: NATS knows if it is gone, but not if it does nothing."""
        other, session = channel.other, channel.session
        if other is None or session.peer_is_leaving:
            channel.probe()
            return
        if other.checks >= UNANSWERED:
            channel.end(f"it has not answered for {UNANSWERED * SAY_EVERY:g} s")
            return
        other.checks += 1
        call_id = session.pending.add(_Check(other))
        session.send(orjson.dumps(envelope.request("rpc.ping", call_id=call_id)))

    def _stop_looking(self) -> None:
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Tell the other hubs that this one reads no more calls; those that it has read are answered."""
        self._is_leaving = True
        if self._rejoining is not None:
            self._rejoining.cancel()
        for channel in list(self._channels.values()):
            channel.session.go_away("the hub is stopping")

    async def wait(self) -> None:
        """As `ConnectionSource.wait`: nothing is to be waited for."""

    async def close(self) -> None:
        """End the sessions, and leave NATS."""
        self.stop()
        self._stop_looking()
        await self._hubs.close()
        link = self._link
        if link is not None:
            try:
                async with asyncio.timeout(FAREWELL):
                    while any(each.session.busy or each.is_sending for each in self._channels.values()):
                        await asyncio.sleep(0.01)
            except TimeoutError:
                log.warning("stopping: calls of other hubs were not answered in time")
        self._end_channels("the hub stops")
        if link is not None:
            await link.close()
        self._link, self._is_leaving, self._reason = None, False, "not joined yet"
        if self._rejoining is not None:
            await asyncio.wait({self._rejoining})
            self._rejoining = None


class _Check(PendingCall):
    """A ping to another hub."""

    __slots__ = ("_other",)

    method = "rpc.ping"

    def __init__(self, other: OtherHub) -> None:
        self._other = other

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self._other.checks = 0

    def fail(self, error: Exception) -> None:
        """Do nothing: the session is over."""


def _read(data: bytes) -> dict[str, Any] | None:
    """Read what a hub says of itself; None if it makes no sense."""
    try:
        told = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if type(told) is not dict or type(told.get("hub")) is not str or not _ID.match(told["hub"]):
        return None
    return told if told.get("version") == _VERSION else None
