"""A handler that asks its caller before it deletes something: the client offers a method, as a server does.

    python examples/confirm.py         # serves
    python examples/confirm.py call    # in a second terminal

The second command prints

    Delete a draft of 12 words? yes
    Delete a thesis of 80000 words? no
    left: ['thesis']
"""

from __future__ import annotations

import asyncio
import sys

from rpcstream import AsyncClient, Context, Server

server = Server()
texts: dict[str, str] = {}


@server
def save(name: str, text: str) -> None:
    texts[name] = text


@server
async def delete(name: str, ctx: Context) -> bool:
    """Delete a text, if the caller means it. Gives whether it was deleted."""
    if not await ctx.peer.confirm(f"Delete a {name} of {len(texts.get(name, '').split())} words?"):
        return False
    # Much may have happened while somebody thought about it: the event loop did not wait.
    return texts.pop(name, None) is not None


server.add(lambda: sorted(texts), name="names")


async def call(address: str = "127.0.0.1:8545") -> None:
    async with AsyncClient(address) as client:

        @client
        async def confirm(question: str) -> bool:
            answer = "no" if "thesis" in question else "yes"  # or await asyncio.to_thread(input, question)
            print(question, answer)
            return answer == "yes"

        await client.save("draft", "word " * 12)
        await client.save("thesis", "word " * 80_000)
        for name in await client.names():
            await client.delete(name)
        print("left:", await client.names())


if __name__ == "__main__":
    asyncio.run(call(*sys.argv[2:])) if sys.argv[1:2] == ["call"] else server.run()
