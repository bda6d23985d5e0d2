"""How a hub reads long messages: of those that go on, no more than whom they are for.

Owns which those are. Their long strings are neither decoded nor looked at; whoever sends them on checks that they are
strings (`payloads.is_json`). Everything else is read as by any server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..codec import payloads
from ..codec.payloads import CutLine, Payload
from ..peer.session import Session
from ..wire import envelope
from .passthrough import PASSED
from .relay import Relay
from .relayed_streams import STREAM_TEXT, ArgumentStream


class Reader:
    """Reads the messages of all connections of a hub.

    Args:
        routes: the methods whose calls go on.
    """

    def __init__(self, routes: Mapping[str, object]) -> None:
        self._routes = routes

    def read(self, line: bytes, session: Session) -> tuple[Any, bytes]:
        """As `Codec.parse`; in what goes on every long string is a `Payload`.

        Raises:
            orjson.JSONDecodeError: it is not JSON.
        """
        most = session.limits.max_values
        found = payloads.outline(line, most)
        if found is not None and self._goes_on(*found, session):
            return found
        return payloads.parse(line, most)

    def _goes_on(self, message: Any, line: CutLine, session: Session) -> bool:
        if type(message) is not dict:
            return False
        method = message.get("method")
        if method is None:
            return "error" not in message and type(session.pending.find(message.get("id"))) is Relay
        if type(method) is not str or any(type(member) is Payload for member in message.values()):
            return False
        if method in self._routes:
            # A stream among the arguments must be seen, also one whose tag is written with escapes.
            return not line.has_escapes and line.count(STREAM_TEXT) == ("stream" in message)
        params = message.get("params")
        if method in PASSED:
            members = params.items() if type(params) is dict else enumerate(params if type(params) is list else ())
            return not any(type(value) is Payload and name not in PASSED[method] for name, value in members)
        return "id" not in message and type(params) is dict and _is_carried(method, params, session)


def _is_carried(method: str, params: dict[str, Any], session: Session) -> bool:
    """Is this item, or progress, one of a call that goes through the hub?"""
    if method == envelope.PROGRESS:
        return type(session.pending.find(params.get("token"))) is Relay
    if method != envelope.ITEM:
        return False
    stream = params.get("stream")
    if stream is None:
        return type(session.pending.find(params.get("id"))) is Relay
    return type(stream) is str and type(session.flows.receivers.get(stream)) is ArgumentStream
