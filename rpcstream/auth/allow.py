"""Permission to call a method: the option `allow`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import RegistrationError
from ..observe.limited_log import LimitedLog

log = logging.getLogger("rpcstream.server")

#: The option `allow`: a name, several, or a function of the identity.
AllowRule = str | Collection[str] | Callable[[Any], bool]


class CallerRule:
    """Decides which identities may call one method.

    Args:
        rule: a name, or several: an identity that has one of them may call. Or a function of the identity that returns
            whether it may; if it raises, the exception is logged and the caller is not permitted.
        method: the remote name, for errors and the log.

    Raises:
        RegistrationError: there are no names, one is no string or empty, or the function is async.
    """

    __slots__ = ("_function", "_log", "_method")

    def __init__(self, rule: AllowRule, *, method: str) -> None:
        self._method = method
        self._log = LimitedLog(log)
        if isinstance(rule, str | Collection):
            names = [rule] if isinstance(rule, str) else list(rule)
            if not names or not all(isinstance(name, str) and name for name in names):
                raise RegistrationError(f"{method}: allow must have names, strings that are not empty, got {rule!r}")
            self._function: Callable[[Any], Any] = lambda identity: not names_of(identity).isdisjoint(names)
        elif not callable(rule) or inspect.iscoroutinefunction(rule):
            raise RegistrationError(f"{method}: allow must be a name, several, or a sync function, got {rule!r}")
        else:
            self._function = rule

    def permits(self, identity: Any) -> bool:
        """True if a caller with this identity may call the method; a caller without an identity never may."""
        if identity is None:
            return False
        try:
            found = self._function(identity)
            if inspect.isawaitable(found):
                raise TypeError("the function for allow returned an awaitable; it must be a plain function")
            return bool(found)
        except Exception as error:
            kind = "the function for allow of method %r raised, the caller is not permitted"
            self._log.error(None, kind, self._method, error=error)
            return False


def names_of(identity: Any) -> set[str]:
    """The names of an identity: itself, if it is a string, and its `roles` (an attribute, or an item of a mapping).

    Roles are one string or a collection of strings; anything else in there is left out.
    """
    names = {str(identity)} if isinstance(identity, str) else set()
    roles = identity.get("roles") if isinstance(identity, Mapping) else getattr(identity, "roles", None)
    if isinstance(roles, str):
        names.add(roles)
    elif isinstance(roles, Collection):
        names.update(role for role in roles if isinstance(role, str))
    return names
