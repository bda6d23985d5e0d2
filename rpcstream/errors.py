"""Every error that rpcstream raises or puts on the wire, and the one table of codes.

    Exception
    ├── RpcError                      an error object of JSON-RPC: code, message, data
    │   ├── ParseError        -32700  the peer's: its bytes are not JSON
    │   ├── InvalidRequest    -32600  the peer's: JSON, but not a request
    │   ├── MethodNotFound    -32601  the caller's
    │   ├── InvalidParams     -32602  the caller's
    │   ├── InternalError     -32603  the handler's: an exception it did not mean to show
    │   ├── MessageTooLarge   -32001  the sender's
    │   ├── ServerBusy        -32002  nobody's: try later
    │   ├── DeadlineExceeded  -32003  the handler took longer than the call allowed (also a TimeoutError)
    │   ├── BatchTooLarge     -32004  the caller's
    │   ├── NotAuthenticated  -32005  the caller's
    │   ├── NotPermitted      -32006  the caller's
    │   ├── ProviderGone      -32007  the hub lost the program that offered the method
    │   └── CallCancelled     -32800  somebody cancelled the call
    ├── ConnectionError (built in)
    │   ├── ConnectFailed             nobody answered at the address
    │   └── ConnectionLost            the connection ended before the answer came
    ├── TimeoutError (built in)
    │   └── CallTimeout               the caller stopped waiting
    └── TypeError (built in)
        ├── EncodeError               a value has no form on the wire
        └── RegistrationError         a function cannot be a remote method as it is

Knows nothing of sockets, JSON text or methods. Codes: JSON-RPC 2.0, section 5.1, and the wire page, "Error codes".
"""

from __future__ import annotations

import reprlib
from typing import Any, ClassVar


class RpcError(Exception):
    """An error object of JSON-RPC 2.0 (section 5.1).

    A handler raises it to answer with an error of its own; a client raises it for an error reply.

    Attributes:
        code: the number on the wire. -32768 to -32000 is reserved for the protocol.
        message: one sentence.
        data: anything the codec can write, or None for "no data".
        method: at a client, the method that was called.
        address: at a client, the server that answered.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data
        self.method: str | None = None
        self.address: str | None = None

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        if self.data is not None:
            text += f": {_shortened(self.data)}"
        return text + _place(self.method, self.address)

    def to_wire(self) -> dict[str, Any]:
        """The error object for a reply; `data` is left out when it is None."""
        wire: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            wire["data"] = self.data
        return wire


class _KnownError(RpcError):
    """An error of the table: its class fixes the code and a default message."""

    CODE: ClassVar[int]
    MESSAGE: ClassVar[str]

    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(self.CODE, self.MESSAGE if message is None else message, data)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.data)


class ParseError(_KnownError):
    """The bytes are not a JSON value."""

    CODE, MESSAGE = -32700, "Parse error"


class InvalidRequest(_KnownError):
    """The JSON value is not a request object."""

    CODE, MESSAGE = -32600, "Invalid Request"


class MethodNotFound(_KnownError):
    """No method has this name."""

    CODE, MESSAGE = -32601, "Method not found"


class InvalidParams(_KnownError):
    """The parameters do not fit the method; `data` names parameter, path and what was expected."""

    CODE, MESSAGE = -32602, "Invalid params"


class InternalError(_KnownError):
    """The handler failed; what happened is in the server's log, and in `data` when it runs with debug on."""

    CODE, MESSAGE = -32603, "Internal error"


class MessageTooLarge(_KnownError):
    """A message is over the limit; `data` has limit, size (bytes) and whose limit it is."""

    CODE, MESSAGE = -32001, "Message too large"


class ServerBusy(_KnownError):
    """The server takes no more work at present."""

    CODE, MESSAGE = -32002, "Server busy"


class DeadlineExceeded(_KnownError, TimeoutError):
    """The server gave up: the handler took longer than its own or the caller's time-out."""

    CODE, MESSAGE = -32003, "Deadline exceeded"


class BatchTooLarge(_KnownError):
    """A batch has more members than the server takes."""

    CODE, MESSAGE = -32004, "Batch too large"


class NotAuthenticated(_KnownError):
    """The caller has not said who it is."""

    CODE, MESSAGE = -32005, "Not authenticated"


class NotPermitted(_KnownError):
    """The caller is known and may not do this."""

    CODE, MESSAGE = -32006, "Not permitted"


class ProviderGone(_KnownError):
    """The program that offered the method left the hub."""

    CODE, MESSAGE = -32007, "Provider gone"


class CallCancelled(_KnownError):
    """The call was cancelled."""

    CODE, MESSAGE = -32800, "Cancelled"


BY_CODE: dict[int, type[_KnownError]] = {
    known.CODE: known
    for known in (
        ParseError,
        InvalidRequest,
        MethodNotFound,
        InvalidParams,
        InternalError,
        MessageTooLarge,
        ServerBusy,
        DeadlineExceeded,
        BatchTooLarge,
        NotAuthenticated,
        NotPermitted,
        ProviderGone,
        CallCancelled,
    )
}


def error_from_wire(error: object, *, method: str | None = None, address: str | None = None) -> RpcError:
    """The exception for the `error` member of a reply, of the subclass that its code has.

    A malformed error object does not raise: it becomes an InternalError that carries it as `data`.
    """
    result: RpcError
    if isinstance(error, dict) and type(code := error.get("code")) is int:
        message, data = error.get("message"), error.get("data")
        text = message if isinstance(message, str) else "(the error has no message)"
        known = BY_CODE.get(code)
        result = RpcError(code, text, data) if known is None else known(text, data)
    else:
        result = InternalError("The peer sent a malformed error", error)
    result.method, result.address = method, address
    return result


class _PlacedError(Exception):
    """An error of the connection that says where and during what it happened."""

    def __init__(self, reason: str, *, method: str | None = None, address: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.method = method
        self.address = address

    def __str__(self) -> str:
        return self.reason + _place(self.method, self.address)


class ConnectFailed(_PlacedError, ConnectionError):
    """No connection could be made to the address. The call was not sent."""


class ConnectionLost(_PlacedError, ConnectionError):
    """The connection ended while the call was pending. Whether it was carried out is not known."""


class CallTimeout(_PlacedError, TimeoutError):
    """The caller's time-out passed before the answer came. Whether the call was carried out is not known."""


class EncodeError(TypeError):
    """A value has no form on the wire; the text names its type."""


class RegistrationError(TypeError):
    """A function cannot be registered as it is; the text names the method and the parameter."""


def _place(method: str | None, address: str | None) -> str:
    parts = [f"method {method!r}"] if method else []
    if address:
        parts.append(f"at {address}")
    return f" ({' '.join(parts)})" if parts else ""


def _shortened(data: object) -> str:
    try:
        text = repr(data) if _is_small(data) else _BRIEF.repr(data)
    except RecursionError:
        return "..."
    return text if len(text) <= 300 else text[:297] + "..."


def _is_small(data: object) -> bool:
    """Does it take no time to write, whatever a peer sent?"""
    waiting, seen = [data], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            seen += len(value)
            if seen > 300:
                return False
            if isinstance(value, dict):
                waiting += value
                waiting += value.values()
            else:
                waiting += value
        elif isinstance(value, str | bytes | bytearray | int) and not isinstance(value, bool):
            seen += 1 + (value.bit_length() // 3 if isinstance(value, int) else len(value))
            if seen > 3000:
                return False
    return True


#: For the others: as much of each as can be shown.
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 20
_BRIEF.maxdict = _BRIEF.maxlist = 20
_BRIEF.maxstring = _BRIEF.maxother = 300
