"""Answers the messages of MCP: what each method does, and calls of tools by the server's own dispatcher.

Owns the way from `tools/call` to a call of a method and back. What versions, headers and codes mean is in `protocol`,
which tools there are in `tools`, what a result looks like in `content`.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

import orjson

from ..codec import Codec
from ..codec.payloads import parse_exactly
from ..codec.rich_hint import shortened
from ..errors import (
    CallCancelled,
    InvalidParams,
    InvalidRequest,
    MessageTooLarge,
    MethodNotFound,
    RpcError,
    ServerBusy,
    error_from_wire,
)
from ..limits import Limits
from ..methods.dispatch import Dispatcher
from ..methods.invoke import Invoker
from ..methods.replies import internal_error
from ..observe.limited_log import LimitedLog
from ..peer import control_messages
from ..peer.control_messages import reply_key
from ..peer.interfaces import Later, Waiting
from ..peer.session import Session
from ..text import get_logger
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.envelope import VERSION
from ..wire.json_scan import is_deeper
from ..wire.messages import Oversize
from . import content, protocol
from .session import McpSession, Progress
from .tools import Tool, Tools

log = get_logger("rpcstream.server")

Line = bytes | bytearray

#: Bytes of a result from which on its content is made in a thread.
_HEAVY = 64 * 1024

#: Milliseconds for which a client may keep the list of tools.
KEEP_TOOLS = 60_000

#: The members of `_meta` that continue a trace (W3C Trace Context), as members of a request have them here.
_TRACE = ("traceparent", "tracestate")


class McpDispatcher:
    """The `Dispatch` of sessions on which MCP is spoken.

    Args:
        dispatcher: the server's own, which carries out the calls of tools.
        tools: that there are.
        codec, limits: of the server.
        invoker: has threads, where the content of large results is made.
        info: name and version of the server.
        is_public: every caller may have the same answers to `tools/list`, as far as the tools permit.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        tools: Tools,
        codec: Codec,
        limits: Limits,
        invoker: Invoker,
        info: dict[str, str],
        is_public: bool,
    ) -> None:
        self._dispatcher = dispatcher
        self._tools = tools
        self._codec = codec
        self._limits = limits
        self._invoker = invoker
        self._info = info
        self._is_public = is_public
        self._log = LimitedLog(log)
        #: Calls by POST that another POST may cancel: by the session of the client and the id of the call.
        self._cancellable: dict[tuple[str, str], McpSession] = {}
        self._stateless: dict[str, Callable[[dict[str, Any], McpSession], Any]] = {
            "server/discover": self._discover,
            "tools/list": self._list_tools,
        }
        self._with_handshake: dict[str, Callable[[dict[str, Any], McpSession], Any]] = {
            "initialize": self._initialize,
            "ping": lambda params, session: {},
            "tools/list": self._list_tools,
        }

    # -- for the session (Dispatch) -----------------------------------------------------------------------------------

    def answer(self, message: Any, line: Line, session: Session) -> Encoded | Later | None:
        """As `Dispatch.answer`."""
        assert isinstance(session, McpSession)
        session.is_stateless = False
        call_id: Any = None
        try:
            if type(message) is not dict:
                raise InvalidRequest(data={"reason": "a message is one object; MCP has no batches"})
            self._check_depth(line)
            if envelope.may_hold_big_integers(line):
                message = parse_exactly(line)
            if "id" in message and type(message["id"]) is not int and type(message["id"]) is not str:
                raise InvalidRequest(data={"reason": "the member 'id' must be a string or an integer"})
            call_id = message.get("id")
            envelope.check_request(message)
            if "id" not in message:
                self._take_notification(message, session)
                return None
            headers = session.headers if session.is_http else None
            session.is_stateless = protocol.is_stateless(message, headers)
            if session.is_stateless:
                protocol.check_request(message, headers)
            return self._handle(message, session)
        except RpcError as error:
            return self._error(call_id, error)
        except Exception as error:
            told = internal_error(self._log, "server", "a message of MCP", error)
            return self._error(call_id, told)

    def refuse(self, message: Any, error: RpcError) -> Encoded | None:
        """As `Dispatch.refuse`."""
        if isinstance(message, Oversize):
            return self._error(envelope.id_in_head(message.head), error)
        is_request = type(message) is dict and "method" in message
        self._dispatcher.refuse({"id": None} if is_request else message, error)  # counts it
        if is_request and ("id" not in message or protocol.is_cancelled(error)):
            return None
        call_id = message.get("id") if type(message) is dict else None
        return self._error(call_id if type(call_id) is int or type(call_id) is str else None, error)

    def goes_on(self, message: Any) -> bool:
        """As `Dispatch.goes_on`, of the method behind a tool."""
        tool = self._tool_of(message)
        return tool is not None and tool.method.detached

    def report_slow(self, message: Any, seconds: float) -> None:
        """As `Dispatcher.report_slow`, of the method behind a tool."""
        tool = self._tool_of(message)
        if tool is not None:
            self._dispatcher.report_slow({"method": tool.method.name}, seconds)

    def _tool_of(self, message: Any) -> Tool | None:
        """The tool that a message calls, for whomever it is; None if it calls none."""
        if type(message) is not dict or message.get("method") != "tools/call":
            return None
        params = message.get("params")
        name = params.get("name") if type(params) is dict else None
        return self._tools.by_name(name) if type(name) is str else None

    def _check_depth(self, line: Line) -> None:
        limit = self._limits.max_depth
        if len(line) > 2 * limit and is_deeper(line, limit):
            reason = f"more than {limit} arrays and objects inside each other (the server's max_depth)"
            raise InvalidRequest(data={"reason": reason, "limit": limit})

    # -- methods ------------------------------------------------------------------------------------------------------

    def _handle(self, message: dict[str, Any], session: McpSession) -> Encoded | Later | None:
        """Carry out a request. Raises RpcError."""
        method, params = message["method"], message.get("params", {})
        if type(params) is not dict:
            raise InvalidParams(data={"path": "$", "reason": "the params of MCP are an object"})
        if method == "tools/call":
            return self._call_tool(message["id"], params, session)
        handlers = self._stateless if session.is_stateless else self._with_handshake
        handler = handlers.get(method)
        if handler is None:
            raise MethodNotFound(data={"method": shortened(method)})
        return self._reply(message["id"], handler(params, session), is_stateless=session.is_stateless)

    def _take_notification(self, message: dict[str, Any], session: McpSession) -> None:
        if message["method"] != "notifications/cancelled":
            return
        params = message.get("params")
        call_id = params.get("requestId") if type(params) is dict else None
        if type(call_id) is not int and type(call_id) is not str:
            return
        if session.is_http:
            client = protocol.session_id(session.headers)
            running = self._cancellable.get((client, reply_key(call_id))) if client is not None else None
            if running is not None and running.identity == session.identity:
                running.running_tools[reply_key(call_id)] = True
                running.running.cancel(call_id)
        else:
            if reply_key(call_id) in session.running_tools:
                session.running_tools[reply_key(call_id)] = True
            cancel = {"jsonrpc": VERSION, "method": envelope.CANCEL, "params": {"id": call_id}}
            control_messages.handle(session, cancel, b"")

    def _initialize(self, params: dict[str, Any], session: McpSession) -> dict[str, Any]:
        wanted = params.get("protocolVersion")
        if type(wanted) is not str:
            raise InvalidParams(data={"path": "$.protocolVersion", "reason": "it must be a string"})
        if session.is_http:
            # Nothing is kept under it: it only tells whose calls a client may cancel.
            session.more_headers = [
                ("Mcp-Session-Id", secrets.token_urlsafe(24)),
                ("Access-Control-Expose-Headers", "Mcp-Session-Id"),
            ]
        answer: dict[str, Any] = {
            "protocolVersion": wanted if wanted in protocol.WITH_HANDSHAKE else protocol.WITH_HANDSHAKE[0],
            "capabilities": {"tools": {}},
            "serverInfo": self._info,
        }
        return self._with_instructions(answer)

    def _discover(self, params: dict[str, Any], session: McpSession) -> dict[str, Any]:
        answer = {
            "supportedVersions": list(protocol.SUPPORTED),
            "capabilities": {"tools": {}},
            "ttlMs": KEEP_TOOLS,
            "cacheScope": "public" if self._is_public else "private",
        }
        return self._with_instructions(answer)

    def _with_instructions(self, answer: dict[str, Any]) -> dict[str, Any]:
        text = self._tools.instructions
        return {**answer, "instructions": text} if text else answer

    def _list_tools(self, params: dict[str, Any], session: McpSession) -> dict[str, Any]:
        cursor = params.get("cursor")
        if cursor is not None and type(cursor) is not str:
            raise InvalidParams(data={"path": "$.cursor", "reason": "it must be a string"})
        tools, after = self._tools.page(cursor, session.identity, is_stateless=session.is_stateless)
        answer: dict[str, Any] = {"tools": [orjson.Fragment(tool) for tool in tools]}
        if after is not None:
            answer["nextCursor"] = after
        if session.is_stateless:
            is_public = self._is_public and self._tools.are_for_all
            answer |= {"ttlMs": KEEP_TOOLS, "cacheScope": "public" if is_public else "private"}
        return answer

    # -- calls of tools -----------------------------------------------------------------------------------------------

    def _call_tool(self, call_id: Any, params: dict[str, Any], session: McpSession) -> Encoded | Later | None:
        name, arguments = params.get("name"), params.get("arguments")
        if type(name) is not str:
            raise InvalidParams(data={"path": "$.name", "reason": "the name of the tool must be a string"})
        if arguments is not None and type(arguments) is not dict:
            raise InvalidParams(data={"path": "$.arguments", "reason": "the arguments must be an object"})
        tool = self._tools.find(name, session.identity)
        if tool is None:
            raise InvalidParams(f"Unknown tool: {shortened(name)!r}", {"reason": "tools/list has the tools"})
        call = _ToolCall(self, tool, call_id, session)
        try:
            message = {"jsonrpc": VERSION, "id": call_id, "method": tool.method.name}
            message["params"] = tool.params(arguments or {}, self._codec.reading(is_counted=True))
        except MessageTooLarge as error:
            return call.failed(error)
        except ValueError as error:
            return call.failed(InvalidParams(data={"reason": str(error)}))
        meta = protocol.meta_of({"params": params})
        if meta:
            message |= {name: meta[name] for name in _TRACE if type(meta.get(name)) is str}
            message["_meta"] = meta
        token = protocol.progress_token(meta)
        key = reply_key(call_id)
        if token is not None:
            session.progress[key] = Progress(token)
        reply = self._dispatcher.answer(message, b"", session, self._codec.reading(is_counted=True))
        if reply is None or isinstance(reply, Encoded):
            session.progress.pop(key, None)
            written = bytes(reply or b"")
            return call.in_thread(written) if len(written) > _HEAVY else call.translated(written)
        assert isinstance(reply, Coroutine)  # no tool is a method of another peer
        return call.later(reply)

    def enter(self, call_id: Any, session: McpSession) -> Callable[[], None]:
        """Let a call be cancelled that waits; gives a function to be called at its end."""
        key = reply_key(call_id)
        client = protocol.session_id(session.headers) if session.is_http and not session.is_stateless else None
        if client is not None:
            self._cancellable[client, key] = session
        session.running_tools[key] = False

        def leave() -> None:
            session.progress.pop(key, None)
            session.running_tools.pop(key, None)
            if client is not None and self._cancellable.get((client, key)) is session:
                del self._cancellable[client, key]

        return leave

    async def in_thread(self, work: Callable[[], Encoded | None]) -> Encoded | None:
        """Run this in a thread of the server."""
        return await asyncio.wrap_future(self._invoker.submit(work))

    # -- replies ------------------------------------------------------------------------------------------------------

    def content_of(self, raw: bytes) -> tuple[list[content.Block], bool]:
        """The content for a result, as JSON; and whether there are no rich values in it."""
        if not self._codec.holds_tags(raw):
            return content.plain_content(raw), True
        try:
            return content.rich_content(raw, self._codec), False
        except Exception as error:
            # What looks like a rich value was written by a method without a return hint, and is none.
            self._log.warning(None, "a result is shown to an agent as JSON: %s", error)
            return content.plain_content(raw), True

    def _reply(self, call_id: Any, result: dict[str, Any], *, is_stateless: bool) -> Encoded:
        """The reply with a result. Raises MessageTooLarge."""
        if is_stateless:
            result = {"resultType": "complete", **result, "_meta": {protocol.SERVER_KEY: self._info}}
        reply = self._codec.serialize({"jsonrpc": VERSION, "id": call_id, "result": result})
        if len(reply) > self._limits.max_message_size:
            raise envelope.oversize(len(reply), self._limits.max_message_size, side="server")
        return reply

    def tool_reply(self, call_id: Any, result: dict[str, Any], *, is_stateless: bool) -> Encoded:
        """The reply with the result of a tool; with an error in its place if it is too large."""
        try:
            return self._reply(call_id, result, is_stateless=is_stateless)
        except MessageTooLarge as error:
            result = {"content": content.error_content(error), "isError": True}
            return self._reply(call_id, result, is_stateless=is_stateless)

    def _error(self, call_id: Any, error: RpcError) -> Encoded:
        """The reply with an error."""
        code = protocol.wire_code(error.code)
        reply: dict[str, Any] = {"code": code, "message": error.message}
        if error.data is not None:
            reply["data"] = error.data
        return self._codec.serialize({"jsonrpc": VERSION, "id": call_id, "error": reply})


