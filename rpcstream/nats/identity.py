"""Who the callers of a service are: what the headers of their messages show, and which identity that is."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from ..auth.authenticator import Authenticator
from ..auth.gate import WRONG_TOKEN
from ..errors import NotAuthenticated
from ..peer.credentials import Credentials
from .protocol import REQUEST_INFO, NatsMessage

#: The header with a token, as in HTTP.
AUTHORIZATION = "Authorization"

#: Characters of a token; as many as HTTP takes in a header.
_MAX_TOKEN = 64 * 1024

NO_TOKEN = {"reason": "the message shows no token: it stands in the header Authorization"}
NOT_ACCEPTED = {"reason": "this caller is not accepted"}
NO_LOGIN = {"reason": "rpc.authenticate is for connections: by NATS the header Authorization has the token"}


class Shown(NamedTuple):
    """What a message shows of its sender.

    Attributes:
        user, account: as NATS says; empty where that is not read, or NATS says nothing.
    """

    token: str | None
    user: str
    account: str

    @property
    def refusal(self) -> dict[str, str]:
        """Why a sender that shows this is not accepted."""
        if self.token is not None:
            return WRONG_TOKEN
        return NOT_ACCEPTED if self.user or self.account else NO_TOKEN


class CallerIdentities:
    """Finds the identities of callers.

    Args:
        authenticator: of the server.
        trusts_nats: what NATS says of a caller in another account is read.
    """

    def __init__(self, authenticator: Authenticator, *, trusts_nats: bool = False) -> None:
        self._authenticator = authenticator
        self._trusts_nats = trusts_nats

    def shown_by(self, message: NatsMessage) -> Shown:
        """What a message shows of its sender."""
        headers = message.headers
        if headers is None:
            return _NOTHING
        text = headers.get(AUTHORIZATION, "")
        token = text[7:].strip() if text[:7].lower() == "bearer " and len(text) <= _MAX_TOKEN else ""
        user, account = _request_info(headers.get(REQUEST_INFO)) if self._trusts_nats else ("", "")
        return Shown(token or None, user, account)

    def find(self, shown: Shown, reply: str) -> Any:
        """Find the identity of who has sent a message: gives it, or an awaitable of it.

        Args:
            shown: what the message shows.
            reply: the subject for its answer.

        Raises:
            NotAuthenticated: the sender is not accepted.
        """
        address = f"nats:{reply}"
        credentials = Credentials(token=shown.token, nats_user=shown.user, nats_account=shown.account, address=address)
        identity = self._authenticator.identify(credentials)
        if identity is None:
            self._authenticator.refused(address, has_shown=shown.token is not None)
            raise NotAuthenticated(data=shown.refusal)
        return identity


_NOTHING = Shown(None, "", "")


def _request_info(text: str | None) -> tuple[str, str]:
    """User and account in what NATS says of a caller; the user is known only where the import is shared."""
    if not text:
        return "", ""
    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError:
        return "", ""
    found = (told.get("user"), told.get("acc")) if type(told) is dict else ("", "")
    user, account = (each if type(each) is str else "" for each in found)
    return user, account
