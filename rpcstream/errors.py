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

The codes are those of JSON-RPC 2.0, section 5.1, and of the wire page, "Error codes".
"""

from __future__ import annotations

import reprlib
from typing import Any, ClassVar


class RpcError(Exception):
    """An error object of JSON-RPC 2.0 (section 5.1).

    Raise it in a handler to answer with an error. A client raises it for an error reply.

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
        text, data = readable(self.code, self.message, self.data)
        text = f"[{self.code}] {text}"
        if data is not None:
            text += f": {_BRIEF.repr(data)}"
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


#: The errors of the table by their code.
BY_CODE: dict[int, type[_KnownError]] = {}


class _KnownError(RpcError):
    """An error of the table, with the code and the default message of its class."""

    CODE: ClassVar[int]
    MESSAGE: ClassVar[str]

    def __init_subclass__(cls, code: int | None = None, message: str = "") -> None:
        if code is not None:  # None: a subclass of a program
            cls.CODE, cls.MESSAGE = code, message
            BY_CODE[code] = cls

    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(self.CODE, self.MESSAGE if message is None else message, data)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.data), self.__dict__


class ParseError(_KnownError, code=-32700, message="Parse error"):
    """The bytes are not a JSON value."""


class InvalidRequest(_KnownError, code=-32600, message="Invalid Request"):
    """The JSON value is not a request object."""


class MethodNotFound(_KnownError, code=-32601, message="Method not found"):
    """No method has this name."""


class InvalidParams(_KnownError, code=-32602, message="Invalid params"):
    """The parameters do not fit the method; `data` has the parameter, the path in it and the expected type."""


class InternalError(_KnownError, code=-32603, message="Internal error"):
    """The handler failed; the message has the id under which the server's log has the traceback.

    Where the server runs with `debug`, `data` has the traceback, too, and a client adds it as a note.
    """


class MessageTooLarge(_KnownError, code=-32001, message="Message too large"):
    """A message exceeds a limit. `data` has the `limit`, the `size` in bytes, and the `side` whose limit it is."""


class ServerBusy(_KnownError, code=-32002, message="Server busy"):
    """The server accepts no more work at present."""


class DeadlineExceeded(_KnownError, TimeoutError, code=-32003, message="Deadline exceeded"):
    """The server stopped the handler, which took longer than its own or the caller's timeout."""


class BatchTooLarge(_KnownError, code=-32004, message="Batch too large"):
    """A batch has more requests than the server accepts."""


class NotAuthenticated(_KnownError, code=-32005, message="Not authenticated"):
    """The caller has not authenticated."""


class NotPermitted(_KnownError, code=-32006, message="Not permitted"):
    """The caller is authenticated, but not permitted to do this."""


class ProviderGone(_KnownError, code=-32007, message="Provider gone"):
    """The provider of the method disconnected from the hub."""


class CallCancelled(_KnownError, code=-32800, message="Cancelled"):
    """The call was cancelled."""


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
        is_permanent: another attempt fails, too, until something is changed, such as a certificate or the client's
            name.
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


class AtCaller:
    """Raises errors of a call without the frames and the cause from inside the client: `with AT_CALLER:`.

    Of an encoder that has failed the cause stays: it is the user's.

    Args:
        kinds: the errors; others are raised as they are.
    """

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.strip(error)

    def strip(self, error: BaseException) -> BaseException:
        """The error without these frames and this cause, if it is of such a kind."""
        if isinstance(error, self._kinds):
            error.__traceback__ = None
            error.__cause__ = error.__cause__ if isinstance(error, EncodeError) else None  # and no context is shown
        return error


#: For calls.
AT_CALLER = AtCaller(*CALL_ERRORS)


class RegistrationError(TypeError):
    """A function cannot be registered as a method; the text names the method and the parameter."""


def _location(method: str | None, address: str | None) -> str:
    parts = " ".join([*([f"method {method!r}"] if method else []), *([f"at {address}"] if address else [])])
    return f" ({parts})" if parts else ""


def readable(code: int, message: str, data: Any) -> tuple[str, Any]:
    """What people are shown of an error: its message with the reason, and its data.

    Of the protocol's own errors, the data repeat for programs what the message says, unless that is the bare name.
    """
    is_own = -32768 <= code <= -32000 or code == CallCancelled.CODE
    if not is_own or type(data) is not dict:
        return message, data
    reason = data.get("reason")
    if type(reason) is not str:
        kind = BY_CODE.get(code)
        says_nothing = kind is not None and message == kind.MESSAGE and "traceback" not in data
        return message, data if says_nothing else None
    return message if reason in message else f"{message}: {reason}", None


#: Writes data of any size in bounded work.
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 300
