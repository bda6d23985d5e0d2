"""Servers of line streams that follow a script, each connection in a thread: they send what no real server would."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import orjson


class ScriptedConnection:
    """A scripted server's end of one connection, which sends and receives single lines."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = bytearray()
        #: The ids of the calls that the client gave up.
        self.cancelled: list[Any] = []

    def read(self) -> Any:
        """The next message; None when the client has closed. Cancels are noted, not given."""
        while (line := self.read_line()) is not None:
            message = orjson.loads(line)
            if not isinstance(message, dict) or message.get("method") != "$/cancelRequest":
                return message
            self.cancelled.append(message["params"]["id"])
        return None

    def read_line(self) -> bytes | None:
        while (end := self._buffer.find(b"\n")) < 0:
            data = self.socket.recv(1 << 20)
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, *messages: Any) -> None:
        self.raw(b"".join(orjson.dumps(message) + b"\n" for message in messages))

    def answer(self, request: dict[str, Any], result: Any) -> None:
        self.say({"jsonrpc": "2.0", "id": request["id"], "result": result})


Script = Callable[[ScriptedConnection], None]


class ScriptedServer:
    """Runs the script once for each connection, in a thread of its own, then closes the connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._lines: list[socket.socket] = []
        self.errors: list[BaseException] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads.append(threading.Thread(target=self._accept))
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            self._script(ScriptedConnection(sock))
        except ConnectionError:
            pass  # the client has gone
        except BaseException as error:
            self.errors.append(error)
        finally:
            sock.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for sock in self._lines:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
