"""The function `rpcstream.run`: run a server in one process, or in several, which import it again."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from ..limits import DEFAULT_HOST, DEFAULT_PORT
from ..process import LoopName, on_hangup, take_replacement

if TYPE_CHECKING:
    from ..server import Server
    from .supervisor import WorkerOptions


def run(
    server: Server | str,
    *,
    workers: int | Literal["auto"] | None = None,
    max_requests: int | None = None,
    affinity: bool = False,
    memory_limit: int | None = None,
    start_timeout: float | None = 60.0,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    unix: str | os.PathLike[str] | None = None,
    unix_mode: int | None = None,
    sockets: Iterable[socket.socket] = (),
    loop: LoopName = "auto",
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, or until `Server.stop` is called: in this process, or in several. Blocks.

    With workers this process accepts the connections, and passes each to the worker with the fewest. Each worker is a
    fresh interpreter that imports the module of the server; workers share no memory, such as `server.state`. Events and
    last values reach the subscribers of all. SIGHUP starts new workers, and ends the old ones when all of the
    new ones are ready.

    Args:
        server: an import string, `"module:name"`, `"file.py"` or `"file.py:name"`; or a server that stands in a
            module, or in the script that was started, under a name. With an import string and workers, nothing of the
            module is imported here.
        workers: the number of processes; "auto": one for each processor; None or 1: this one alone.
        max_requests: a worker that has answered so many requests (and up to a tenth more) is replaced. None: never.
        affinity: each worker runs on one processor only.
        memory_limit: bytes of main memory; a worker that takes more is replaced (Linux). None: no limit.
        start_timeout: seconds in which a worker must be ready; then it is killed, and another one is started. None: no
            limit.
        host, port, unix, unix_mode, sockets, loop: as for `Server.run`.
        on_listening: called once with the address, in this process; None: a line with the address is printed to
            standard error.

    Raises:
        ValueError: the server cannot be found by its workers, or is a hub, which is one process; or a number makes no
            sense.
        RuntimeError: workers are wanted where there can be none: on Windows, or outside the main thread; or as for
            `Server.run`.
        OSError: the address cannot be listened at (without workers).
        SystemExit: with workers: the program has ended with another status than 0, such as that of a worker that could
            not be started; what it has printed says why. Without: as for `Server.run`.
    """
    where: dict[str, Any] = {"host": host, "port": port, "unix": unix, "unix_mode": unix_mode, "loop": loop}
    serve = take_replacement()
    if serve is not None:  # a worker, or `rpcstream-server`, imports the script that calls this
        serve(_load(server), {**where, "sockets": sockets, "on_listening": on_listening})
        return
    if start_timeout is not None and not start_timeout > 0:
        raise ValueError(f"start_timeout must be a positive number of seconds, or None, got {start_timeout!r}")
    wants_supervisor = max_requests is not None or affinity or memory_limit is not None
    count = worker_count(workers)
    if count == 1 and not wants_supervisor:
        _load(server).run(**where, sockets=sockets, on_listening=on_listening)
        return
    from .supervisor import WorkerOptions

    options = WorkerOptions(
        count=count,
        max_requests=max_requests,
        affinity=affinity,
        memory_limit=memory_limit,
        start_timeout=start_timeout,
    )
    _run_workers(server, options, where, sockets, _print_address if on_listening is None else on_listening)


def _run_workers(
    server: Server | str,
    options: WorkerOptions,
    where: dict[str, Any],
    sockets: Iterable[socket.socket],
    on_listening: Callable[[str], None],
) -> None:
    from .supervisor import Supervisor

    unix = where["unix"]
    program = _program(server, {**where, "unix": None if unix is None else os.path.abspath(unix)})
    with on_hangup():
        status = Supervisor(program, options, on_listening=on_listening, sockets=sockets).run()
    if status:
        raise SystemExit(status)


def worker_count(workers: int | Literal["auto"] | None) -> int:
    """The number of workers that is meant.

    Raises:
        ValueError: it is none.
    """
    if workers is None:
        return 1
    if workers == "auto":
        from .process import processors

        return len(processors())
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f'workers: {workers!r} is no number of processes: give one from 1 on, or "auto"')
    return workers


def _load(server: Server | str) -> Server:
    if not isinstance(server, str):
        return server
    from ..server.target import TargetError, load_server

    try:
        return load_server(server)
    except TargetError as error:
        raise ValueError(str(error)) from error.__cause__


def _program(server: Server | str, where: dict[str, Any]) -> Any:
    """What the workers run."""
    from .process import Program

    if isinstance(server, str):
        target = server
    else:
        if not server.MAY_HAVE_WORKERS:
            raise ValueError("a hub is one process, since its clients must find each other: run it without workers")
        target = find_target(server)
    arguments = {"target": target, "where": where}
    return Program(
        entry="rpcstream.supervisor.worker:serve_target", arguments=arguments, argv=list(sys.argv), path=list(sys.path)
    )


def find_target(server: Server) -> str:
    """The import string of a server: the name under which it stands in a module, or in the script that was started.

    Raises:
        ValueError: it stands nowhere.
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
    raise ValueError(
        "workers import the server, and this one stands under no name in a module: make it at the top level of a "
        'module or script, or give an import string, such as run("module:server", workers=2)'
    )


def _print_address(address: str) -> None:
    import contextlib

    with contextlib.suppress(OSError, AttributeError):  # standard error is closed, or there is none
        print(f"Listening at {address} (Ctrl-C to stop)", file=sys.stderr, flush=True)
