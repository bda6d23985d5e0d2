"""Waiting for an answer of NATS itself, which may instead deny the subject, or lose the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import nats.errors

from ..errors import NotPermitted
from .link import NatsLink

Answer = TypeVar("Answer")


async def ask(link: NatsLink, request: Coroutine[Any, Any, Answer], *subjects: str, what: str = "publish") -> Answer:
    """Await a request of nats-py, which by itself would not notice that NATS denies it.

    Args:
        link: the connection that the request uses.
        request: the coroutine.
        subjects: what the request publishes or subscribes to.
        what: "publish" or "subscription".

    Raises:
        NotPermitted: NATS does not permit this login one of the subjects, or its inbox.
        ConnectionError: the connection has ended.
        nats.errors.Error: as the request raises it.
    """
    failed: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    inboxes = link.inbox.rpartition(".")[0] + "."
    asked = {each.lower(): each for each in subjects}  # nats-py reports subjects in lower case

    def on_denied(denied: str, subject: str) -> None:
        is_answer = denied == "subscription" and subject.startswith(inboxes)
        subject = subject if is_answer else asked.get(subject.lower(), "") if denied == what else ""
        if subject and not failed.done():
            verb = "publish" if denied == "publish" else "subscribe"
            reason = f"NATS does not permit this login to {verb} to {subject}"
            failed.set_exception(NotPermitted(data={"reason": reason}))

    def on_ended(reason: str) -> None:
        if not failed.done():
            failed.set_exception(ConnectionError(reason))

    link.denied.append(on_denied)
    link.ended.append(on_ended)
    answer = asyncio.ensure_future(request)
    try:
        await asyncio.wait({answer, failed}, return_when=asyncio.FIRST_COMPLETED)
        return await (failed if failed.done() else answer)
    except nats.errors.Error as error:
        if not link.is_open:
            raise ConnectionError(link.reason) from error
        raise
    finally:
        link.denied.remove(on_denied)
        link.ended.remove(on_ended)
        failed.cancel()
        answer.cancel()
