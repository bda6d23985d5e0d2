"""NATS's services API: what an instance says of itself at `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS` (ADR-32).

Owns the documents, and how many bytes of them are sent. They are made when they are asked for, out of what is counted
anyway. Knows neither messages of JSON-RPC nor sessions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from .. import __version__
from ..errors import BY_CODE
from ..observe.limited_log import LimitedLog
from ..observe.metrics import CallMetrics, MethodCalls
from ..text import get_logger
from .subjects import NO_INBOX, QUEUE

log = get_logger("rpcstream.nats")

PREFIX = "$SRV"

#: What is said in place of a version that has another form than SemVer.
_UNVERSIONED = "0.0.0"

#: Bytes of documents that may be sent at once, and that are added to these each second. A monitor that asks all
#: instances of a service once a second gets its answers, from servers of thousands of methods too; asking in a loop
#: does not keep a server from its calls. What is asked beyond that is not answered.
BURST, RATE = 8 * 1024 * 1024, 1024 * 1024

#: Bytes that an answer counts for at least.
_LEAST = 1024

#: Bytes of a message that are left for its subject and headers.
_MARGIN = 1024

#: The form of a version (https://semver.org).
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_SHORT_VERSION = re.compile(r"v?((0|[1-9]\d*)(\.(0|[1-9]\d*))?)", re.ASCII)

#: What may not stand in the name of an endpoint.
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


class Message(Protocol):
    """A message of NATS, as it is looked at here."""

    reply: str


class Subscribed(Protocol):
    """A subscription, as it is looked at here: its subject, and how many messages it has got."""

    @property
    def subject(self) -> str: ...

    @property
    def received(self) -> int: ...


class Link(Protocol):
    """The connection to NATS, as it is used here."""

    @property
    def max_payload(self) -> int: ...

    def publish(self, subject: str, payload: bytes) -> None: ...

    async def subscribe(self, subject: str, on_message: Callable[[Any], object]) -> object: ...


@dataclass(frozen=True, kw_only=True)
class ServiceDescription:
    """What an instance says of itself.

    Attributes:
        name: of the service.
        instance: the id of this instance.
        version: of the server; SemVer is made of another form.
        takes_binary: it reads binary frames.
    """

    name: str
    instance: str
    version: str
    description: str = ""
    takes_binary: bool = True
    started: datetime = field(default_factory=lambda: datetime.now(UTC))


class ServicesApi:
    """Answers the requests of NATS's services API for one instance.

    Args:
        about: what it says of itself.
        endpoints: gives the subscription of each method, by the method's name.
        metrics: of the calls of this process; None: they are not counted, and the requests that came by NATS are all
            that is told.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        about: ServiceDescription,
        *,
        endpoints: Callable[[], Mapping[str, Subscribed]],
        metrics: CallMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._about = about
        self._endpoints = endpoints
        self._metrics = metrics
        self._budget = _Budget(clock)
        self._log = LimitedLog(log, each=1)
        #: The subscriptions when they were last looked at, and how many requests those before them got.
        self._known: dict[str, Subscribed] = {}
        self._earlier: dict[str, int] = {}
        version = semver(about.version)
        metadata = {
            "rpcstream": __version__,
            "openrpc": "rpc.discover",
            "binary": "1" if about.takes_binary else "0",
            "stats": "requests" if metrics is None else "calls",
        }
        if version != about.version:
            metadata["version"] = about.version
        self._head = {"name": about.name, "id": about.instance, "version": version, "metadata": metadata}

    async def start(self, link: Link) -> None:
        """Answer on this connection, until it ends. Its methods are subscribed to before.

        Raises:
            ConnectionError: it has ended.
        """
        about = self._about
        self._look()
        for verb, make in (("PING", self.ping), ("INFO", self.info), ("STATS", self.stats)):
            answer = self._answering(link, make)
            for end in ("", f".{about.name}", f".{about.name}.{about.instance}"):
                await link.subscribe(f"{PREFIX}.{verb}{end}", answer)

    def _answering(self, link: Link, make: Callable[[int], bytes]) -> Callable[[Message], None]:
        def answer(message: Message) -> None:
            if not message.reply or message.reply.startswith(NO_INBOX):
                return
            if not self._budget.is_left:
                self._log.warning(None, "requests of NATS's services API are left unanswered: there are too many")
                return
            document = make(link.max_payload - _MARGIN)
            self._budget.take(len(document))
            link.publish(message.reply, document)

        return answer

    # -- the documents ------------------------------------------------------------------------------------------------

    def ping(self, size: int) -> bytes:
        """That the instance is there."""
        return orjson.dumps({"type": "io.nats.micro.v1.ping_response", **self._head})

    def info(self, size: int) -> bytes:
        """Its methods, as many as there is room for in so many bytes; the metadata says how many are left out."""
        made = (
            orjson.dumps(
                {
                    "name": endpoint_name(name),
                    "subject": subscription.subject,
                    "queue_group": QUEUE,
                    "metadata": {"method": _text(name)},
                }
            )
            for name, subscription in self._endpoints().items()
        )
        return self._document("info", {"description": _text(self._about.description)}, made, size)

    def stats(self, size: int) -> bytes:
        """How often its methods were called, in the same way."""
        self._look()
        started = self._about.started.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        made = (
            orjson.dumps({**self._numbers(name, subscription), "queue_group": QUEUE})
            for name, subscription in self._endpoints().items()
        )
        return self._document("stats", {"started": started}, made, size)

    def _document(self, kind: str, more: dict[str, Any], endpoints: Iterable[bytes], size: int) -> bytes:
        made = list(endpoints)
        head: dict[str, Any] = {"type": f"io.nats.micro.v1.{kind}_response", **self._head, **more}
        kept = _fitting(made, size - len(orjson.dumps(head)))
        if kept < len(made):
            head["metadata"] = {**head["metadata"], "endpoints_left_out": str(len(made) - kept)}
        return orjson.dumps(head)[:-1] + b',"endpoints":[' + b",".join(made[:kept]) + b"]}"

    def _numbers(self, name: str, subscription: Subscribed) -> dict[str, Any]:
        told: dict[str, Any] = {"name": endpoint_name(name), "subject": subscription.subject}
        if self._metrics is None:
            return {**told, **_numbers(self._earlier.get(name, 0) + subscription.received)}
        calls = self._metrics.by_method.get(name)
        return {**told, **(_numbers(0) if calls is None else _numbers_of(calls))}

    def _look(self) -> None:
        """Take the counts of subscriptions over whose connection has ended."""
        present = dict(self._endpoints())
        self._earlier = {name: self._earlier.get(name, 0) for name in present}
        for name, before in self._known.items():
            if name in present and present[name] is not before:
                self._earlier[name] += before.received
        self._known = present


