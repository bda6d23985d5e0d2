"""Failures of handlers: callers get an id to look up in the log, and nothing of what the exception says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InternalError, RpcError
from ..observe.limited_log import LimitedLog

NO_FIT = "does not fit the return hint"
NO_FORM = "cannot be encoded"


class UnfitResult(TypeError):
    """What a handler returned or yielded cannot be sent. The text has no values; `__cause__` has the details."""


def checked(check: Callable[[Any], Any], value: Any, what: str) -> Any:
    """The value that a check gives. `what` names it in the UnfitResult that is raised if the check fails."""
    try:
        return check(value)
    except RpcError:
        raise
    except Exception as error:
        raise UnfitResult(f"{what} {NO_FIT}") from error


def see_log(side: str, failure_id: str | None) -> str:
    """Tell a caller where to look for an error. None: the line was omitted, because there were too many."""
    if failure_id is None:
        return f"the {side}'s log omits it, because there were too many errors"
    return f"see the {side}'s log, id {failure_id}"


def internal_error(
    log: LimitedLog,
    side: str,
    key: Any,
    text: str,
    *values: Any,
    error: BaseException | None = None,
    what: str = "",
    data: Any = None,
) -> InternalError:
    """Log a failure, and give the error for the caller, which names the same id.

    Args:
        side: whose log it is: "server" or "client".
        key, text, values, error: as for `LimitedLog.failure`.
        what: what the caller may know of it.
        data: of the error.
    """
    where = see_log(side, log.failure(key, text, *values, error=error))
    return InternalError(f"{InternalError.MESSAGE}: {what}{'; ' if what else ''}{where}", data)
