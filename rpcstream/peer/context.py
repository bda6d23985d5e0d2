"""The context of a call, which a handler gets as a parameter: `ctx: Context`.

`Context` is what handlers use, from whatever thread they run in; `CallContext` adds what the code that runs the call
needs.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ..errors import CallCancelled
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from .blocking import Bridge
from .credentials import Credentials
from .deadline import now
from .remote import BlockingPeer, Peer
from .session import Session

_OWN_MEMBERS = frozenset(("jsonrpc", "id", "method", "params"))


class Context:
    """One call, as its handler sees it. Callers do not see a parameter with this hint.

    Attributes:
        method: the remote name.
        request_id: the caller's id for this call; None for a notification (and for the id null).
        identity: the identity that `authenticate` returned for the caller ("token" with `Server(token=…)`); None
            without authentication.
        is_notification: True if the caller gets no reply.
        in_batch: True if the call arrived in a batch.
        address: the caller's address: "127.0.0.1:50412".
        headers: the headers of the HTTP request or the WebSocket handshake, by lower-case names; otherwise empty.
        deadline: when the caller stops waiting, in seconds of `time.monotonic`; None without a deadline.
    """

    def __init__(
        self, session: Session, message: dict[str, Any], *, timeout: float | None, is_async: bool, batch: Any
    ) -> None:
        self.method: str = message["method"]
        self.request_id: Any = message.get("id")
        self.identity: Any = session.identity
        self.batch = batch
        self.is_notification = "id" not in message
        self.in_batch = batch is not None
        self.headers: Mapping[str, str] = session.headers
        self.deadline = None if timeout is None else now() + timeout
        self._message = message
        self.session = session
        # Made here, in the event loop, since a handler may be in a thread when it first sends something.
        self._marshaller = session.calls.marshaller
        self.address = self._marshaller.address
        self._loop_thread = threading.get_ident()
        self.bridge = None if is_async else Bridge(session.loop)
        self._is_cancelled = self._is_over = False
        self._latest: Encoded | None = None
        self.afterwards: list[Callable[[], object]] = []

    @cached_property
    def peer(self) -> Any:
        """The caller: `await ctx.peer.confirm("…")` calls a method that the caller offers.

        In a handler that runs in a thread, omit the `await`: `ctx.peer.confirm("…")`. A sync handler in the event loop
        can only notify.
        """
        return Peer(self.session) if self.bridge is None else BlockingPeer(self.session, self.bridge)

    @property
    def credentials(self) -> Credentials:
        """The credentials of the connection, without the token.

        The names of a certificate, the pid, uid and gid at a Unix socket, the address.
        """
        shown = getattr(self.session.channel, "credentials", None)
        return shown if isinstance(shown, Credentials) else Credentials(address=self.address)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The members of the request beside those of JSON-RPC: "timeout", "traceparent", and the caller's own."""
        return MappingProxyType({name: value for name, value in self._message.items() if name not in _OWN_MEMBERS})

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, not below 0; None if there is none."""
        return None if self.deadline is None else max(self.deadline - now(), 0.0)

    @property
    def cancelled(self) -> bool:
        """Whether the caller has stopped waiting, by a cancel, a timeout or a lost connection.

        For handlers in threads, which cannot be interrupted; other handlers are cancelled.
        """
        return self._is_cancelled or self.remaining == 0.0

    def check(self) -> None:
        """Raise CallCancelled if the caller has stopped waiting; for loops in handlers that run in threads."""
        if self.cancelled:
            raise CallCancelled()

    def progress(self, value: Any, total: float | None = None, message: str | None = None) -> None:
        """Report progress to the caller: `progress(0.5)`, or `progress(3, 10, "reading")`, which shows as a bar.

        The caller's `on_progress=` gets the value, which may be anything. With a total or a message, the value is
        `{"done": value, "total": total, "message": message}`, without missing members.

        If values come too fast, only the latest is sent; the last value is always sent, before the result.
        Notifications have no progress.

        Raises:
            EncodeError, MessageTooLarge: the value cannot be sent.
        """
        if self.request_id is None or self._is_cancelled or self._is_over:
            return
        if total is not None or message is not None:
            whole = {"done": value, "total": total, "message": message}
            value = {name: part for name, part in whole.items() if part is not None}
        params = {"token": self.request_id, "value": value}
        report = self._marshaller.encode(envelope.request(envelope.PROGRESS, params), self.method)
        if type(report) is AttachedMessage:
            report.secure()  # it waits until the end of this turn, and the handler may go on with its arrays
        if threading.get_ident() == self._loop_thread:
            self._send_soon(report)
        else:
            self.session.loop.call_soon_threadsafe(self._send_soon, report)

    def after_reply(self, callback: Callable[[], object]) -> None:
        """Call a function after the reply to this call is written to the connection.

        So the caller reads what the function sends after the reply: a handler can return the id of a subscription, and
        then send its first notifications. In a batch, the function runs after the one reply to all calls; over HTTP,
        after the response; for a notification, after the handler. Functions run in the event loop, in order, and must
        not block. Their exceptions are logged.

        They do not run if the call fails, is cancelled or times out, or if the caller is gone.

        Args:
            callback: a plain function without parameters.

        Raises:
            TypeError: `callback` is an async function. Pass a plain function that starts a task.
            RuntimeError: the handler has ended.
        """
        if inspect.iscoroutinefunction(callback):
            raise TypeError("after_reply takes a plain function: it may start a task, but is not awaited itself")
        if self._is_over:
            raise RuntimeError("the handler has ended: call after_reply before it returns")
        self.afterwards.append(callback)

    def _send_soon(self, message: Encoded) -> None:
        if self._is_over:
            return
        if self._latest is None:
            self.session.write_gate.when_open(self._send_latest)
        self._latest = message

    def _send_latest(self) -> None:
        if self._latest is not None:
            message, self._latest = self._latest, None
            self.session.send(message)


class CallContext(Context):
    """A `Context` for the code that runs the call, and for rpcstream's own methods.

    Attributes:
        session: the conversation that the call is part of.
        batch: the batch that the call came in; None if it came alone.
        bridge: waits in the event loop for what a sync handler's thread wants; None for an async handler.
        afterwards: what is to be called when the reply is on its way.
    """

    def cancel(self) -> None:
        """Note that the caller has stopped waiting; what the handler's thread waits for is cancelled."""
        self._is_cancelled = True
        if self.bridge is not None:
            self.bridge.cancel()

    def finish(self) -> None:
        """Note that the handler is done, and its reply comes next."""
        self._send_latest()
        self._is_over = True
