"""Shared parts of the peer scripts: the command line, the ready line, the handlers, the topics and the closed loop.

Knows no peer. A driver gives the loop one function a connection, which makes one call and returns its reply; its
arguments and the expected reply come from the topic. The output and the exit statuses are those of
native/load.c; 77 says that something is missing here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import count
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any, NoReturn, Protocol

HOST = "127.0.0.1"
BACKLOG = 2048  # connections that wait to be accepted, where a peer's default is too few for a thousand at once
NOT_HERE, WRONG_REPLY, CONNECTION_LOST, NO_REPLY = 77, 3, 4, 5
SECONDS_WITHOUT_REPLY = 10.0

Result = dict[str, Any]
Options = argparse.Namespace
ArgumentSpecs = Mapping[str, Mapping[str, Any]]  # name of an option -> what argparse is told of it


# -- the command line -----------------------------------------------------------------------------------------


@contextmanager
def needs(*packages: str) -> Iterator[None]:
    """Context manager for imports: if one fails, the script ends with status 77 and says what to install."""
    try:
        yield
    except ImportError as error:
        what = f"no module {error.name}" if isinstance(error, ModuleNotFoundError) else str(error).partition("\n")[0]
        skip(f"{what}; to install it: pip install {' '.join(packages)}")


def skip(why: str) -> NoReturn:
    """End with status 77: this peer cannot be measured here, which is no failure."""
    print(f"{Path(sys.argv[0]).name}: {why}", file=sys.stderr)
    sys.exit(NOT_HERE)


def main(
    serve: Callable[[Options], None],
    load: Callable[[Options], Result] | None = None,
    *,
    topics: Sequence[str] = ("sum", "login", "array"),
    many_in_flight: bool = True,
    serve_options: ArgumentSpecs | None = None,
    load_options: ArgumentSpecs | None = None,
) -> None:
    """`NAME.py serve …` and, where there is a driver, `NAME.py load …`.

    Args:
        topics: which ones the driver has; none if it always does the same.
        many_in_flight: whether a connection of this client carries several calls at once.
    """
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    server = commands.add_parser("serve", help="print a ready line, serve until SIGTERM")
    server.set_defaults(run=serve)
    add_arguments(server, serve_options or {})
    if load is not None:
        driver = commands.add_parser("load", help="call the server in a closed loop, print one line of JSON")
        driver.set_defaults(run=lambda options: drive(load, options))
        where = driver.add_mutually_exclusive_group(required=True)
        where.add_argument("--port", type=int)
        where.add_argument("--path", help="of a Unix socket, for the scripts that serve at one")
        driver.add_argument("--topic", choices=topics or None, default=next(iter(topics), ""))
        driver.add_argument("--connections", type=int, default=1)
        some = None if many_in_flight else [1]
        driver.add_argument("--in-flight", type=int, default=1, choices=some, help="calls of each connection")
        driver.add_argument("--seconds", type=float, default=1.0)
        driver.add_argument("--warmup", type=float, default=0.2, help="seconds before, not counted")
        driver.add_argument("--bytes", type=int, default=1 << 20, help="size of the array")
        driver.add_argument("--first-bytes", type=int, help="size of the array of the very first call, if another one")
        add_arguments(driver, load_options or {})
    options = parser.parse_args()
    allow_many_files()
    options.run(options)


def allow_many_files() -> None:
    """Raise the limit of open files for thousands of connections; the usual one is 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 16
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def add_arguments(parser: argparse.ArgumentParser, specs: ArgumentSpecs) -> None:
    for name, spec in specs.items():
        parser.add_argument(name, **spec)


def drive(load: Callable[[Options], Result], options: Options) -> None:
    try:
        result = load(options)
    except WrongReply as error:
        fail(WRONG_REPLY, str(error), wrong=1)
    except TimeoutError as error:
        fail(NO_REPLY, repr(error))
    except (OSError, EOFError) as error:
        fail(CONNECTION_LOST, repr(error))
    except Exception as error:
        traceback.print_exc()
        fail(1, repr(error))
    print(json.dumps(result), flush=True)


def fail(status: int, error: str, wrong: int = 0) -> NoReturn:
    """End the process at once, although other threads may be waiting for replies."""
    print(json.dumps({"wrong": wrong, "error": error[:1000]}), flush=True)
    os._exit(status)


def ready(where: int | str, *packages: str) -> None:
    """Print the ready line: the server listens now, at this port of 127.0.0.1 or at a Unix socket of this path."""
    versions = {package: version(package) for package in packages}
    place = {"port": where} if isinstance(where, int) else {"path": where}
    print(json.dumps(place | {"versions": versions or {"python": sys.version.split()[0]}}), flush=True)


