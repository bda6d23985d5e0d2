"""The messages of NATS: which calls a payload has, how these are refused, and the names of subjects.

A subject is tokens with dots between them. NATS permits no white space in a token and no empty token, and `*` and `>`
have a meaning for subscribers. Such characters are percent-encoded (RFC 3986, 2.1), so every name has one subject, and
names that need no encoding stay readable.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson

from ..codec import payloads
from ..errors import MessageTooLarge, ParseError, RpcError
from ..limits import Limits
from ..wire import envelope
from ..wire.binary_frame import MARK, FrameError, read_header
from ..wire.envelope import LONG

#: Stands for the JSON of a message that cannot be read.
UNREADABLE = object()

#: The method with which a client asks for a direct connection.
DIRECT_METHOD = "rpc.direct"

#: The refusals of a batch of more members than this are one, without an id.
_BATCH_MAX = 1000


def read_payload(data: bytes, limits: Limits) -> tuple[Any, RpcError | None]:
    """The JSON of a message or of a binary frame, to see what it calls; or why it is not handled.

    Of one that its session cannot read either, and so never carries out, that is said there: it is `UNREADABLE` here.
    """
    if len(data) > limits.max_message_size:
        return UNREADABLE, None
    if data[:1] == bytes((MARK,)):
        line, _, rest = data.partition(b"\n")
        try:
            json_size = read_header(line + b"\n")[0]
            return _parsed(rest[:json_size], limits), None
        except payloads.OverLimit:
            return UNREADABLE, None
        except (FrameError, orjson.JSONDecodeError) as error:
            return None, ParseError(data={"reason": str(error)})
    try:
        return _parsed(data, limits), None
    except orjson.JSONDecodeError:
        return UNREADABLE, None


def _parsed(data: bytes, limits: Limits) -> Any:
    """The JSON of a message, read in the same way as by the session, so that both read the same."""
    return orjson.loads(data) if len(data) < LONG else payloads.parse(data, limits)[0]


def ids_of(read: Any) -> list[Any]:
    """The ids of the calls in a message."""
    if type(read) is list:
        return [member["id"] for member in read if type(member) is dict and "id" in member]
    return [read["id"]] if type(read) is dict and "id" in read else []


def ids_in(read: Any) -> list[int | str]:
    """The ids in an array that another end has sent: what is none is left out."""
    return [each for each in read if type(each) in (int, str)] if type(read) is list else []


def belongs_to_calls(read: Any) -> bool:
    """Whether a parsed message is a reply, an array of replies or a control message: it calls nothing itself."""
    if type(read) is list:
        return all(map(envelope.is_reply, read))
    if type(read) is not dict:
        return False
    method = read.get("method")
    return method is None or (type(method) is str and method.startswith(envelope.CONTROL) and "id" not in read)


def refusal_of(read: Any, error: RpcError, room: int) -> bytes | None:
    """The answer to the calls in a message, which all are refused; None where it has none, such as a reply.

    Args:
        room: bytes that the answer may have. One that would be longer has no ids.
    """
    call_ids = [each["id"] for each in (read if type(read) is list else [read]) if _is_call(each)]
    if not call_ids:
        return None
    if len(call_ids) <= _BATCH_MAX:
        answers = [envelope.error_reply(call_id, error) for call_id in call_ids]
        payload = orjson.dumps(answers if len(answers) > 1 or type(read) is list else answers[0])
        if len(payload) <= room:
            return payload
    return orjson.dumps(envelope.error_reply(None, error))


def _is_call(read: Any) -> bool:
    if type(read) is not dict or "id" not in read or envelope.is_reply(read):
        return False
    return read["id"] is None or type(read["id"]) in (int, float, str)


# -- direct connections -----------------------------------------------------------------------------------------------


def session_message(**params: Any) -> bytes:
    """A control message about a session over NATS."""
    return orjson.dumps(envelope.request(envelope.SESSION, params))


def params_of_question(read: Any) -> dict[str, Any] | None:
    """The params of a call of `rpc.direct`; None if a message is something else."""
    if type(read) is not dict or read.get("method") != DIRECT_METHOD or not _is_call(read):
        return None
    params = read.get("params")
    return params if type(params) is dict else {}


def reason_of(error: Exception) -> str:
    """Why something failed, without the words that all errors of its class have."""
    data = error.data if isinstance(error, RpcError) else None
    return str(data["reason"]) if type(data) is dict and "reason" in data else str(error)


def no_way(size: int, limit: int, why: str) -> MessageTooLarge:
    """The error for a message that neither NATS carries nor a direct connection."""
    reason = (
        f"{size} bytes are more than NATS carries here (max_payload, {limit}), and there is no direct connection for "
        f"them: {why}; raise max_payload of the NATS server, or let clients connect to the instances (direct=, "
        "--set nats_direct=)"
    )
    return MessageTooLarge(data={"limit": limit, "size": size, "reason": reason})


# -- subjects ---------------------------------------------------------------------------------------------------------


#: What every subject of ours begins with.
ROOT = "rpc"

#: The queue group of the instances of a service: each call goes to one of them.
QUEUE = "rpc"

#: Bytes of a subject, at most. A line of NATS's protocol has 4,096 by default, with a reply subject and two numbers.
SUBJECT_MAX = 2048

#: The token of a client's inbox that says what it reads: several messages as lines, and binary frames.
CLIENT = "rpcstream"

#: Tokens of ours below a service; no method becomes these, since a `$` at the beginning of a token is encoded.
BATCH, INSTANCE, INQUIRY, EVENT = "$batch", "$instance", "$inquiry", "$event"

#: Tokens for last values: an instance sends a value to the others, a client has an instance publish one, and both ask
#: for the values of a topic or pattern.
KEEP, RETAIN, LAST = "$keep.all", "$retain", "$last"

#: The token of the inboxes of instances: so they need no permission for others.
INBOX = "$keep"

#: What subjects begin with that are no inboxes: of NATS itself (`$JS`, `$KV`, `$SRV`), and of services. Nothing is
#: answered there: what an instance is permitted to publish, it does not publish for those who are not.
NO_INBOX = ("$", f"{ROOT}.")

#: Characters that may not stand in a token as they are.
_FORBIDDEN = re.compile(r"[\x00-\x20%*>\x7f-\x9f\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ud800-\udfff]")

#: A name with a token that is empty, or begins with `$`.
_UNUSUAL = re.compile(r"^\Z|^[.$]|\.[.$]|\.\Z")

#: Stands for an empty token. No name becomes this otherwise, since a percent sign in it becomes `%25`.
_EMPTY = "%-"

#: What a service may be called.
_SERVICE = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def check_service(name: str) -> str:
    """The name of a service, if it is one.

    Raises:
        ValueError: it is none. NATS's services have letters, digits, `-` and `_` in their names (ADR-32).
    """
    if not _SERVICE.match(name):
        raise ValueError(f"a service is called by up to 64 letters, digits, '-' and '_', not {name!r}")
    return name


def encoded(name: str) -> str:
    """A name with dots in it as tokens of a subject.

    Raises:
        ValueError: it is too long for a subject (`SUBJECT_MAX`).
    """
    if _FORBIDDEN.search(name) is not None:
        name = _FORBIDDEN.sub(_percent, name)
    if _UNUSUAL.search(name) is not None:
        name = ".".join(map(_token, name.split(".")))
    if len(name) > SUBJECT_MAX or (not name.isascii() and len(name.encode()) > SUBJECT_MAX):
        raise ValueError(f"a name of over {SUBJECT_MAX} bytes is too long for NATS")
    return name


def decoded(tokens: str) -> str | None:
    """The name that became these tokens; None where they stand for no text. Any program may have chosen them."""
    try:
        return unquote_to_bytes(tokens.replace(_EMPTY, "")).decode()
    except UnicodeError:
        return None


def event_subject(service: str, topic: str, kind: str = EVENT) -> str:
    """The subject of the events of a topic, or of those that match a pattern.

    NATS's wildcards are those of our patterns, with one difference: a pattern of ours that begins with one does not
    match topics of rpcstream itself (`rpc.`), so that those who receive events look at the topic again.

    Args:
        kind: `EVENT`, or one of the tokens for last values.

    Raises:
        ValueError: it is too long for a subject.
    """
    return event_prefix(service, kind) + event_tokens(topic)


def event_prefix(service: str, kind: str = EVENT) -> str:
    """What the subjects of all events of a service begin with; the tokens of the topic follow."""
    return f"{ROOT}.{service}.{kind}."


def event_tokens(topic: str) -> str:
    """The tokens of a topic or pattern, which stand behind a prefix. Raises ValueError where they are too long."""
    if "*" not in topic and ">" not in topic:
        return encoded(topic)
    tokens = ".".join([level if level in ("*", ">") else encoded(level) for level in topic.split(".")])
    if len(tokens.encode()) > SUBJECT_MAX:
        raise ValueError(f"a pattern of over {SUBJECT_MAX} bytes is too long for NATS")
    return tokens


def _token(token: str) -> str:
    """A token that NATS takes: not empty, and without the `$` that stands for names of its own and of ours."""
    if not token:
        return _EMPTY
    return "%24" + token[1:] if token.startswith("$") else token


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))
