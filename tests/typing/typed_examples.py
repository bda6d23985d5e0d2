"""What type checkers must see. Not run: checked by mypy and pyright (see .ci/run).

Lines that end in `# wrong` must be errors: a checker that is strict about unused ignores holds that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, assert_type

import numpy as np
from numpy.typing import NDArray

from rpcstream import (
    TLS,
    AsyncClient,
    Backoff,
    CallNext,
    Client,
    Codec,
    Context,
    Depends,
    Http,
    Hub,
    ImageOptions,
    Info,
    Limits,
    MethodCall,
    Peer,
    Retry,
    RpcError,
    Server,
    Shape,
)
from rpcstream.peer.remote import BlockingPeer
from rpcstream.peer.stream import Stream

server = Server(limits=Limits(max_batch=5), codec=Codec(images=ImageOptions(format="jpeg", quality=90)), debug=True)

Server(dbug=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong
Server(threads="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong
Hub(info=Info(title="hub"), http=Http(hosts=["example.org"]))
Hub(tilte="hub")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong
Hub(threads="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong


@server
def add(a: int, b: int = 2) -> int:
    return a + b


@server(name="vision.vectorize", timeout=1.5, offload="thread")
def vectorize(description: str) -> NDArray[np.float32]:
    return np.zeros(len(description), np.float32)


@server
async def later(a: str) -> str:
    return a


# The decorated function is the function: its signature is kept.
assert_type(add(1, b=2), int)
assert_type(vectorize("x"), NDArray[np.float32])
add("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong

server.add(lambda a: a, name="identity")
server.add(add, offload="fibre")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong
server.add(add, nmae="sum")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong
server.add_object(server, prefix="it", ordered=True)
server.add_object(server, name="it")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong
Shape(None, 3)


@server(timout=1.5)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportCallIssue]  # wrong
async def misspelt() -> None: ...


@server.batched(max_size=8, offload=None, allow="admin")
def squares(numbers: list[float]) -> list[float]:
    return [number**2 for number in numbers]


assert_type(squares([1.0]), list[float])
server.batched(offload="process")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # wrong
server.batched(ordered=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # wrong


@server.middleware
async def timed(call: MethodCall, call_next: CallNext) -> Any:
    assert_type(call.name, str)
    assert_type(call.arguments, dict[str, Any])
    assert_type(call.context, Context)
    return await call_next(call)


@server.middleware  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]  # wrong
async def lonely(call: MethodCall) -> Any: ...


@server.middleware  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]  # wrong
def not_async(call: MethodCall, call_next: CallNext) -> int:
    return 1


async def open_session(ctx: Context) -> AsyncIterator[list[str]]:
    yield [ctx.method]


@server
def greet(name: str, session: Annotated[list[str], Depends(open_session)]) -> str:
    assert_type(session, list[str])
    return name


assert_type(greet("x", ["session"]), str)
Depends(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong
Depends(open_session, cached=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong
server.dependency_overrides[open_session] = lambda: ["fake"]


def sync_calls(client: Client) -> None:
    assert_type(client.call("add", 1, b=2), Any)
    assert_type(client.call("add", a=1, b=2, returns=int), int)
    assert_type(client.call("add", 1, 2, timeout=3.0, returns=list[int]), list[int])
    assert_type(client.request("add", [1, 2], returns=int), int)
    client.vision.vectorize(description="x", timeout=1.0)
    assert_type(client.call("add", 1, 2, wait_for=10.0, returns=int), int)
    client.request("add", [1, 2], wait_for=None)
    client.notify.add(1, 2)
    client.submit.add(1, 2)
    with client.batch() as batch:
        first = batch.add(1, 2)
    first.result()
    try:
        client.add(1)
    except RpcError as error:
        assert_type(error.code, int)


async def async_calls(client: AsyncClient) -> None:
    assert_type(await client.call("add", 1, 2), Any)
    assert_type(await client.call("add", 1, 2, returns=int), int)
    await client.vision.vectorize(description="x")
    async with client.batch() as batch:
        first = batch.add(1, 2)
    first.result()


def sync_conversation(client: Client) -> None:
    # What is offered is the function, as with a server; a dict is still a request object.
    @client
    def confirm(text: str) -> bool:
        return bool(text)

    @client(name="tools.double", timeout=1.0)
    def double(value: int, ctx: Context | None = None) -> int:
        return 2 * value

    @client.on_connect
    def hello(server: BlockingPeer) -> None:
        server.call("rpc.authenticate", token="x")

    assert_type(confirm("x"), bool)
    assert_type(double(2), int)
    hello("server")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong
    assert_type(client({"jsonrpc": "2.0", "method": "add", "params": [1, 2], "id": 1}), dict[str, Any] | None)
    client(3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # wrong

    assert_type(client.call("train", 3, on_progress=print, returns=str), str)
    assert_type(client.request("train", [3], on_progress=print), Any)
    client.call("train", 3, on_progress="print")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # wrong
    client.train(3, on_progress=lambda value: value["done"])

    for item in client.stream.count(10):
        print(item)
    with client.subscribe("ticks", policy="drop_newest") as ticks:
        assert_type(ticks.dropped, int)
        for value in ticks:
            assert_type(value, Any)
    client.subscribe("ticks", policy="drop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong

    assert_type(client.offer(), list[str])
    assert_type(client.withdraw("double"), list[str])
    assert_type(client.publish("sensors.room1", 21.5, retain=True), int)
    assert_type(client.notify_client("gpu-1", "reload", model="small"), bool)
    assert_type(client.registered_name, str | None)
    client.submit.add(1, 2).add_done_callback(print)
    client.offer(shared=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong
    client.publish(1, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong
    client.wait_closed()

    Client(name="gpu-1", keepalive=30.0, tls=TLS(ca="ca.pem"), trace=print)
    Client(name=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong
    Client(reconnect=Backoff(longest=5.0), on_state=print, retry=Retry(times=2, repeats="idempotent"))
    Client(time_out=1.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong
    Client(retry=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong


async def async_conversation(client: AsyncClient) -> None:
    @client
    async def confirm(text: str) -> bool:
        return bool(text)

    @client(name="tools.double")
    def double(value: int) -> int:
        return 2 * value

    @client.on_connect
    async def hello(server: Peer) -> None:
        await server.call("rpc.authenticate", token="x")

    assert_type(await confirm("x"), bool)
    assert_type(double(2), int)
    await client({"jsonrpc": "2.0", "method": "add", "params": [1, 2], "id": 1})
    assert_type(await client.call("train", 3, on_progress=print, returns=str), str)
    stream: Stream = client.stream.count(10)
    async for item in stream:
        print(item)
    async with client.subscribe("ticks", returns=float) as ticks:
        assert_type(ticks.reconnects, int)
    assert_type(await client.offer(), list[str])
    assert_type(await client.withdraw(), list[str])
    assert_type(await client.publish("sensors.room1", 21.5), int)
    assert_type(await client.notify_client("gpu-1", "reload", "small"), bool)
    await client.offer(shared=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong
    await client.wait_closed()


async def serving() -> None:
    async with server.listening(port=0) as address:
        assert_type(address, str)
    async with server.listening(unix="/tmp/socket"):
        server.stop()
