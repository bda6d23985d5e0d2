"""MCP on standard input and output: lines, as on every line stream.

Only messages go through the two file descriptors. What the program prints goes to standard error, and what it reads is
empty.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..transports.stream import LineStream
from ..wire.framing import LineFramer
from .session import McpSession

#: Bytes that are copied at a time.
_COPY = 256 * 1024


class StdioStream(LineStream):
    """The line stream of a program that was started by an agent's host.

    Args:
        on_end: called when the host sends nothing more.
        options: as for `LineStream`.
    """

    def __init__(self, session: McpSession, *, on_end: Callable[[], object], **options: Any) -> None:
        super().__init__(session, **options)
        self._on_end = on_end

    def _make_framer(self) -> LineFramer:
        # Every line is answered: MCP has no binary frames, and an empty line does not end the requests.
        return LineFramer(max_size=self._limits.max_message_size, reception=self._reception, skips_blank=True)

    def eof_received(self) -> bool:
        """The host has closed the input: what is in flight is answered, for as long as a server that stops waits."""
        stays = super().eof_received()
        self._on_end()
        return stays

    def _connect_session(self) -> None:
        # Not lasting, as a POST is not: nothing is asked of the client, and nothing is sent that is no answer.
        self.session.connected(self, is_lasting=False)

    def check(self, now: float) -> str | None:
        """As `Connection.check`: there are no time limits, since a host may leave its tools alone for days."""
        return None

    def probe(self) -> None:
        """As `Connection.probe`. Not needed: a host that is gone has closed the standard output, too."""


class StdioPipe:
    """Joins standard input and output to a socket, for as long as the program runs.

    While it is open `sys.stdout` and what other code writes to descriptor 1 go to standard error, and standard input is
    empty for all other code: one line of a stray `print` would end the conversation.

    Attributes:
        sock: the end of the program; it is the caller's.
    """

    def __init__(self) -> None:
        self.sock, self._pipe = socket.socketpair()
        self._input, self._output = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdout.flush()  # what was printed before, and not written yet
        self._threads = [
            threading.Thread(target=work, name=f"rpcstream-{work.__name__.strip('_')}", daemon=True)
            for work in (self._read, self._write)
        ]

    def start(self) -> None:
        """Begin to copy."""
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float) -> None:
        """Wait until all that was sent has been written, for `timeout` seconds at most; restore the descriptors."""
        if self._threads[1].is_alive():
            self._threads[1].join(timeout)
        sys.stdout.flush()
        os.dup2(self._input, 0)
        os.dup2(self._output, 1)
        self._pipe.close()
        self.sock.close()

    def _read(self) -> None:
        """Copy from standard input to the socket."""
        try:
            while data := os.read(self._input, _COPY):
                self._pipe.sendall(data)
            self._pipe.shutdown(socket.SHUT_WR)
        except OSError:  # the program has ended the conversation
            pass

    def _write(self) -> None:
        """Copy from the socket to standard output; where that is closed, end the conversation."""
        try:
            while data := self._pipe.recv(_COPY):
                view: Any = memoryview(data)
                while view:
                    view = view[os.write(self._output, view) :]
        except OSError:
            try:
                self._pipe.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
