"""Names of NATS subjects for methods, instances, clients and events.

NATS does not allow white space and empty tokens in subjects, and gives `*` and `>` a meaning. So such characters are
percent-encoded (RFC 3986, 2.1). Every name has exactly one subject, and ordinary names stay readable.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

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