@contextmanager
def socket_path() -> Iterator[str]:
    """Context manager: a path for a Unix socket, in a folder that is removed with the script, on SIGTERM too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    with tempfile.TemporaryDirectory(prefix="rpcstream-benchmarks-") as folder:
        yield os.path.join(folder, "socket")


def free_port() -> int:
    """Find a free port, for peers that cannot be given port 0 or do not tell which port they got."""
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def ready_when_open(port: int, *packages: str) -> None:
    """Print the ready line once the port accepts connections, for peers that do not tell when they listen."""

    def wait() -> None:
        while True:
            try:
                socket.create_connection((HOST, port), 1).close()
            except OSError:
                sleep(0.02)
            else:
                return ready(port, *packages)

    threading.Thread(target=wait, daemon=True).start()


def connect(port: int) -> socket.socket:
    """Open a blocking connection without a time-out: with one, each call would need two system calls."""
    connection = socket.create_connection((HOST, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


# -- what is called -------------------------------------------------------------------------------------------


#: A page as small as pages are, 1 KiB: what is measured is the server, not how bytes are copied.
PAGE_PATH, PAGE_TYPE = "/static/page.html", "text/html; charset=utf-8"
PAGE = f"<!doctype html>\n<title>page</title>\n<p>{'It is always the same. ' * 64}"[:1019].encode() + b"</p>\n"


def make_login(user: str, password: str, remember: bool) -> dict[str, Any]:
    return {"user": user, "token": user + ":" + password, "remember": remember}


def mean_colour(photo: Any) -> list[float]:
    """Compute the mean of each channel of a Pillow image, from 0 to 255."""
    from PIL import ImageStat

    return ImageStat.Stat(photo).mean


# -- topics: what is asked, and what must come back -----------------------------------------------------------


class WrongReply(Exception):
    """A server's reply is not the expected one."""


class Topic(Protocol):
    """Makes the arguments of calls and checks their replies. Each worker has a topic of its own."""

    def ask(self, number: int) -> tuple[Any, ...]:
        """Make the arguments of a call. They may reuse the memory of earlier ones, which are no longer in use."""

    def fits(self, number: int, reply: Any) -> bool: ...


def seven_digits(number: int) -> int:
    return 1_000_000 + number % 8_000_000


class SumTopic:
    def __init__(self, options: Options) -> None: ...

    def ask(self, number: int) -> tuple[Any, ...]:
        return seven_digits(number), 1

    def fits(self, number: int, reply: Any) -> bool:
        return bool(reply == seven_digits(number) + 1)


class LoginTopic:
    def __init__(self, options: Options) -> None: ...

    def ask(self, number: int) -> tuple[Any, ...]:
        return f"user{seven_digits(number)}", "correct horse battery staple", True

    def fits(self, number: int, reply: Any) -> bool:
        return bool(reply == make_login(*self.ask(number)))