class _Budget:
    """Bytes that may be sent: `BURST` at once, and `RATE` more each second. What is sent last may exceed it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._seen = clock()

    @property
    def is_left(self) -> bool:
        now = self._clock()
        self._left, self._seen = min(BURST, self._left + (now - self._seen) * RATE), now
        return self._left > 0

    def take(self, size: int) -> None:
        self._left -= max(size, _LEAST)


# -- names and versions -----------------------------------------------------------------------------------------------


def endpoint_name(method: str) -> str:
    """A name that an endpoint may have: letters, digits, `-` and `_`; other characters become `_`.

    Several methods may so have one name, which ADR-32 permits; their subjects tell them apart.
    """
    return _NOT_IN_NAME.sub("_", method) or "_"


def semver(version: str) -> str:
    """The version in the form of SemVer.

    "2" and "2.1" get zeros; any other text stands behind 0.0.0, as the name of a build.
    """
    if _SEMVER.fullmatch(version):
        return version
    short = _SHORT_VERSION.fullmatch(version)
    if short is not None:
        return short[1] + (".0" if "." in short[1] else ".0.0")
    if version.startswith("v") and _SEMVER.fullmatch(version[1:]):
        return version[1:]
    build = ".".join(part for part in re.sub(r"[^0-9A-Za-z.-]", "-", version).split(".") if part)
    return f"{_UNVERSIONED}+{build}" if build else _UNVERSIONED


# -- parts of documents -----------------------------------------------------------------------------------------------


def _fitting(pieces: list[bytes], size: int) -> int:
    """How many of these, with commas between them, have room beside the brackets and a note about the others."""
    left = size - 64
    for count, piece in enumerate(pieces):
        left -= len(piece) + 1
        if left < 0:
            return count
    return len(pieces)


def _numbers(requests: int, errors: int = 0, last_error: str = "", seconds: float = 0.0) -> dict[str, Any]:
    spent = round(seconds * 1e9)
    return {
        "num_requests": requests,
        "num_errors": errors,
        "last_error": last_error,
        "processing_time": spent,
        "average_processing_time": spent // requests if requests else 0,
    }


def _numbers_of(calls: MethodCalls) -> dict[str, Any]:
    errors = dict(calls.errors)
    code = calls.last_error
    last = "" if code is None else f"{code}: {BY_CODE[code].MESSAGE}" if code in BY_CODE else str(code)
    numbers = _numbers(calls.count + calls.refused, sum(errors.values()), last, calls.seconds)
    return {**numbers, "data": {"errors": errors}} if errors else numbers


def _text(text: str) -> str:
    return text.encode(errors="replace").decode()  # a surrogate that stands alone is no text
