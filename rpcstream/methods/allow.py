"""Who may call a method: the option `allow`.

Owns one rule, made of names or a function, and what the names of an identity are. Pure, but for its log.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import RegistrationError
from ..observe.limited_log import LimitedLog
from .introspect import holds

log = logging.getLogger("rpcstream.server")

#: A name, several, or a function of the identity.
AllowRule = str | Collection[str] | Callable[[Any], bool]


class Allow:
    """The rule of one method.

    Args:
        rule: a name, or several: who has one of them may call. Or a function that is called with the identity; what it
            raises is logged, and the caller not permitted.

    Raises:
        RegistrationError: no names, or none that are strings; an async function.
    """

    __slots__ = ("_function", "_log", "_method", "_names")

    def __init__(self, rule: AllowRule, *, method: str) -> None:
        self._method = method
        self._log = LimitedLog(log)
        self._function: Callable[[Any], bool] | None = None
        self._names: frozenset[str] = frozenset()
        if isinstance(rule, str | Collection):
            names = [rule] if isinstance(rule, str) else list(rule)
            if not names or not all(isinstance(name, str) and name for name in names):
                raise RegistrationError(f"{method}: allow must have names, strings that are not empty, got {rule!r}")
            self._names = frozenset(names)
        elif not callable(rule):
            raise RegistrationError(f"{method}: allow must be a name, several, or a function, got {rule!r}")
        elif holds(rule, inspect.iscoroutinefunction):
            raise RegistrationError(
                f"{method}: the function for allow must not be async; let authenticate= find it out"
            )
        else:
            self._function = rule

    def permits(self, identity: Any) -> bool:
        """May a caller with this identity call the method? One without any may not."""
        if identity is None:
            return False
        try:
            if self._function is None:
                return not self._names.isdisjoint(names_of(identity))
            found: Any = self._function(identity)
            if inspect.isawaitable(found):
                if inspect.iscoroutine(found):
                    found.close()
                raise TypeError("the function for allow gave something to await")
            return bool(found)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            kind = "the rule for who may call %r failed, the caller may not"
            self._log.error(None, kind, self._method, error=error)
            return False


def names_of(identity: Any) -> set[str]:
    """The names of an identity: itself, if it is a string, and its `roles`, an attribute or, of a mapping, an item.

    Roles are one string or a collection of strings; whatever else is in there is no name.
    """
    names = {str(identity)} if isinstance(identity, str) else set()
    roles = identity.get("roles") if isinstance(identity, Mapping) else getattr(identity, "roles", None)
    if isinstance(roles, str):
        names.add(roles)
    elif isinstance(roles, Collection):
        names.update(role for role in roles if isinstance(role, str))
    return names