class ArrayTopic:
    """Arrays whose first and last items are new in each call, so that no old reply fits.

    Replies are compared whole in the first calls, then at both ends and at 64 places: comparing everything takes as
    long as a good part of the call.
    """

    def __init__(self, options: Options) -> None:
        import numpy as np

        self._sent = np.random.default_rng(7).random(options.bytes // 4, dtype=np.float32)
        first = options.first_bytes
        self._first = self._sent if first is None else np.ones(first // 4, dtype=np.float32)
        self._step = max(1, len(self._sent) // 64)
        self._to_compare_whole = 3

    def ask(self, number: int) -> tuple[Any, ...]:
        sent = self._sent if number else self._first
        sent[0] = sent[-1] = seven_digits(number)
        return (sent,)

    def fits(self, number: int, reply: Any) -> bool:
        sent = self._sent if number else self._first
        if type(reply) is not type(sent) or reply is sent:
            return False
        if reply.dtype != sent.dtype or reply.shape != sent.shape or reply[-1] != sent[-1]:
            return False
        step = self._step if self._to_compare_whole <= 0 else 1
        self._to_compare_whole -= 1
        return bool((reply[::step] == sent[::step]).all())


class ImageTopic:
    """Images that differ in their mean colour, with some noise, as photos have."""

    def __init__(self, options: Options) -> None:
        self._photos = make_photos()
        self._means = [mean_colour(photo) for photo in self._photos]

    def ask(self, number: int) -> tuple[Any, ...]:
        return (self._photos[number % len(self._photos)],)

    def fits(self, number: int, reply: Any) -> bool:
        mean = self._means[number % len(self._means)]
        return len(reply) == 3 and all(abs(got - want) < 0.01 for got, want in zip(reply, mean, strict=True))


@cache
def make_photos() -> list[Any]:
    """Make four RGB images of 640 x 480 pixels, the same ones each time."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(7)
    x, y = np.meshgrid(np.linspace(0, 160, 640), np.linspace(0, 80, 480))
    smooth = np.stack([x, y, (x + y) / 2], axis=-1)
    noise = random.integers(0, 8, smooth.shape)
    return [Image.fromarray((smooth + noise + shift).astype(np.uint8)) for shift in (0, 1, 2, 3)]


TopicMaker = Callable[[Options], Topic]
TOPICS: dict[str, TopicMaker] = {
    "sum": SumTopic,
    "login": LoginTopic,
    "array": ArrayTopic,
    "image": ImageTopic,
}
METHODS = {"sum": "sum", "login": "login", "array": "echo", "image": "image"}


# -- the closed loop ------------------------------------------------------------------------------------------


class Tally:
    """Counts the calls of all workers.

    The time begins with the first reply after the warm-up and ends with the last one, so that long calls are not cut
    off at either end.
    """

    def __init__(self, options: Options) -> None:
        self._begins = perf_counter() + options.warmup
        self._ends = self._begins + options.seconds
        self._first = 0.0
        self._last = perf_counter()
        self._cpu_first = self._cpu_last = 0.0
        self._latencies: list[float] = []
        threading.Thread(target=self._watch, daemon=True).start()

    def add(self, began: float, done: float) -> bool:
        """Count a call that lasted from `began` to `done`; return whether to make another one."""
        if self._first:
            self._latencies.append(done - began)
        elif done >= self._begins:
            self._first, self._cpu_first = done, process_time()
        if done > self._last:  # noqa: PLR1730 (faster than `max`)
            self._last = done
        if done < self._ends or not self._latencies:
            return True
        self._cpu_last = process_time()
        return False

    def result(self) -> Result:
        latencies = sorted(self._latencies)
        calls, seconds = len(latencies), self._last - self._first
        at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
        return {
            "calls": calls,
            "seconds": round(seconds, 6),
            "rate": round(calls / seconds, 3),
            "latency_us": {name: round(latencies[int(share * (calls - 1))] * 1e6, 2) for name, share in at.items()},
            "wrong": 0,
            "cpu": round((self._cpu_last - self._cpu_first) / seconds, 3),
        }

    def _watch(self) -> None:
        while perf_counter() - self._last < SECONDS_WITHOUT_REPLY:
            sleep(0.5)
        fail(NO_REPLY, f"no reply for {SECONDS_WITHOUT_REPLY:g} s")


Call = Callable[..., Any]


@dataclass(frozen=True)
class Worker:
    """One call in flight: the call of its connection, a topic, and numbers that no other worker uses."""

    call: Call
    topic: Topic
    numbers: Iterator[int]

    def check(self, number: int, reply: Any) -> None:
        if not self.topic.fits(number, reply):
            raise WrongReply(f"asked {self.topic.ask(number)!r:.300}, got {reply!r:.300}")


def make_workers(options: Options, calls: Sequence[Call], make_topic: TopicMaker | None = None) -> list[Worker]:
    make_topic = make_topic or TOPICS[options.topic]
    total = len(calls) * options.in_flight
    return [Worker(calls[n % len(calls)], make_topic(options), count(n, total)) for n in range(total)]


def work(worker: Worker, tally: Tally) -> None:
    for number in worker.numbers:
        arguments = worker.topic.ask(number)
        began = perf_counter()
        reply = worker.call(*arguments)
        done = perf_counter()
        worker.check(number, reply)
        if not tally.add(began, done):
            return


def load_with_threads(options: Options, calls: Sequence[Call], make_topic: TopicMaker | None = None) -> Result:
    """Run the closed loop with threads.

    Args:
        calls: a call function for each connection, used by `--in-flight` threads at once.
    """
    workers = make_workers(options, calls, make_topic)
    tally = Tally(options)
    if len(workers) == 1:
        work(workers[0], tally)
    else:
        pool = ThreadPoolExecutor(len(workers))
        for future in as_completed([pool.submit(work, worker, tally) for worker in workers]):
            future.result()
    return tally.result()


async def load_with_tasks(options: Options, calls: Sequence[Call], make_topic: TopicMaker | None = None) -> Result:
    """Run the closed loop with tasks.

    Args:
        calls: an async call function for each connection, used by `--in-flight` tasks at once.
    """
    workers = make_workers(options, calls, make_topic)
    tally = Tally(options)
    await asyncio.gather(*(work_async(worker, tally) for worker in workers))
    return tally.result()


async def work_async(worker: Worker, tally: Tally) -> None:
    for number in worker.numbers:
        arguments = worker.topic.ask(number)
        began = perf_counter()
        reply = await worker.call(*arguments)
        done = perf_counter()
        worker.check(number, reply)
        if not tally.add(began, done):
            return
