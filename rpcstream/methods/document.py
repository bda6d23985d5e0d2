"""The document of `rpc.discover` as it is sent: written once, in short slices, and kept until the methods change.

Owns when it is written again, and its variant for older tools. Does not know what is said of a method, nor how it is
asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

from ..codec import Codec
from ..errors import EncodeError
from .discovery import Description
from .openrpc_compat import OlderDocument, older_head
from .registry import MethodRegistry

#: Seconds that the loop spends on writing before others have their turn.
_SLICE = 0.005


class OpenRpcDocument:
    """The OpenRPC document of the methods in a registry.

    Args:
        registry: of the methods.
        codec: writes it.
        head: gives the members of the document besides methods, components and servers; see `discovery.head_of`.
        servers: gives the Server Objects; none: the document says nothing of them.
    """

    def __init__(
        self,
        registry: MethodRegistry,
        *,
        codec: Codec,
        head: Callable[[], dict[str, Any]],
        servers: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self._registry = registry
        self._codec = codec
        self._head = head
        self._servers = servers
        #: Methods and components as JSON, for the version of the registry that stands beside it; by `compat`.
        self._written: dict[str | None, tuple[int, bytes]] = {}
        self._described: tuple[int, dict[str, Any]] | None = None
        #: Whole documents with the head and the tail that they were written with, by `compat`.
        self._texts: dict[str | None, tuple[Any, bytes]] = {}
        #: What writes, by event loop.
        self._writers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Writer] = WeakKeyDictionary()

    @property
    def version(self) -> int:
        """Counts the changes of the methods."""
        return self._registry.version

    def head(self, compat: str | None = None) -> dict[str, Any]:
        """The members that say what the service is."""
        return self._head() if compat is None else older_head(self._head())

    def tail(self, servers: list[dict[str, Any]] | None = None) -> bytes:
        """What ends a document: where the server is reached, and the brace.

        Args:
            servers: Server Objects; None: those where it listens.
        """
        known = self._servers() if servers is None else servers
        return b',"servers":%b}' % self._codec.dumps(known) if known else b"}"

    def described(self) -> dict[str, Any]:
        """Methods and components as plain data; made at once, for a few methods."""
        if self._described is None or self._described[0] != self.version:
            description = Description(self._codec, len(self._registry))
            methods = [description.method(self._registry[name]) for name in sorted(self._registry)]
            self._described = self.version, {"methods": methods, "components": description.components()}
        return self._described[1]

    def whole(self) -> dict[str, Any]:
        """The document as plain data, without the servers; made at once."""
        return {**self.head(), **self.described()}

    async def text(self, compat: str | None = None) -> bytes:
        """The document as JSON.

        Args:
            compat: "1.2.6" for the variant that older tools read.
        """
        if not self._is_written(compat):
            loop = asyncio.get_running_loop()
            writer = self._writers.get(loop)
            if writer is None:
                writer = self._writers[loop] = _Writer(self._parts)
            async with writer.lock:
                if not self._is_written(compat):
                    self._written[compat] = await writer.write(compat, self.version)
        parts = (self.head(compat), self._written[compat], self.tail())
        if compat not in self._texts or self._texts[compat][0] != parts:
            head, (_, written), tail = parts
            self._texts[compat] = parts, b"%b,%b%b" % (self._codec.dumps(head)[:-1], written, tail)
        return self._texts[compat][1]

    def _is_written(self, compat: str | None) -> bool:
        return compat in self._written and self._written[compat][0] == self.version

    def _parts(self, compat: str | None) -> Iterator[bytes]:
        """Write methods and components piece by piece; methods that come meanwhile are not among them."""
        methods = dict(self._registry)
        description = Description(self._codec, len(methods))
        older = None if compat is None else OlderDocument(self._head()["info"]["title"])
        between = b'"methods":['
        for name in sorted(methods if older is None else filter(older.has, methods)):
            described = description.method(methods[name])
            yield between + self._dumps(described if older is None else older.method(described))
            between = b","
        components = description.components()
        yield (between if between != b"," else b"") + b'],"components":{"schemas":{'
        schemas: Mapping[str, Any] = components.pop("schemas")
        between = b""
        for name, schema in schemas.items() if older is None else older.schemas(schemas):
            yield b"%b%b:%b" % (between, self._dumps(name), self._dumps(schema))
            between = b","
        yield b"},%b" % self._dumps(components)[1:]

    def _dumps(self, value: Any) -> bytes:
        try:
            return self._codec.dumps(value)
        except EncodeError:  # half of a surrogate pair, in the docstring of a class
            return self._codec.dumps(_sendable(value))


class _Writer:
    """Writes documents in one event loop, in slices.

    Args:
        parts: writes a document piece by piece.

    Attributes:
        lock: held by the one who writes, so that others that ask meanwhile get the same document.
    """

    def __init__(self, parts: Callable[[str | None], Iterator[bytes]]) -> None:
        self.lock = asyncio.Lock()
        self._parts = parts
        #: What is being written, by `compat`: the version when it was begun, what is left, and what there is. It stays
        #: when its caller is gone, so that the next one goes on with it.
        self._begun: dict[str | None, tuple[int, Iterator[bytes], list[bytes]]] = {}

    async def write(self, compat: str | None, version: int) -> tuple[int, bytes]:
        """Write a document of the methods as they are at this version; returns that with the text."""
        if compat not in self._begun or self._begun[compat][0] != version:
            self._begun[compat] = version, self._parts(compat), []
        _, left, done = self._begun[compat]
        until = perf_counter() + _SLICE
        for part in left:
            done.append(part)
            if perf_counter() > until:
                await asyncio.sleep(0)
                until = perf_counter() + _SLICE
        del self._begun[compat]
        return version, b"".join(done)


def _sendable(value: Any) -> Any:
    """Plain data with what has no form in UTF-8 escaped."""
    if isinstance(value, dict):
        return {_sendable(name): _sendable(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(member) for member in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
