"""Runs a server as a program: in one process or in several, with signals and systemd."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import os
import sys
import threading
import traceback
import types
from asyncio import tasks as asyncio_tasks
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ..auth.authenticator import Authenticator
from ..methods.threads import DaemonThreads
from ..methods.workers import is_worker
from ..peer.credentials import Credentials
from ..process import CLEAN_UP, PACKAGE, StopNow, join_names, on_hangup, stop_on_signals, task_name
from ..systemd import Notifier
from ..text import get_logger
from ..transports.listen import RENEWAL
from .life import ServerLife
from .options import ListenOptions

if TYPE_CHECKING:
    from ..supervisor.options import WorkerOptions

log = get_logger("rpcstream.server")

#: The environment variable with the token of the user who has started the program.
TOKEN_VARIABLE = "RPCSTREAM_TOKEN"


class ServerProgram:
    """Runs a server until a signal stops it.

    Args:
        life: of the server.
        reload: reads certificate, token and configuration again; raises ValueError, TypeError or OSError, and changes
            nothing, if there is a mistake in them.

    Attributes:
        watched: the path of a file whose changes reload the server; None: none.
    """

    def __init__(self, life: ServerLife, reload: Callable[[], object]) -> None:
        self.watched: str | None = None
        self._life = life
        self._reload = reload
        self._notifier = Notifier()

    def run(self, serve: Callable[[], Coroutine[Any, Any, None]], loop: LoopName) -> None:
        """Run a coroutine that serves, in a new event loop. Blocks.

        Raises:
            SystemExit: the lifespan failed, and its error was printed; a second signal came; or a handler blocked the
                event loop for too long after the first.
        """
        executor = DaemonThreads(name="rpcstream-default")
        try:
            with on_hangup():
                run_to_end(self._main(serve), loop_factory(loop), executor, lambda: self._life.left_behind)
        except StopNow as now:
            raise SystemExit(128 + now.args[0]) from None
        except Exception as error:
            if error is not self._life.lifespan_error:
                raise
            traceback.print_exception(type(error), error, self._life.lifespan_trace)
            print("the server was not started, because its lifespan failed", file=sys.stderr)
            raise SystemExit(1) from None

    async def _main(self, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._reloading(), stop_on_signals(self._life) as self._life.signals:
            await serve()
        if len(self._life.signals) > 1:
            raise StopNow(self._life.signals[-1])  # uvloop does not pass on what a signal raises inside a handler

    async def serve(self, where: ListenOptions, on_listening: Callable[[str], object] | None) -> None:
        """Serve until the server is stopped, and report that to systemd; for `run`.

        Args:
            where: the arguments of `ServerLife.listening`.
            on_listening: called with the address when connections are accepted. None: it is printed to standard error.
        """
        with Notifier.take() as self._notifier:
            async with self._life.listening(where) as address:
                if address:  # else it was stopped while it started
                    freeze_memory()
                    (print_address if on_listening is None else on_listening)(address)
                    self._notifier.ready(self._status)
                    self._notifier.watch()
                assert self._life.running is not None
                await self._life.running.stopping.wait()
                self._notifier.stopping("Stopping")

    # -- reloading ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reloading(self) -> Iterator[None]:
        """Reload on SIGHUP, and when the token file changes, while the block runs."""
        loop = asyncio.get_running_loop()
        watching = None if self.watched is None else loop.create_task(self._watch(self.watched))
        with on_hangup(partial(loop.call_soon_threadsafe, self._reload_or_log, "SIGHUP")):
            try:
                yield
            finally:
                if watching is not None:
                    watching.cancel()

    async def _watch(self, path: str) -> None:
        """Reload whenever a file has changed."""
        before = _stamp_of(path)
        while True:
            await asyncio.sleep(RENEWAL)
            now = _stamp_of(path)
            if now != before:
                before = now
                self._reload_or_log(f"{path} has changed")

    def _reload_or_log(self, reason: str) -> None:
        """Reload; a mistake is logged, and changes nothing."""
        log.info("%s: reading certificate, token and configuration again", reason)
        is_ready = bool(self._life.addresses)  # while the server starts, systemd is told nothing
        if is_ready:
            self._notifier.reloading("Reading the configuration again")
        status = self._status
        try:
            self._reload()
        except (ValueError, TypeError, OSError) as error:
            log.error("the configuration was not reloaded, the one before stays in use: %s", error)
            status = "The configuration could not be read again: see the log"
        if is_ready and self._life.running is not None and not self._life.running.stopping.is_set():
            self._notifier.ready(status)

    @property
    def _status(self) -> str:
        """The status for systemd while the server serves."""
        return f"Listening at {', '.join(self._life.addresses)}"


async def identify_starter(authenticator: Authenticator) -> Any:
    """The identity of the user who has started this program, by the token in the environment or the user id.

    Raises:
        PermissionError: it is not accepted.
    """
    own = os.getuid() if hasattr(os, "getuid") else None
    group = os.getgid() if hasattr(os, "getgid") else None
    token = os.environ.get(TOKEN_VARIABLE)
    credentials = Credentials(token=token, pid=os.getppid(), uid=own, gid=group, address="stdio")
    identity = authenticator.identify(credentials)
    if inspect.isawaitable(identity):
        identity = await identity
    if identity is None:
        reason = "is not accepted" if token else "is not set"
        raise PermissionError(f"this server has authentication, and the token in {TOKEN_VARIABLE} {reason}")
    return identity


def is_served_elsewhere(server: object, arguments: dict[str, Any]) -> bool:
    """Whether `run` must not serve: in a worker process, or because the importing program has served instead.

    That program, a supervisor's worker or `rpcstream-server`, serves with these arguments before this returns.
    """
    if is_worker():
        return True
    serve = take_replacement()
    if serve is None:
        return False
    serve(server, arguments)
    return True


def run_workers(
    server: object, options: WorkerOptions, where: ListenOptions, loop: LoopName, on_listening: Callable[[str], object]
) -> None:
    """Run a server in several processes, which import its module or script. Blocks.

    Args:
        options, where, loop, on_listening: the arguments of `Server.run`.

    Raises:
        ValueError: the workers cannot find the server.
        SystemExit: the program ended with a status other than 0.
    """
    from ..supervisor.supervisor import Supervisor

    unix, sockets = where["unix"], where["sockets"]
    own = {**where, "unix": None if unix is None else os.path.abspath(unix), "sockets": (), "loop": loop}
    arguments = {"target": _find_target(server), "where": own}
    entry = "rpcstream.server.worker:serve_target"
    with on_hangup():
        status = Supervisor(entry, arguments, options, on_listening=on_listening, sockets=sockets).run()
    if status:
        raise SystemExit(status)


def _find_target(server: object) -> str:
    """The import string of a server: its name in a module, or in the script that was started.

    Raises:
        ValueError: it has none.
    """
    found = [
        (name, attribute)
        for name, module in list(sys.modules.items())
        if module is not None and not name.startswith("rpcstream.")
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if value is server and attribute.isidentifier()
    ]
    for name, attribute in found:
        if name not in ("__main__", "__mp_main__"):
            return f"{name}:{attribute}"
    main = sys.modules.get("__main__")
    for _, attribute in found:
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:  # python -m package.module
            return f"{spec.name}:{attribute}"
        if path is not None and path.endswith(".py"):
            return f"{os.path.abspath(path)}:{attribute}"
    raise ValueError("workers import the server: give it a name at the top level of a module or script")


def check_no_loop(name: str, hint: str = "") -> None:
    """Raise RuntimeError if this method would block the event loop of this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"an event loop runs in this thread already (as in a notebook), and {name}() would block it{hint}"
    )


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    """A value that changes when a file is written; None if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def print_address(address: str) -> None:
    """Print where a server listens to standard error."""
    with contextlib.suppress(OSError, AttributeError):  # standard error is closed, or there is none
        print(f"Listening at {address} (Ctrl-C to stop)", file=sys.stderr, flush=True)


LoopName = Literal["auto", "uvloop", "asyncio"]

_IMPORTLIB = os.path.dirname(importlib.__file__) + os.sep

#: Serves in place of `Server.run`, with the server and the arguments of that call.
ServeInstead = Callable[[Any, dict[str, Any]], None]

#: What serves in place of the next `Server.run`; see `replace_run`.
_replacement: ServeInstead | None = None


@contextlib.contextmanager
def replace_run(serve: ServeInstead) -> Iterator[None]:
    """Let the first `Server.run` within the block call this function instead.

    For a command that imports a module which may call `server.run()` at module level: the command's own options and
    banner apply, and the server runs once.
    """
    global _replacement
    before, _replacement = _replacement, serve
    try:
        yield
    finally:
        _replacement = before


def take_replacement() -> ServeInstead | None:
    """The function that serves in place of `Server.run`, for this one time; None if there is none."""
    global _replacement
    serve, _replacement = _replacement, None
    return serve


def loop_factory(name: LoopName) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The function that makes the event loop; None for asyncio's own.

    For "auto" the environment variable `RPCSTREAM_LOOP` decides, so that a whole test run can use plain asyncio.
    Without it uvloop is used where it is installed.
    """
    if name == "auto":
        name = os.environ.get("RPCSTREAM_LOOP", "auto")  # type: ignore[assignment]
    if name == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if name == "uvloop":
            raise
        return None
    return uvloop.new_event_loop


