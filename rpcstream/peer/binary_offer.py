"""The agreement of two ends to send each other binary frames (`rpc.hello`), and to share memory for their payloads."""

from __future__ import annotations

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
            use(self._session, result.get("shm"))

    def fail(self, error: Exception) -> None:
        """Text is sent for as long as the connection lasts, which is not for long."""


def offer(session: Any) -> None:
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


def use(session: Any, memory: Any = None) -> dict[str, Any] | None:
    """Send binary frames from now on, by the shared memory that the peer has described; gives that of this end."""
    session.sends_binary = True
    session.calls.marshaller.attach_payloads()
    return session.shared.accept(memory) if session.shared is not None else None
