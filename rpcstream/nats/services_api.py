"""NATS's services API (ADR-32): what an instance says of itself at `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson

from .. import __version__
from ..errors import BY_CODE
from ..observe.limited_log import LimitedLog
from ..observe.metrics import CallMetrics, MethodCalls
from ..text import get_logger
from .link import NatsLink, Subscription
from .messages import NO_INBOX, QUEUE
from .protocol import UNSENT_MAX, NatsMessage

log = get_logger("rpcstream.nats")

PREFIX = "$SRV"

#: The form of a version (https://semver.org).
_SEMVER = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)

#: What may not stand in the name of an endpoint.
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True)
class ServicesApi:
    """Answers the requests of NATS's services API for one instance.

    Attributes:
        name: of the service.
        instance: the id of this instance.
        version: of the server.
        endpoints: gives the subscription of each method, by the method's name.
        metrics: of the calls of this process; None: they are not counted, and the numbers are 0.
    """

    name: str
    instance: str
    version: str
    description: str
    endpoints: Callable[[], Mapping[str, Subscription]]
    metrics: CallMetrics | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    _log: LimitedLog = field(default_factory=lambda: LimitedLog(log, each=1))

    async def start(self, link: NatsLink) -> None:
        """Answer on this connection until it ends. Raises ConnectionError if it has ended."""
        for verb, more in (("PING", dict), ("INFO", self._info), ("STATS", self._stats)):
            for end in ("", f".{self.name}", f".{self.name}.{self.instance}"):
                link.subscribe(f"{PREFIX}.{verb}{end}", partial(self._answer, link, verb.lower(), more))

    def _answer(self, link: NatsLink, verb: str, more: Callable[[], dict[str, Any]], message: NatsMessage) -> None:
        if not message.reply or message.reply.startswith(NO_INBOX):
            return
        if link.unsent > UNSENT_MAX:
            self._log.warning(None, "requests of NATS's services API are left unanswered: there are too many")
            return
        document = {
            "type": f"io.nats.micro.v1.{verb}_response",
            "name": self.name,
            "id": self.instance,
            "version": self.version if _SEMVER.fullmatch(self.version) else "0.0.0",
            "metadata": {"rpcstream": __version__, "openrpc": "rpc.discover"},
            **more(),
        }
        link.publish(message.reply, orjson.dumps(document))

    def _info(self) -> dict[str, Any]:
        endpoints = [
            {**_endpoint(name, subscription), "metadata": {"method": _text(name)}}
            for name, subscription in self.endpoints().items()
        ]
        return {"description": _text(self.description), "endpoints": endpoints}

    def _stats(self) -> dict[str, Any]:
        calls = {} if self.metrics is None else self.metrics.by_method
        endpoints = [
            {**_endpoint(name, subscription), **_numbers(calls.get(name) or MethodCalls())}
            for name, subscription in self.endpoints().items()
        ]
        return {"started": self.started.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "endpoints": endpoints}


def _endpoint(method: str, subscription: Subscription) -> dict[str, Any]:
    name = _NOT_IN_NAME.sub("_", method) or "_"  # several may have one name; their subjects tell them apart
    return {"name": name, "subject": subscription.subject, "queue_group": QUEUE}


def _numbers(calls: MethodCalls) -> dict[str, Any]:
    code, errors, spent = calls.last_error, calls.errors.total(), round(calls.seconds * 1e9)
    requests = calls.results + errors
    last = "" if code is None else f"{code}: {BY_CODE[code].MESSAGE}" if code in BY_CODE else str(code)
    return {
        "num_requests": requests,
        "num_errors": errors,
        "last_error": last,
        "processing_time": spent,
        "average_processing_time": spent // requests if requests else 0,
    }


def _text(text: str) -> str:
    return text.encode(errors="replace").decode()  # a surrogate that stands alone is no text
