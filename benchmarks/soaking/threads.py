"""The load of a soak from threads: the sync client, shared and not, in a conversation and without one.

Each worker is a thread that repeats one feature, with random choices of its own.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
from PIL import Image

from rpcstream import CallTimeout, Client, ConnectFailed, ConnectionLost
from rpcstream.errors import DeadlineExceeded

from .tally import Tally
from .tasks import HANGS, PAUSE

Feature = Callable[["Threads", random.Random], None]
FEATURES: dict[str, Feature] = {}


def feature(function: Feature) -> Feature:
    """Register a function that a worker repeats."""
    FEATURES[function.__name__] = function
    return function


class Threads:
    """The clients and workers of one process.

    Attributes:
        plain: a client that only calls.
        conversing: one that offers methods, streams and subscribes.
    """

    def __init__(self, address: str, seed: str, tally: Tally) -> None:
        self.address = address
        self.tally = tally
        self.plain = Client(address, pool=2)
        self.conversing = self.offering(Client(address))
        self._seed = seed
        self._goes = threading.Event()
        self._goes.set()
        self._calm = threading.Condition()
        self._at_work = 0
        self._ends = False
        self._workers: list[threading.Thread] = []
        self._last = 0

    def offering(self, client: Client) -> Client:
        @client
        def confirm(token: str) -> str:
            return token[::-1]

        @client
        def confirmations(token: str, n: int) -> Iterator[Any]:
            for number in range(n):
                yield [token, number]

        return client

    def token(self) -> str:
        with self._calm:
            self._last += 1
            return f"{self._seed}.{self._last}"

    def start(self) -> None:
        for name, function in FEATURES.items():
            arguments = (name, function, random.Random(f"{self._seed} {name}"))
            self._workers.append(threading.Thread(target=self._work, args=arguments, daemon=True))
            self._workers[-1].start()

    def _work(self, name: str, function: Feature, choose: random.Random) -> None:
        while self._goes.wait() and not self._ends:
            with self._calm:
                self._at_work += 1
            try:
                function(self, choose)
                self.tally.right(name)
            except Exception as error:
                self.tally.mistake(name, repr(error))
            finally:
                with self._calm:
                    self._at_work -= 1
                    self._calm.notify_all()
            time.sleep(choose.random() * PAUSE)

    def rest(self) -> list[str]:
        """Pause the workers, and list what has not ended."""
        self._goes.clear()
        with self._calm:
            if not self._calm.wait_for(lambda: not self._at_work, 2 * HANGS):
                return [f"{self._at_work} workers do not come to rest"]
        time.sleep(0.1)
        connections = self.plain._engine.pool._connections
        pending = [len(connection.conversation.pending) for connection in connections]
        return [f"{count} calls wait on a connection" for count in pending if count]

    def go(self) -> None:
        self._goes.set()

    def end(self) -> None:
        self._ends = True
        self._goes.set()
        for worker in self._workers:
            worker.join(HANGS)
        self.plain.close()
        self.conversing.close()


@feature
def sync_calls(load: Threads, choose: random.Random) -> None:
    for client in (load.plain, load.conversing):
        token = load.token()
        load.tally.expect("sync_calls", client.echo([token]), [token])
        client.notify.echo("to nobody")


@feature
def sync_calls_together(load: Threads, choose: random.Random) -> None:
    """Call with the same client from another thread at the same time."""
    token = load.token()
    load.tally.expect("sync_calls_together", load.plain.later(token, 0.002), token)
    load.tally.expect("sync_calls_together", load.conversing.threaded(token, 0.002), token)


@feature
def sync_futures(load: Threads, choose: random.Random) -> None:
    for client in (load.plain, load.conversing):
        tokens = [load.token() for _ in range(8)]
        futures = [client.submit.later(token, choose.random() * 0.01) for token in tokens]
        given_up = [future.cancel() for future in futures[4:]]
        load.tally.expect("sync_futures", [future.result(HANGS) for future in futures[:4]], tokens[:4])
        for future, is_given_up in zip(futures[4:], given_up, strict=True):
            if is_given_up:
                with contextlib.suppress(CancelledError):
                    load.tally.mistake("sync_futures", f"an answer: {future.result(HANGS)}")


@feature
def sync_timeouts(load: Threads, choose: random.Random) -> None:
    for client in (load.plain, load.conversing):
        try:
            load.tally.mistake("sync_timeouts", client.later(load.token(), 100, timeout=0.01))
        except (CallTimeout, DeadlineExceeded):
            pass


@feature
def sync_batches(load: Threads, choose: random.Random) -> None:
    for client in (load.plain, load.conversing):
        token, other = load.token(), load.token()
        with client.batch() as batch:
            answers = [batch.echo(token), batch.threaded(other, 0.001)]
        load.tally.expect("sync_batches", [answer.result() for answer in answers], [token, other])


@feature
def sync_values(load: Threads, choose: random.Random) -> None:
    array, shade = np.arange(choose.randrange(1, 20_000), dtype=np.float32), choose.randrange(256)
    load.tally.expect("sync_values", bool((load.plain.negative(array) == -array).all()), True)
    photo = load.plain.inverted(Image.new("RGB", (64, 48), (shade, 0, 255)))
    load.tally.expect("sync_values", photo.getpixel((5, 5)), (255 - shade, 255, 0))
    load.tally.expect("sync_values", load.plain.doubled(array[:4]).tolist(), (2 * array[:4]).tolist())


@feature
def sync_clients_that_come_and_go(load: Threads, choose: random.Random) -> None:
    token = load.token()
    with Client(load.address) as client:
        load.tally.expect("sync_clients_that_come_and_go", client.echo(token), token)
        future = client.submit.later(token, 100)
    # Its own connection may not have been made yet.
    if not isinstance(future.exception(HANGS), ConnectFailed | ConnectionLost):
        load.tally.mistake("sync_clients_that_come_and_go", repr(future))


@feature
def sync_conversations(load: Threads, choose: random.Random) -> None:
    client, token, told = load.conversing, load.token(), []
    load.tally.expect("sync_conversations", client.ask(token), token[::-1])
    items = client.ask_for_stream(token, 5)
    load.tally.expect("sync_conversations", items, [[token, number] for number in range(5)])
    load.tally.expect("sync_conversations", client.steps(token, 3, on_progress=told.append), token)
    load.tally.expect("sync_conversations", told[-1:], [[token, 2]])


@feature
def sync_conversations_that_come_and_go(load: Threads, choose: random.Random) -> None:
    token = load.token()
    with load.offering(Client(load.address)) as client:
        load.tally.expect("sync_conversations_that_come_and_go", client.ask_in_thread(token), token[::-1])
        stream = iter(client.stream.endless(token))
        load.tally.expect("sync_conversations_that_come_and_go", next(stream), token)


@feature
def sync_streams(load: Threads, choose: random.Random) -> None:
    client, token, n = load.conversing, load.token(), choose.randrange(20)
    load.tally.expect("sync_streams", list(client.stream.count_in_thread(n)), list(range(n)))
    for item in client.stream.endless(token):
        load.tally.expect("sync_streams", item, token)
        break
    load.tally.expect("sync_streams", client.total_in_thread(iter(range(n))), sum(range(n)))
    load.tally.expect("sync_streams", list(client.stream.mirror(iter([token] * n))), [token] * n)


@feature
def sync_events(load: Threads, choose: random.Random) -> None:
    topic = load.token()
    with load.conversing.subscribe(topic) as values:
        load.plain.tell(topic, 1)
        load.conversing.tell(topic, 2)
        load.tally.expect("sync_events", [next(values), next(values)], [1, 2])
