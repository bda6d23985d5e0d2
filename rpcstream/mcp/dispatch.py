"""The sessions of MCP, and the dispatcher that answers them: the server's own one calls the methods behind tools.

`protocol` knows versions, headers, error codes, and how a result looks to an agent; `tools` knows the tools.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import orjson

from ..codec.payloads import parse_exactly, parse_whole
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
from ..methods.dispatch import Dispatcher, too_deep
from ..methods.replies import internal_error
from ..observe.limited_log import LimitedLog
from ..peer import control_messages
from ..peer.control_messages import reply_key
from ..peer.inflight import Later
from ..peer.session import Session
from ..text import get_logger
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.envelope import PROGRESS, VERSION, Oversize, read_progress
from ..wire.json_scan import is_deeper
from . import protocol
from .tools import Tool, Tools

log = get_logger("rpcstream.server")


#: What a notification begins with that is made of a progress report.
_NOTIFICATION = b'{"jsonrpc":"2.0","method":"notifications/progress","params":'

#: Characters of the text of a progress report.
_MAX_TEXT = 1000


class Progress:
    """What was said of the progress of one call, since each report must be greater than the one before.

    Args:
        token: that the client has given for it.
    """

    __slots__ = ("_last", "_token")

    def __init__(self, token: str | int) -> None:
        self._token = token
        self._last: float | None = None

    def notification(self, value: Any) -> bytes | None:
        """The notification for what a handler has reported; None if it is not further than before.

        What does not say how much is done counts one further.
        """
        done, total, text = read_progress(value)
        if done is None:
            done = 1 if self._last is None else math.floor(self._last) + 1
        elif self._last is not None and done <= self._last:
            return None
        self._last = done
        params: dict[str, Any] = {"progressToken": self._token, "progress": done}
        if total is not None:
            params["total"] = total
        if text is not None:
            params["message"] = text[:_MAX_TEXT]
        return _NOTIFICATION + orjson.dumps(params) + b"}"


def parse_long(line: bytes, state: Session) -> tuple[Any, bytes]:
    """Parse a long message, as `peer.incoming.parse_long`, with all of its strings in place."""
    return parse_whole(line, state.limits), line


class McpSession(Session):
    """A session on which MCP is spoken, of a connection or of one POST. It never calls the client, as MCP says.

    Attributes:
        is_http: the session is one POST, whose headers are those of `headers`.
        is_stateless: the request that came last is of the version 2026-07-28.
        more_headers: of the HTTP response.
        progress: what is told of the progress of the calls that run, by the id as text.
        running_tools: whether the client has cancelled a tool call that is still running, by the id as text.
    """

    __slots__ = ("is_http", "is_stateless", "more_headers", "progress", "running_tools")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_http = self.is_stateless = False
        self.more_headers: list[tuple[str, str]] = []
        self.progress: dict[str, Progress] = {}
        self.running_tools: dict[str, bool] = {}
        self.takes_binary = self.offers_binary = False
        self.streaming = False

    def send(self, message: Encoded) -> None:
        """Send what a call reports of its progress, if its caller has asked for that. Nothing else is sent."""
        if not self.progress:
            return
        parsed = orjson.loads(bytes(message))
        if parsed.get("method") != PROGRESS:
            return
        params = parsed["params"]
        progress = self.progress.get(reply_key(params["token"]))
        notification = None if progress is None else progress.notification(params["value"])
        if notification is not None:
            super().send(notification)


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
        info: name and version of the server.
        is_public: every caller may have the same answers to `tools/list`, as far as the tools permit.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        tools: Tools,
        *,
        info: dict[str, str],
        is_public: bool,
    ) -> None:
        self._dispatcher = dispatcher
        self._tools = tools
        self._codec, self._limits = dispatcher.replies.codec, dispatcher.replies.limits
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
            limit = self._limits.max_depth
            if len(line) > 2 * limit and is_deeper(line, limit):
                raise too_deep(limit, "server")
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
        key, owner = reply_key(call_id), session
        if session.is_http:
            client = protocol.session_id(session.headers)
            found = None if client is None else self._cancellable.get((client, key))
            if found is None or found.identity != session.identity:
                return
            owner = found
        if key in owner.running_tools:
            owner.running_tools[key] = True
        cancel = {"jsonrpc": VERSION, "method": envelope.CANCEL, "params": {"id": call_id}}
        control_messages.handle(owner, cancel, b"")

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
        message = {"jsonrpc": VERSION, "id": call_id, "method": tool.method.name}
        try:
            message["params"] = tool.params(arguments or {})
        except ValueError as error:
            told = InvalidParams(data={"reason": str(error)})
            return self._tool_reply(call_id, failed_result(told), is_stateless=session.is_stateless)
        if meta := protocol.meta_of({"params": params}):
            message |= {name: meta[name] for name in _TRACE if type(meta.get(name)) is str}
            message["_meta"] = meta
        return self._run_tool(tool, message, session, protocol.progress_token(meta), session.is_stateless)

    async def _run_tool(
        self, tool: Tool, message: dict[str, Any], session: McpSession, token: str | int | None, is_stateless: bool
    ) -> Encoded | None:
        """Call the method of a tool; gives the reply. None if its client has cancelled it (MCP: "Cancellation").

        Args:
            token: of the progress that the client wants to be told; None: it wants none.
            is_stateless: of the request; on a lasting connection the next one may be of another version.
        """
        call_id = message["id"]
        key = reply_key(call_id)
        client = protocol.session_id(session.headers) if session.is_http and not is_stateless else None
        if client is not None:
            self._cancellable[client, key] = session
        session.running_tools[key] = False
        if token is not None:
            session.progress[key] = Progress(token)
        try:
            reply: Any = self._dispatcher.answer(message, b"", session)
            written = bytes((await reply if isinstance(reply, Coroutine) else reply) or b"")
            if len(written) <= _HEAVY:
                result = self._tool_result(tool, written, is_stateless=is_stateless)
            else:
                work = partial(self._tool_result, tool, written, is_stateless=is_stateless)
                result = await asyncio.wrap_future(self._dispatcher.invoker.submit(work))
        except ServerBusy as error:
            result = failed_result(error)
        except (asyncio.CancelledError, CallCancelled) as error:
            if session.running_tools.get(key):
                return None
            result = failed_result(error if isinstance(error, CallCancelled) else CallCancelled())
        finally:
            session.progress.pop(key, None)
            session.running_tools.pop(key, None)
            if client is not None and self._cancellable.get((client, key)) is session:
                del self._cancellable[client, key]
        return self._tool_reply(call_id, result, is_stateless=is_stateless)

    def _tool_result(self, tool: Tool, reply: bytes, *, is_stateless: bool) -> dict[str, Any]:
        """The result of a tool, from the reply of its method. Raises CallCancelled if the call was cancelled."""
        raw = protocol.result_in(reply)
        if raw is None:
            error = error_from_wire(orjson.loads(reply)["error"])
            if protocol.is_cancelled(error):
                raise error
            return failed_result(error)
        blocks, is_plain = self._content_of(raw)
        result: dict[str, Any] = {"content": blocks, "isError": False}
        if is_plain or tool.has_output_schema:
            value: Any = orjson.Fragment(raw)
            is_wrapped = tool.is_wrapped if tool.has_output_schema else raw[:1] != b"{"
            result["structuredContent"] = {"result": value} if is_wrapped and not is_stateless else value
        return result

    # -- replies ------------------------------------------------------------------------------------------------------

    def _content_of(self, raw: bytes) -> tuple[list[protocol.Block], bool]:
        """The content for a result, as JSON; and whether there are no rich values in it."""
        if not self._codec.holds_tags(raw):
            return protocol.plain_content(raw), True
        try:
            return protocol.rich_content(raw, self._codec), False
        except Exception as error:
            # What looks like a rich value was written by a method without a return hint, and is none.
            self._log.warning(None, "a result is shown to an agent as JSON: %s", error)
            return protocol.plain_content(raw), True

    def _reply(self, call_id: Any, result: dict[str, Any], *, is_stateless: bool) -> Encoded:
        """The reply with a result. Raises MessageTooLarge."""
        if is_stateless:
            result = {"resultType": "complete", **result, "_meta": {protocol.SERVER_KEY: self._info}}
        reply = self._codec.serialize({"jsonrpc": VERSION, "id": call_id, "result": result})
        if len(reply) > self._limits.max_message_size:
            raise envelope.oversize(len(reply), self._limits.max_message_size, side="server")
        return reply

    def _tool_reply(self, call_id: Any, result: dict[str, Any], *, is_stateless: bool) -> Encoded:
        """The reply with the result of a tool; with an error in its place if it is too large."""
        try:
            return self._reply(call_id, result, is_stateless=is_stateless)
        except MessageTooLarge as error:
            return self._reply(call_id, failed_result(error), is_stateless=is_stateless)

    def _error(self, call_id: Any, error: RpcError) -> Encoded:
        """The reply with an error."""
        code = protocol.wire_code(error.code)
        reply: dict[str, Any] = {"code": code, "message": error.message}
        if error.data is not None:
            reply["data"] = error.data
        return self._codec.serialize({"jsonrpc": VERSION, "id": call_id, "error": reply})


def failed_result(error: RpcError) -> dict[str, Any]:
    """The result of a tool call that has failed: an error that the agent is to see and may correct."""
    return {"content": protocol.error_content(error), "isError": True}


def status_of_reply(reply: bytes, *, is_stateless: bool) -> int:
    """The HTTP status of the response with a reply."""
    if not reply.startswith(b'{"jsonrpc":"2.0","id":') or b'"error":{"code":' not in reply[:1000]:
        return 200
    found = orjson.loads(reply).get("error")
    if type(found) is not dict:
        return 200
    code = found["code"] - 1000 if -31099 <= found["code"] <= -31000 else found["code"]
    return protocol.status_of(RpcError(code, ""), is_stateless=is_stateless)
