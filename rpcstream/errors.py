"""All errors that rpcstream raises or sends, and the table of error codes.

Behind each error stands who caused it, or what happened.

    Exception
    ├── RpcError                      an error object of JSON-RPC: code, message, data
    │   ├── ParseError        -32700  the peer: its bytes are not JSON
    │   ├── InvalidRequest    -32600  the peer: its JSON is not a request
    │   ├── MethodNotFound    -32601  the caller: no method has this name
    │   ├── InvalidParams     -32602  the caller: the parameters do not fit the method
    │   ├── InternalError     -32603  the handler: it raised an exception that is no RpcError
    │   ├── MessageTooLarge   -32001  the sender: its message is over the receiver's limit
    │   ├── ServerBusy        -32002  the load: the call may succeed later
    │   ├── DeadlineExceeded  -32003  the handler: it took longer than the time-out (also a TimeoutError)
    │   ├── BatchTooLarge     -32004  the caller: too many calls in one batch
    │   ├── NotAuthenticated  -32005  the caller: it has not authenticated
    │   ├── NotPermitted      -32006  the caller: it has no permission for this
    │   ├── ProviderGone      -32007  the provider: it disconnected from the hub
    │   └── CallCancelled     -32800  the caller, or the server's stop: the call was cancelled
    ├── ConnectionError (built in)
    │   ├── ConnectFailed             the network or the server: no connection to the address
    │   └── ConnectionLost            the network or the peer: the connection ended before the answer
    ├── TimeoutError (built in)
    │   └── CallTimeout               the caller's time-out passed before the answer
    └── TypeError (built in)
        ├── EncodeError               the program: a value cannot be encoded
        └── RegistrationError         the program: a function cannot be a remote method

Knows nothing of sockets, JSON text or methods. Codes: JSON-RPC 2.0, section 5.1, and the wire page, "Error codes".
"""

from __future__ import annotations

import re
import reprlib
from typing import Any, ClassVar


class RpcError(Exception):
    """An error object of JSON-RPC 2.0 (section 5.1).

    A handler raises it to answer with an error; a client raises it for an error reply.

    Attributes:
        code: the error code. -32768 to -32000 is reserved for the protocol.
        message: one sentence.
        data: any value that can be encoded, or None for "no data".
        method: at a client, the called method.
        address: at a client, the address of the server.
        executed: False: the call was not begun, so that it may be made again (`data` has `"executed": false`, or of a
            hub `"no_provider": true`); None: the error does not say.
        advice: at a client, which of its options to change, if the error is about them.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data
        self.method: str | None = None
        self.address: str | None = None
        self.advice: str | None = None

    def __str__(self) -> str:
        data = self.data
        if type(data) is dict and getattr(self, "__notes__", None):  # which have the traceback
            data = {name: member for name, member in data.items() if name != "traceback"}
        text, data = readable(self.code, self.message, data)
        text = f"[{self.code}] {text}"
        if data is not None:
            text += f": {_shortened(data)}"
        if self.advice is not None:
            text += f"; {self.advice}"
        return text + _location(self.method, self.address)

    @property
    def executed(self) -> bool | None:
        data = self.data
        if isinstance(data, dict) and (data.get("executed") is False or data.get("no_provider") is True):
            return False
        return None

    def to_wire(self) -> dict[str, Any]:
        """The error object for a reply; `data` is left out when it is None."""
        wire: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            wire["data"] = self.data
        return wire


class _KnownError(RpcError):
    """An error of the table, with the code and the default message of its class."""

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
    """The parameters do not fit the method; `data` has the parameter, the path in it and the expected type."""

    CODE, MESSAGE = -32602, "Invalid params"


class InternalError(_KnownError):
    """The handler failed; the message has the id under which the server's log has the traceback.

    Where the server runs with `debug`, `data` has the traceback, too, and a client adds it as a note.
    """

    CODE, MESSAGE = -32603, "Internal error"


class MessageTooLarge(_KnownError):
    """A message is over the limit; `data` has `limit` and `size` (bytes), and `side`, the end whose limit it is."""

    CODE, MESSAGE = -32001, "Message too large"


class ServerBusy(_KnownError):
    """The server accepts no more work at present."""

    CODE, MESSAGE = -32002, "Server busy"


class DeadlineExceeded(_KnownError, TimeoutError):
    """The server stopped the handler, which took longer than its own or the caller's time-out."""

    CODE, MESSAGE = -32003, "Deadline exceeded"


class BatchTooLarge(_KnownError):
    """A batch has more members than the server accepts."""

    CODE, MESSAGE = -32004, "Batch too large"


class NotAuthenticated(_KnownError):
    """The caller has not authenticated."""

    CODE, MESSAGE = -32005, "Not authenticated"


class NotPermitted(_KnownError):
    """The caller is authenticated, and has no permission for this."""

    CODE, MESSAGE = -32006, "Not permitted"


class ProviderGone(_KnownError):
    """The provider of the method disconnected from the hub."""

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


#: The errors that a server, or a proxy before it, says with an HTTP status and no reply.
BY_STATUS: dict[int, type[_KnownError]] = {
    401: NotAuthenticated,
    403: NotPermitted,
    413: MessageTooLarge,
    429: ServerBusy,
    503: ServerBusy,
}


