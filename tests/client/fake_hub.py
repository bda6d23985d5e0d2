"""A server with the methods of a hub that clients use, which can be made to forget or refuse registrations."""

from __future__ import annotations

import asyncio
from typing import Any

from rpcstream import InvalidParams, ProviderGone, Server
from rpcstream.peer.context import CallContext
from rpcstream.peer.remote import Peer
from rpcstream.peer.session import Session

from ..internals import registry_of


class FakeHub:
    """Answers registrations like a hub, and records them.

    Attributes:
        said: the calls of `rpc.register`, in order, as (session, params).
        refused: names and methods that belong to another client.
        answer: the result of `rpc.register`, in place of the right one.
        silent: registrations are not answered.
        losses: this many calls of `work` and `buy` are answered as if their provider were gone.
    """

    def __init__(self, **options: Any) -> None:
        self.server = Server(drain_timeout=0.2, **options)
        self.said: list[tuple[Session, dict[str, Any]]] = []
        self.withdrawn: list[Any] = []
        self.told: list[dict[str, Any]] = []
        self.names: dict[str, Session] = {}
        self.offered: dict[Session, dict[str, dict[str, Any]]] = {}
        self.refused: set[str] = set()
        self.answer: Any = None
        self.silent = False
        self.losses = 0
        self.worked: list[str] = []
        for name, function in (
            ("rpc.register", self.register),
            ("rpc.unregister", self.unregister),
            ("rpc.publish", self.publish),
            ("rpc.notify", self.notify),
        ):
            registry_of(self.server).add(function, name=name, reserved=True)
        self.server.add(self.ask)
        self.server.add(self.who)
        self.server.add(self.work, idempotent=True)
        self.server.add(self.buy)

    # -- methods --------------------------------------------------------------------------------------------

    async def register(
        self,
        ctx: CallContext,
        name: str | None = None,
        methods: list[Any] | None = None,
        components: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> Any:
        session = ctx.session
        given = {"name": name, "methods": methods, "components": components, "key": key}
        self.said.append((session, {member: value for member, value in given.items() if value is not None}))
        if self.silent:
            await asyncio.Event().wait()
        if self.answer is not None:
            return self.answer
        name = name or f"client-{len(self.said)}"
        new = {method["name"]: method for method in methods or []}
        for member, wanted in (("name", name), *(("methods", method) for method in new)):
            if wanted in self.refused:
                raise InvalidParams(f"{wanted} is taken", {"parameter": member, "reason": "taken"})
        holder = self.names.get(name)
        if holder not in (None, session):
            if key != f"key of {name}":
                raise InvalidParams(f"{name} is taken", {"parameter": "name", "reason": "taken"})
            assert holder is not None
            holder.abort("its place was taken")
        self.names[name] = session
        self.offered.setdefault(session, {}).update(new)
        return {"name": name, "key": f"key of {name}", "methods": sorted(self.offered[session])}

    def unregister(self, ctx: CallContext, methods: list[str] | None = None) -> list[str]:
        self.withdrawn.append(methods)
        offered = self.offered[ctx.session]
        gone = [name for name in (list(offered) if methods is None else methods) if offered.pop(name, None)]
        if methods is None:
            self.names = {name: session for name, session in self.names.items() if session is not ctx.session}
        return gone

    def publish(self, topic: str, value: Any, retain: bool = False) -> int:
        self.told.append({"topic": topic, "value": value, "retain": retain})
        return 3

    def notify(self, client: str, method: str, params: Any = None) -> bool:
        if client not in self.names:
            raise InvalidParams(f"no client has the name {client}", {"parameter": "client", "reason": "unknown"})
        self.told.append({"client": client, "method": method, "params": params})
        return True

    async def ask(self, client: str, method: str, params: list[Any]) -> Any:
        """Calls a method of a client."""
        return await Peer(self.names[client]).call(method, *params)

    def who(self, ctx: CallContext) -> str | None:
        """The name of the caller."""
        return next((name for name, session in self.names.items() if session is ctx.session), None)

    def work(self) -> str:
        return self._carried_out("work")

    def buy(self) -> str:
        return self._carried_out("buy")

    def _carried_out(self, what: str) -> str:
        self.worked.append(what)
        if self.losses:
            self.losses -= 1
            raise ProviderGone(data={"method": what})
        return "done"

    # -- for tests -----------------------------------------------------------------------------------------

    @property
    def registrations(self) -> list[dict[str, Any]]:
        """The params of all registrations, methods by their names."""
        return [
            {**params, **({"methods": [each["name"] for each in params["methods"]]} if "methods" in params else {})}
            for _, params in self.said
        ]

    @property
    def sessions(self) -> list[Session]:
        """The connections on which there was a registration, in order."""
        return list(dict.fromkeys(session for session, _ in self.said))

    def forget(self) -> None:
        """As if it were started anew."""
        self.names.clear()
        self.offered.clear()

    def cut(self) -> None:
        """Close the latest connection with a registration; in the server's loop."""
        self.sessions[-1].abort("cut off")
