"""Reloading the configuration of a hub: what may change while it runs, and which connections are closed for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..auth.authenticator import TOKEN_IDENTITY
from ..errors import NotPermitted
from ..events.topics import Topics
from ..peer.session import Session
from ..server.options import GROUPS
from .config import HubConfig, User
from .directory import Directory
from .rules import Rules
from .users import UserIdentity

#: Arguments of `Hub` that are taken over while it runs, beside users.
CHANGEABLE = frozenset(("token", "call_timeout", "rules"))


def needs_restart(before: HubConfig, after: HubConfig) -> list[str]:
    """Return the names of the options that differ, and that a running hub cannot change."""
    names = []
    for old, new in ((_with_fields(before.options), _with_fields(after.options)), (before.where, after.where)):
        names += [name for name in {**old, **new} if name not in CHANGEABLE and old.get(name) != new.get(name)]
    return sorted(names)


def _with_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the fields of groups in place of the groups, as they stand in a file."""
    found = {name: value for name, value in options.items() if name not in GROUPS}
    for name, group in GROUPS.items():
        found |= vars(options.get(name, group()))
    return found


class ChangedRights:
    """Tells which connections keep their rights after a change, and may stay.

    Args:
        users: the users of the configuration now.
        keeps_token: the token that all callers show is what it was.
        rules: of the hub now; None if everything is permitted.
    """

    def __init__(
        self,
        users: Collection[User] | None,
        *,
        keeps_token: bool,
        rules: Rules | None,
        directory: Directory,
        topics: Topics,
    ) -> None:
        self._users = frozenset(users or ())
        self._keeps_token = keeps_token
        self._rules = rules
        self._directory = directory
        self._topics = topics

    def may_stay(self, session: Session) -> bool:
        """Tell whether a connection may stay: its user is what it was, and what it has is permitted still."""
        identity = session.identity
        if identity is None:  # it has not authenticated; when it does, that is by the users of now
            return True
        if isinstance(identity, UserIdentity):
            if identity.user not in self._users:
                return False
        elif identity == TOKEN_IDENTITY and not self._keeps_token:
            return False
        return self._rules is None or (self._may_offer(session, self._rules) and self._may_hear(session, self._rules))

    def _may_offer(self, session: Session, rules: Rules) -> bool:
        member, identity = self._directory.members.get(session), session.identity
        if member is None or member.name is None:
            return True
        name = member.name
        return rules.permits(identity, "name", name) and all(
            rules.permits(identity, "register", offered, unless=(f"{name}.{offered}",)) for offered in member.offers
        )

    def _may_hear(self, session: Session, rules: Rules) -> bool:
        try:
            return all(
                rules.check_subscription(session.identity, topic) == denied
                for topic, denied in self._topics.subscriptions_of(session).items()
            )
        except NotPermitted:
            return False
