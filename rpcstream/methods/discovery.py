"""The methods that every server has (`rpc.*`), and its methods as an OpenRPC document (https://spec.open-rpc.org, 1.4).

Written from the compiled signatures that also check params, so the two always agree; what is said for people comes from
docstrings and from the options of the methods.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Any, cast

import orjson

from .. import errors
from ..auth.gate import AUTHENTICATE, GatedSession
from ..codec import Codec
from ..codec.hints import CompiledHint
from ..codec.rich_hint import TEXT_MAX, Components, schema_of, shortened_text
from ..codec.scalars import TAGGED_FLOAT
from ..errors import InvalidRequest
from ..events.topics import Topics
from ..openrpc.compat import Compat, OlderDocument, older_head
from ..peer.context import CallContext
from ..peer.incoming import use_binary
from ..peer.session import Session
from .arguments import RemoteParameter
from .introspect import doc_of
from .method import Method
from .registry import MethodRegistry

#: The version of OpenRPC, and the dialect of its schemas.
OPENRPC = "1.4.1"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

_REST = {Parameter.VAR_POSITIONAL: "positional", Parameter.VAR_KEYWORD: "named"}

#: Bytes of a default as JSON; of a longer one its beginning is shown.
_DEFAULT_MAX = 4096


def head_of(*, title: str, version: str, description: str | None = None, security: Any = None) -> dict[str, Any]:
    """Return the members of a document that say what the service is.

    Args:
        title: of the service.
        version: of the service.
        description: of the service, for people; Markdown.
        security: how callers authenticate, each as a Security Scheme Object of OpenAPI; None: they need not.
    """
    info = {"title": title, "version": version}
    if description:
        info["description"] = shortened_text(description, TEXT_MAX)
    head = {"openrpc": OPENRPC, "info": info, "x-jsonSchemaDialect": DIALECT}
    return {**head, "x-security": security} if security else head


class Description:
    """Describes methods one by one, for one document.

    Beyond OpenRPC: a parameter with `x-rest` takes all further ones, "positional" or "named", and one with `x-keyword`
    can only be given by name; a method with `x-stream` gives its items one by one where it is asked to, each as
    `x-item` says, and at the end what `x-end` says; a schema with `x-stream` takes them so; a method with
    `x-idempotent` may be called again when it is not known whether a call was carried out; one with `x-allow` is for
    some callers only; `x-deprecated` is the reason why a method should not be called any more.

    Args:
        codec: writes defaults.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._schemas = Components()

    def components(self) -> dict[str, Any]:
        """What the methods refer to, and the errors that any call may be answered with."""
        known = {each.__name__: {"code": code, "message": each.MESSAGE} for code, each in errors.BY_CODE.items()}
        return {"schemas": dict(sorted(self._schemas.items())), "errors": known}

    def method(self, method: Method) -> dict[str, Any]:
        """The Method Object for a method."""
        signature, group = method.signature, method.name.rpartition(".")[0].partition(".")[0]
        text = _read_docstring(doc_of(method.function))
        described: dict[str, Any] = {"name": method.name, **text.said}
        if group:
            described["tags"] = [{"name": group}]
        described |= method.docs
        keywords = [each for each in signature.parameters if each.kind is Parameter.KEYWORD_ONLY]
        has_rest = any(each.kind is Parameter.VAR_POSITIONAL for each in signature.parameters)
        # Further positional arguments have no names, so optional keyword-only ones beside them leave both ways open.
        is_by_name = any(each.required or not has_rest for each in keywords)
        described["paramStructure"] = "by-name" if is_by_name else "either"
        # "Required parameters stand before optional ones" (OpenRPC); Python wants that of positional ones only.
        ordered = sorted(signature.parameters, key=lambda each: not each.required)
        described["params"] = [self._parameter(parameter, text) for parameter in ordered]
        result = {"name": "result", "schema": self._schema(signature.returns)}
        described["result"] = {**result, "description": text.result} if text.result else result
        described["errors"] = _errors(method)
        if method.is_generator:
            described |= {"x-stream": True, "x-item": self._schema(signature.item)}
            if signature.end.lowered not in (Any, None, type(None)):
                described["x-end"] = self._schema(signature.end)
        if method.idempotent:
            described["x-idempotent"] = True
        if method.allow is not None:
            described["x-allow"] = True
        return described

    def _parameter(self, parameter: RemoteParameter, text: _Docstring) -> dict[str, Any]:
        schema = self._schema(parameter.hint)
        if parameter.default is not Parameter.empty:
            schema = {**schema, **self._default(parameter)}
        described: dict[str, Any] = {"name": parameter.name, "required": parameter.required, "schema": schema}
        if said := text.parameters.get(parameter.name) or schema.get("description"):
            described["description"] = said
        if parameter.kind in _REST:
            described["x-rest"] = _REST[parameter.kind]
        elif not parameter.by_position:
            described["x-keyword"] = True
        return described

    def _default(self, parameter: RemoteParameter) -> dict[str, Any]:
        """Return the default as JSON that a caller may send, or as text under `x-default` where JSON cannot say it."""
        try:
            default = parameter.default
            is_set = isinstance(default, set | frozenset)  # its order would change with each start
            text = self._codec.dumps(sorted(default, key=repr) if is_set else default)
            if len(text) <= _DEFAULT_MAX and TAGGED_FLOAT not in text:
                parameter.hint.read(orjson.loads(text), self._codec.reading())
                return {"default": orjson.loads(text)}
        except (errors.EncodeError, ValueError):
            pass
        shown = shortened_text(repr(parameter.default), 300)
        # The text of a sentinel is an address in memory, which changes with each start as well.
        return {} if "0x" in shown else {"x-default": shown}

    def _schema(self, hint: CompiledHint) -> dict[str, Any]:
        try:
            return schema_of(hint.described, self._schemas)
        except TypeError:  # checked all the same, but JSON Schema has no words for it
            return {}