class _ToolCall:
    """One call of a tool, from the reply of its method to its own."""

    __slots__ = ("_call_id", "_dispatcher", "_is_stateless", "_session", "_tool")

    def __init__(self, dispatcher: McpDispatcher, tool: Tool, call_id: Any, session: McpSession) -> None:
        self._dispatcher = dispatcher
        self._tool = tool
        self._call_id = call_id
        self._session = session
        # As they are now: on a lasting connection the next request may be of another version.
        self._is_stateless = session.is_stateless

    def failed(self, error: RpcError) -> Encoded | None:
        """The reply for a call that has failed: an error that the agent is to see and may mend.

        None for one that its client has cancelled (Cancellation, "Behavior Requirements").
        """
        if self._session.running_tools.get(reply_key(self._call_id)) and protocol.is_cancelled(error):
            return None
        result = {"content": content.error_content(error), "isError": True}
        return self._dispatcher.tool_reply(self._call_id, result, is_stateless=self._is_stateless)

    def translated(self, reply: bytes) -> Encoded | None:
        """The reply to the call of a tool, for that of its method."""
        raw = content.result_in(reply)
        if raw is None:
            return self.failed(error_from_wire(orjson.loads(reply)["error"]))
        blocks, is_plain = self._dispatcher.content_of(raw)
        result: dict[str, Any] = {"content": blocks, "isError": False}
        is_known = self._tool.has_output_schema
        if is_plain or is_known:
            value: Any = orjson.Fragment(raw)
            is_wrapped = self._tool.is_wrapped if is_known else raw[:1] != b"{"
            result["structuredContent"] = {"result": value} if is_wrapped and not self._is_stateless else value
        return self._dispatcher.tool_reply(self._call_id, result, is_stateless=self._is_stateless)

    async def in_thread(self, reply: bytes) -> Encoded | None:
        """As `translated`, whose content is made in a thread."""
        try:
            return await self._dispatcher.in_thread(functools.partial(self.translated, reply))
        except ServerBusy as error:
            return self.failed(error)

    def later(self, reply: Waiting) -> Waiting:
        """The reply, for one of the method that comes later."""
        leave = self._dispatcher.enter(self._call_id, self._session)
        return _LaterReply(reply, self._finish(reply, leave), leave)

    async def _finish(self, reply: Waiting, leave: Callable[[], None]) -> Encoded | None:
        try:
            written = bytes(await reply or b"")
            return await self.in_thread(written) if len(written) > _HEAVY else self.translated(written)
        except asyncio.CancelledError:
            return self.failed(CallCancelled())
        finally:
            leave()


class _LaterReply(Coroutine[Any, Any, Encoded | None]):
    """A coroutine around that of a call, which is closed with it, also where neither has begun."""

    __slots__ = ("_inner", "_leave", "_outer")

    def __init__(self, inner: Waiting, outer: Waiting, leave: Callable[[], None]) -> None:
        self._inner = inner
        self._outer = outer
        self._leave = leave

    def send(self, value: Any) -> Any:
        return self._outer.send(value)

    def throw(self, *error: Any) -> Any:
        return self._outer.throw(*error)

    def close(self) -> None:
        self._outer.close()
        self._inner.close()
        self._leave()

    def __await__(self) -> Any:
        return self._outer.__await__()


def status_of_reply(reply: bytes, *, is_stateless: bool) -> int:
    """The HTTP status of the response with a reply."""
    if not reply.startswith(b'{"jsonrpc":"2.0","id":') or b'"error":{"code":' not in reply[:1000]:
        return 200
    found = orjson.loads(reply).get("error")
    if type(found) is not dict:
        return 200
    code = found["code"] - 1000 if -31099 <= found["code"] <= -31000 else found["code"]
    return protocol.status_of(RpcError(code, ""), is_stateless=is_stateless)