def wrong_parameter(parameter: str, reason: str) -> InvalidParams:
    """The error for one parameter, which does not fit for this reason."""
    data = {"parameter": parameter, "path": f"$.{parameter}", "reason": reason}
    return InvalidParams(f"Invalid params: {parameter}: {reason}", data)


def error_from_wire(error: object, *, method: str | None = None, address: str | None = None) -> RpcError:
    """The exception for the `error` member of a reply, of the class that belongs to its code.

    A malformed error object becomes an InternalError with the object as `data`.
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


class _LocatedError(Exception):
    """An error of the connection, with the address and the called method.

    Attributes:
        reason: one sentence.
        method: the called method.
        address: the address of the server.
        executed: False: the call was not begun, so that it may be made again; None: that is not known.
    """

    executed: bool | None = None

    def __init__(self, reason: str, *, method: str | None = None, address: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.method = method
        self.address = address

    def __str__(self) -> str:
        return self.reason + _location(self.method, self.address)


class ConnectFailed(_LocatedError, ConnectionError):
    """No connection to the address could be opened. The call was not sent.

    Attributes:
        is_permanent: trying again does not help before something is changed: a certificate, the client's name.
    """

    def __init__(
        self, reason: str, *, method: str | None = None, address: str | None = None, is_permanent: bool = False
    ) -> None:
        super().__init__(reason, method=method, address=address)
        self.is_permanent = is_permanent

    executed = False


class ConnectionLost(_LocatedError, ConnectionError):
    """The connection ended while the call was pending.

    Whether it was carried out is unknown, unless `executed` is False: then the other end has said that it did not read
    the call (`$/goAway`), or the call was not sent.
    """


class Unread(ConnectionLost):
    """The other end has said that it reads no more requests (`$/goAway`), and has not read this one."""

    executed = False


class CallTimeout(_LocatedError, TimeoutError):
    """The caller's time-out passed before the answer came. Whether the call was carried out is unknown."""


class EncodeError(TypeError):
    """A value cannot be encoded; the text names its type."""


class WrongResult(TypeError):
    """A result is not of the type that `returns=` asks for."""


#: Errors of a call that say all in their text, so clients raise them without the frames of their own code.
CALL_ERRORS = (RpcError, ConnectFailed, ConnectionLost, CallTimeout, EncodeError, WrongResult)


def at_caller(error: BaseException) -> BaseException:
    """An error of a call without the frames and the cause from inside the client, to be raised for its caller.

    Of an encoder that has failed the cause stays: it is the user's.
    """
    if not isinstance(error, EncodeError):
        error.__cause__ = None
    return error.with_traceback(None)


class RegistrationError(TypeError):
    """A function cannot be registered as a method; the text names the method and the parameter."""


def _location(method: str | None, address: str | None) -> str:
    parts = [f"method {method!r}"] if method else []
    if address:
        parts.append(f"at {address}")
    return f" ({' '.join(parts)})" if parts else ""


#: Members of `data` that say for programs what the reason says.
_PARTS = frozenset(("path", "expected", "got", "choices", "parameters"))

#: Members of `data`, and characters of one, up to which it is looked whether the message has them.
_MEMBERS_MAX, _SAID_MAX = 20, 500


def readable(code: int, message: str, data: Any) -> tuple[str, Any]:
    """What people are shown of an error: the message with its reason, and the data without what that says already.

    Args:
        code: of the error. Only the data of the protocol's own errors is known well enough to be shortened.
        message: as received.
        data: as received.

    Returns:
        The text, and the rest of the data; None where nothing is left.
    """
    is_own = -32768 <= code <= -32000 or code == CallCancelled.CODE
    if not is_own or type(data) is not dict or len(data) > _MEMBERS_MAX:
        return message, data
    reason = data.get("reason")
    if type(reason) is str and len(reason) <= _SAID_MAX:
        if reason not in message:
            message = f"{message}: {reason}"
        left = {key: value for key, value in data.items() if key not in _PARTS and not _is_said(value, message)}
    else:
        left = {key: value for key, value in data.items() if not _is_said(value, message)}
    return message, left or None


def _is_said(value: object, message: str) -> bool:
    """Whether a message has a text, a number, or all of several texts in it."""
    if isinstance(value, list):
        return 0 < len(value) <= _MEMBERS_MAX and all(type(each) is str and _is_said(each, message) for each in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    text = str(value) if not isinstance(value, int) or value.bit_length() < 100 else ""
    return 0 < len(text) <= _SAID_MAX and re.search(rf"(?<![\w.]){re.escape(text)}(?![\w])", message) is not None


def _shortened(data: object) -> str:
    try:
        text = repr(data) if _is_small(data) else _BRIEF.repr(data)
    except RecursionError:
        return "..."
    return text if len(text) <= 300 else text[:297] + "..."


def _is_small(data: object) -> bool:
    """Tell whether data is small enough for a plain `repr`, with bounded work for data of any size."""
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


#: Abbreviates data that is not small.
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 20
_BRIEF.maxdict = _BRIEF.maxlist = 20
_BRIEF.maxstring = _BRIEF.maxother = 300
