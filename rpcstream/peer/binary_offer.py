"""The agreement of two ends to send each other binary frames (`rpc.hello`), and to share memory for their payloads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from ..wire import envelope
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
            use(self._session, result)

    def fail(self, error: Exception) -> None:
        """Text is sent for as long as the connection lasts, which is not for long."""


def offer(session: Any) -> None:
    """Say that binary frames are read here, and ask the peer whether it reads some; its answer is not waited for.

    Not said before there is a large payload on the connection, so that peers without any never see it.
    """
    session.offers_binary = False
    if session.channel is not None and session.is_lasting:
        params = {"binary": 1}
        if session.shared is not None and (ring := session.shared.offer()) is not None:
            params["shm"] = ring
        call_id = session.pending.add(_Offer(session))
        session.reply(orjson.dumps(envelope.request(envelope.HELLO, params, call_id=call_id)))


def use(session: Any, answer: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Send binary frames from now on, by shared memory if the answer of the peer permits."""
    session.sends_binary = True
    session.calls.marshaller.attach_payloads()
    if session.shared is not None and session.side == "client":
        session.shared.accept(answer.get("shm"))


def accept(session: Any, ring: Any = None) -> dict[str, Any] | None:
    """The peer reads binary frames, and offers this shared memory; gives that of this end, for the answer."""
    if not session.takes_binary:
        return None
    use(session)
    return session.shared.answer(ring) if session.shared is not None else None