def _errors(method: Method) -> list[dict[str, Any]]:
    """The errors that a call may be answered with: those that were declared, and the framework's."""
    own = [errors.InvalidParams, errors.InternalError]
    if not method.inline:
        own += [errors.ServerBusy, errors.DeadlineExceeded, errors.CallCancelled]
    if method.allow is not None:
        own.append(errors.NotPermitted)
    declared = method.docs["errors"]
    codes = {error["code"] for error in declared}
    return [*declared, *(error().to_wire() for error in own if error.CODE not in codes)]


# -- the document ------------------------------------------------------------------------------------------------------


class OpenRpcDocument:
    """The OpenRPC document of the methods in a registry.

    Args:
        registry: of the methods.
        codec: writes it.
        head: gives the members of the document besides methods, components and servers; see `head_of`.
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
        #: Held by the thread that writes, so that others that ask meanwhile get the same document.
        self._lock = threading.RLock()
        #: Methods and components with the version of the registry: as plain data ("data"), and as JSON by `compat`.
        self._made: dict[str | None, tuple[int, Any]] = {}

    @property
    def version(self) -> int:
        """Counts the changes of the methods."""
        return self._registry.version

    def head(self, compat: str | None = None) -> dict[str, Any]:
        """Return the members that say what the service is."""
        return self._head() if compat is None else older_head(self._head())

    def tail(self, servers: list[dict[str, Any]] | None = None) -> bytes:
        """Return what ends a document: where the server is reached, and the brace.

        Args:
            servers: Server Objects; None: those where it listens.
        """
        known = self._servers() if servers is None else servers
        return b',"servers":%b}' % self._codec.dumps(known) if known else b"}"

    def described(self) -> dict[str, Any]:
        """Return methods and components as plain data, made anew after a change: 0.5 ms a method."""
        described: dict[str, Any] = self._kept("data", self._describe)
        return described

    def whole(self) -> dict[str, Any]:
        """Return the document as plain data, without the servers."""
        return {**self.head(), **self.described()}

    async def text(self, compat: str | None = None) -> bytes:
        """Return the document as JSON.

        Args:
            compat: "1.2.6" for the variant that older tools read.
        """
        version, written = self._made.get(compat, (-1, b""))
        if version != self.version:
            written = await asyncio.to_thread(self._kept, compat, partial(self._write, compat))
        return b"%b,%b%b" % (self._codec.dumps(self.head(compat))[:-1], written, self.tail())

    def _kept(self, form: str | None, make: Callable[[], Any]) -> Any:
        """Return what `make` gives, called once for each version of the registry."""
        with self._lock:
            version = self.version
            if self._made.get(form, (-1, None))[0] != version:
                self._made[form] = version, make()
            return self._made[form][1]

    def _describe(self) -> dict[str, Any]:
        description = Description(self._codec)
        listed = [description.method(method) for _, method in sorted(dict(self._registry).items())]
        return {"methods": listed, "components": description.components()}

    def _write(self, compat: str | None) -> bytes:
        """Return methods and components as the members of a JSON object."""
        described = self.described()
        if compat is not None:
            older = OlderDocument(self._head()["info"]["title"])
            methods = [older.method(each) for each in described["methods"] if older.has(each["name"])]
            schemas = dict(older.schemas(described["components"]["schemas"]))
            described = {"methods": methods, "components": {**described["components"], "schemas": schemas}}
        return self._codec.dumps(described)[1:-1]


# -- docstrings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Docstring:
    """What a docstring says.

    Attributes:
        said: `summary`, its first paragraph as one line, and `description`, the rest without what is in the others.
        parameters: the description of each parameter, by name.
        result: the description of what is returned or yielded.
    """

    said: dict[str, str]
    parameters: dict[str, str]
    result: str | None


def _read_docstring(text: str | None) -> _Docstring:
    """Read a docstring, which has no indentation any more. A long text is cut."""
    from docstring_parser import common, parse

    text = shortened_text(text or "", TEXT_MAX)
    try:
        found = parse(text)
    except Exception:  # whatever its author wrote is no failure of the server
        found = common.Docstring()
    text = found.description or text if found.meta else text
    parameters: dict[str, str] = {}
    result = None
    for part in found.meta:
        kind, *what = part.args
        if isinstance(part, common.DocstringParam) and kind == "param":
            for name in part.arg_name.split(","):
                parameters[name.strip().replace("\\", "").lstrip("*")] = part.description or ""
        elif kind in ("return", "returns", "yield", "yields"):
            result = result or part.description
        elif part.description:
            text += f"\n\n{' '.join((kind.capitalize(), *what))}: {part.description}"
    first, _, rest = text.partition("\n\n")
    said = {"summary": " ".join(first.split()), "description": rest}
    return _Docstring({name: value for name, value in said.items() if value}, parameters, result)


def add_own_methods(
    registry: MethodRegistry, document: OpenRpcDocument, *, stats: Callable[[], dict[str, Any]]
) -> None:
    """Register `rpc.discover`, `rpc.ping`, `rpc.stats` and `rpc.hello`.

    Args:
        registry: gets the methods.
        document: what `rpc.discover` returns.
        stats: gives the result of `rpc.stats`.
    """

    async def discover(compat: Compat | None = None) -> dict[str, Any]:
        """The methods that are offered here, as an OpenRPC document.

        Args:
            compat: "1.2.6" for a document of this older version of OpenRPC, whose schemas are of JSON Schema draft 07
                alone, and do not refer to themselves.
        """
        # As JSON, so that a reply costs no more than copying its bytes, however many methods there are.
        return cast(dict[str, Any], orjson.Fragment(await document.text(compat)))

    def ping() -> str:
        """Answers "pong"."""
        return "pong"

    def counted() -> dict[str, Any]:
        """The counters of this end since its start."""
        return stats()

    def hello(ctx: CallContext, binary: int = 0, shm: Any = None) -> dict[str, Any]:
        """Says that the caller reads binary frames of this version (1; 0: none), and tells what is read here.

        On a Unix socket `shm` is the shared memory that the caller offers, and in the result that of this end.
        """
        session = ctx.session
        answer: dict[str, Any] = {"binary": int(bool(session.takes_binary))}
        if binary and session.takes_binary and session.is_lasting:
            memory = use_binary(session, shm)
            if memory is not None:
                answer["shm"] = memory
        return answer

    for name, function in (("discover", discover), ("ping", ping), ("stats", counted), ("hello", hello)):
        registry.add(function, name=f"rpc.{name}", reserved=True, check_result=function is not discover)


def add_auth_method(registry: MethodRegistry) -> None:
    """Register `rpc.authenticate`, which the gate lets pass before a peer is authenticated."""

    async def authenticate(token: str, ctx: CallContext) -> bool:
        """Says who the caller is, by a token; another token changes that. One that is not accepted changes nothing."""
        if ctx.in_batch:
            raise InvalidRequest(data={"reason": "rpc.authenticate must not stand in a batch"})
        if not isinstance(ctx.session, GatedSession) or not ctx.session.is_lasting:
            raise InvalidRequest(data={"reason": "here the token goes into the header Authorization: Bearer"})
        await ctx.session.authenticate(token)
        return True

    # Ordered, so that a wrong token is counted before the next one is looked at.
    registry.add(authenticate, name=AUTHENTICATE, reserved=True, ordered=True)


def add_event_methods(
    registry: MethodRegistry,
    topics: Topics,
    check: Callable[[Session, str], tuple[str, ...]],
    is_shared: bool = False,
) -> None:
    """Register `rpc.subscribe` and `rpc.unsubscribe`; those that are registered are replaced.

    Args:
        registry: gets the methods.
        topics: to subscribe to.
        check: called with the session and the topic or pattern; raises if the peer may not subscribe to it, and gives
            the patterns of topics whose events it does not get.
        is_shared: there are other processes or servers, which are told of a subscription before its reply is sent.
    """

    def checked(topic: str, ctx: CallContext) -> tuple[str, ...]:
        """Raise unless the caller may subscribe to this now; else give what is denied of it."""
        if ctx.in_batch:
            # The replies of a batch come together, when the last is ready: events would overtake this one.
            raise InvalidRequest(data={"reason": "rpc.subscribe must not stand in a batch"})
        if not ctx.session.is_lasting:
            reason = "events need a connection that stays: subscribe over a WebSocket or the line stream"
            raise InvalidRequest(data={"reason": reason})
        topics.check_subscription(topic)  # first, because the rules are asked about names of bounded length only
        return check(ctx.session, topic)

    def subscribe(topic: str, ctx: CallContext) -> dict[str, Any]:
        """Sends what is published to a topic from now on, as `$/event` notifications; this reply comes first.

        In place of a topic a pattern will do: `sensors.*` for one whole level, `sensors.>` for one or more. Behind the
        reply come the last values that are kept of these topics. The reply says what becomes of events that the
        subscriber is too slow for: how many wait, and the policy then.
        """
        return topics.subscribe(ctx.session, topic, denied=checked(topic, ctx))

    async def subscribe_everywhere(topic: str, ctx: CallContext) -> dict[str, Any]:
        return await topics.subscribe_everywhere(ctx.session, topic, denied=checked(topic, ctx))

    def unsubscribe(topic: str, ctx: CallContext) -> bool:
        """Sends no more of a topic or pattern, not even what waits to be sent; false if it was not subscribed to."""
        return topics.unsubscribe(ctx.session, topic)

    subscribe_everywhere.__doc__ = subscribe.__doc__
    registry.add(
        subscribe_everywhere if is_shared else subscribe, name="rpc.subscribe", reserved=True, replace=is_shared
    )
    registry.add(unsubscribe, name="rpc.unsubscribe", reserved=True, replace=is_shared)
