"""An attack on the server of the example: a flood of small calls on one connection."""

from __future__ import annotations

from rpcstream import Server

from .harness import MIB, Budget, ServerUnderAttack, attack, request


def plain() -> Server:
    server = Server()

    @server
    def add(a: int, b: int) -> int:
        return a + b

    return server


@attack(0, "100,000 small calls in one go, the answers read slowly", server=plain, budget=Budget(memory=64 * MIB))
async def flood(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    calls = 100_000 if target.whole else 20_000
    raw.write(request("add", [1, 2]) * calls)
    for _ in range(calls):
        reply = await raw.reply()
        assert reply["result"] == 3
