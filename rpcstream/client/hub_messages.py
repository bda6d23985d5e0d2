"""What a client says to a hub, and how it reads what the hub answers (wire page, "The hub").

Owns the params of `rpc.register`, `rpc.publish` and `rpc.notify`, once for both faces. Pure: knows no connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from ..errors import EncodeError, InternalError, MethodNotFound, RpcError
from ..events.patterns import CLIENT_NAME
from ..peer.marshal import NOT_GIVEN, params_of

Sent = TypeVar("Sent")
Said = TypeVar("Said")


class Registration(NamedTuple):
    """What a hub answers to `rpc.register`.

    Attributes:
        name: of the client, its own or one that the hub made.
        key: with it, and only so, the name can be registered from another connection.
        methods: what the client offers now.
    """

    name: str
    key: str
    methods: list[str]


class HubMessages(Generic[Sent, Said]):
    """What a client tells others by way of the hub.

    Args:
        request: the client's own; what it gives (a value, or a coroutine of it) is given here.
    """

    def __init__(self, request: Callable[..., Any]) -> None:
        self._request = request

    def publish(self, topic: str, value: Any, retain: bool = False, *, timeout: float | None = NOT_GIVEN) -> Sent:
        """Send a value to all who have subscribed to a topic at the hub; gives to how many connections it is sent.

        Args:
            topic: levels with dots between them, such as "sensors.room1"; no pattern.
            value: anything that a call may have as an argument, but no iterator.
            retain: the hub keeps the value, and sends it to those who subscribe later, until another is retained;
                None as the value makes it forget the last one.
            timeout: seconds, as for a call.

        Raises what a call raises; MethodNotFound where the server is no hub.
        """
        result: Sent = self._request("rpc.publish", publication(topic, value, retain), timeout=timeout)
        return result

    def notify_client(self, client: str, method: str, /, *args: Any, **kwargs: Any) -> Said:
        """Send a notification to the client that is registered under this name at the hub; gives True.

        It is not known whether that client has such a method, nor what it did.

        Args:
            args, kwargs: the arguments, all by position or all by name.

        Raises what a call raises; InvalidParams where no client has this name.
        """
        params: dict[str, Any] = {"client": client, "method": method}
        given = params_of(method, args, kwargs)
        if given is not None:
            for value in given.values() if isinstance(given, dict) else given:
                _check_whole(value, f"an argument of {method!r} of {client!r}")
            params["params"] = given
        result: Said = self._request("rpc.notify", params)
        return result


def check_name(name: Any) -> None:
    """Raises TypeError or ValueError unless a client may have this name."""
    if type(name) is not str:
        raise TypeError(f"the name of a client is a str, got {type(name).__name__}")
    if CLIENT_NAME.fullmatch(name) is None or name == "rpc":
        reason = "has 1 to 128 of A-Z, a-z, 0-9, '_' and '-', and is not 'rpc'"
        raise ValueError(f"the name of a client {reason}; got {name[:200]!r}")


def registration(
    name: str | None, key: str | None, methods: list[dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    """The params of `rpc.register`; what is not known, or empty, is left out."""
    members = {"name": name, "key": key, "methods": methods, "components": components}
    return {member: value for member, value in members.items() if value}


def registered(reply: Any, address: str) -> Registration:
    """The answer to `rpc.register`; InternalError for one that is none."""
    if isinstance(reply, dict):
        name, key, methods = (reply.get(member) for member in Registration._fields)
        strings = isinstance(methods, list) and all(type(method) is str for method in methods)
        if type(name) is str and type(key) is str and strings:
            return Registration(name, key, methods)  # type: ignore[arg-type]
    error = InternalError("The hub's answer to rpc.register cannot be read", {"reply": _without_key(reply)})
    error.method, error.address = "rpc.register", address
    raise error


def explained(error: RpcError, what: str) -> RpcError:
    """The error of a registration; one that tells that the server is no hub says so."""
    if not isinstance(error, MethodNotFound):
        return error
    clear = MethodNotFound(f"The server is no hub: it does not take {what}", error.data)
    clear.method, clear.address = error.method, error.address
    return clear


def publication(topic: Any, value: Any, retain: bool) -> dict[str, Any]:
    """The params of `rpc.publish`."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is a str, got {type(topic).__name__}")
    _check_whole(value, f"an event of {topic!r}")
    return {"topic": topic, "value": value, **({"retain": True} if retain else {})}


def _check_whole(value: object, what: str) -> None:
    """Raises EncodeError for what a call would send item by item."""
    if any(hasattr(type(value), step) for step in ("__next__", "__anext__", "__aiter__")):
        raise EncodeError(f"{what} cannot be an iterator ({type(value).__name__}): send a list, or item by item")


def _without_key(reply: Any) -> Any:
    return {**reply, "key": "***"} if isinstance(reply, dict) and "key" in reply else reply