def freeze_memory() -> None:
    """Exclude all present objects from garbage collection: modules, classes, signatures, models.

    The collector would visit all of them again and again, which takes a tenth of the time under many running calls. For
    a program that does nothing but serve: outside the main thread, nothing is done.
    """
    if threading.current_thread() is threading.main_thread():
        gc.collect()
        gc.freeze()


def run_to_end(
    main: Coroutine[Any, Any, None],
    factory: Callable[[], asyncio.AbstractEventLoop] | None,
    executor: ThreadPoolExecutor,
    known: Callable[[], Collection[asyncio.Task[Any]]],
) -> None:
    """Run a coroutine as `asyncio.run` does, but leave behind tasks that do not end when cancelled, with a warning.

    `main` itself has unlimited time to end after an interrupt, until it is interrupted again.

    Args:
        main: the coroutine.
        factory: makes the event loop.
        executor: the loop's default one. Its `shutdown` must not wait for ever.
        known: tasks for which a warning was logged already.
    """
    with asyncio.Runner(loop_factory=factory) as runner:
        loop = runner.get_loop()
        loop.set_default_executor(executor)
        try:
            runner.run(main)
        finally:
            _end_tasks(loop, main, known)


def _end_tasks(
    loop: asyncio.AbstractEventLoop, main: object, known: Callable[[], Collection[asyncio.Task[Any]]]
) -> None:
    """Cancel all tasks, and hide those that do not end from the runner, which would wait for them for ever."""
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=CLEAN_UP))
        for task in tasks:
            if task.get_coro() is main:
                loop.run_until_complete(asyncio.wait({task}))
        generators = loop.create_task(loop.shutdown_asyncgens())
        loop.run_until_complete(asyncio.wait({generators}, timeout=CLEAN_UP))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            asyncio_tasks._unregister_task(task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        names = sorted({task_name(task) for task in left.difference(known())})
        if names:
            log.warning("abandoned, because they did not end when cancelled: %s", join_names(names))


def without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback from the first frame on that is neither this package's nor of Python's import system."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(
        (PACKAGE, "<frozen importlib", _IMPORTLIB)
    ):
        trace = trace.tb_next
    return trace
