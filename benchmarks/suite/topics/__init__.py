"""The topics of the benchmarks by name. Each returns its tables; most are cases whose contenders take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..contenders import Case
from ..measure import Settings, run_case
from ..results import Table
from . import (
    before,
    clients,
    conversation,
    hub,
    idle,
    java,
    large,
    many,
    memory,
    metrics,
    nats,
    small,
    startup,
    web,
    workers,
)

Topic = Callable[[Settings], Sequence[Table]]


def _cases(make: Callable[[], Sequence[Case]]) -> Topic:
    return lambda settings: [run_case(case, settings) for case in make()]


TOPICS: dict[str, Topic] = {
    "small-1": _cases(lambda: small.small(1)),
    "small-32": _cases(lambda: small.small(32)),
    "small-1000": _cases(lambda: small.small(1000)),
    "login": _cases(small.login),
    "pipelined": _cases(many.pipelined),
    "batch": _cases(many.batch),
    "async-handler": _cases(many.async_handler),
    "http": _cases(web.http),
    "page": _cases(web.page),
    "websocket": _cases(web.websocket),
    "array": _cases(large.array),
    "array-unix": _cases(large.array_unix),
    "array-hub": _cases(hub.client_array),
    "array-memory": memory.memory,
    "image": _cases(large.image),
    "photo": _cases(large.photo),
    "clients": _cases(clients.clients),
    "batching": _cases(conversation.batching),
    "streams": _cases(conversation.streams),
    "hub-small": _cases(hub.small),
    "hub-large": _cases(hub.large),
    "hub-publish": _cases(hub.publish),
    "hub-many": _cases(hub.many),
    "idle": idle.idle,
    "startup": startup.startup,
    "metrics": _cases(metrics.metrics),
    "workers": workers.workers,
    "nats": _cases(nats.nats),
    "http-seeds": _cases(small.http_seeds),
    "java": java.java,
    "before": lambda settings: [run_case(case, settings) for case in before.before(settings.against)],
}
