# PYTHON_ARGCOMPLETE_OK
"""The command `rpcstream-server`: serves the server or the functions of a module, or a hub.

Owns the banner, the logging and the exit status. Options are parsed in `serve_options`, targets loaded in `load`;
`Server.run` serves.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..limits import DEFAULT_PORT
from .serve_options import FUNCTIONS_PATTERN, FUNCTIONS_PORT, WORKER_OPTIONS, make_parser, parse

if TYPE_CHECKING:
    import socket

    from ..mcp.stdio import StdioPipe
    from ..server import Server
    from ..supervisor.worker import WorkerLink

OK, FAILED, USAGE = 0, 1, 2

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

#: The same where several processes write lines: with the number of the process.
_FORMAT_OF_SEVERAL = "%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete_server

        complete_server(parser)
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        options = parse(parser, argv)
    except SystemExit as stopped:  # --help, --version, wrong use: argparse has printed the text
        return stopped.code if isinstance(stopped.code, int) else OK
    from ..process import on_hangup

    with on_hangup():  # it may come before the server is there
        return _run(options, argv, parser.prog)


def _run(options: argparse.Namespace, argv: Sequence[str], prog: str) -> int:
    """Serve as the options say; returns the exit status."""
    if not _has_configured_logging(options, prog):
        return USAGE
    if options.hub and options.target is None:  # a target may set logging up itself
        _set_up_logging(options)
    if any(getattr(options, name) for name in WORKER_OPTIONS) and (status := _supervise(options, argv)) is not None:
        return status
    if options.mcp:
        from ..mcp.stdio import StdioPipe

        # First of all: what the target prints while it is imported must not get to standard output.
        return _Command(options, prog, pipe=StdioPipe()).run()
    return _Command(options, prog).run()


def _supervise(options: argparse.Namespace, argv: Sequence[str]) -> int | None:
    """Serve in several processes; gives the exit status. None if one process is meant."""
    from ..supervisor.process import Program
    from ..supervisor.run import worker_count
    from ..supervisor.supervisor import Supervisor, WorkerOptions

    count = worker_count(options.workers)
    if count == 1 and not any(getattr(options, name) for name in WORKER_OPTIONS[1:]):
        return None
    _set_up_logging(options, is_one_of_several=True)
    kept = {name: getattr(options, name) for name in ("max_requests", "memory_limit", "affinity")}
    if options.start_timeout is not None:
        kept["start_timeout"] = options.start_timeout or None
    watch = os.getcwd() if options.reload else None
    program = Program(
        entry="rpcstream.cli.serve:serve_as_worker", arguments=list(argv), argv=list(sys.argv), path=list(sys.path)
    )
    from ..server.target import TargetError
    from .load import passed_sockets

    try:
        return Supervisor(
            program, WorkerOptions(count=count, watch=watch, **kept), sockets=passed_sockets(options)
        ).run()
    except (RuntimeError, ValueError, TargetError) as error:
        print(f"rpcstream-server: {error}", file=sys.stderr)
        return USAGE


def serve_as_worker(link: WorkerLink, argv: list[str]) -> int:
    """Run the command as one of several workers; returns the exit status.

    Args:
        link: to the supervisor, which accepts the connections.
        argv: the options and the target, as the supervisor was given them.
    """
    parser = make_parser()
    options = parse(parser, argv)
    return _Command(options, parser.prog, link).run() if _has_configured_logging(options, parser.prog) else USAGE


class _Command:
    """One run of the command.

    Args:
        link: to the supervisor, where this process is one of its workers.
        pipe: standard input and output, where an agent is served on these.

    Attributes:
        status: the exit status of the server that the target ran itself, by `server.run()` at module level; None if it
            did not.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        prog: str,
        link: WorkerLink | None = None,
        *,
        pipe: StdioPipe | None = None,
    ) -> None:
        self._pipe = pipe
        self.options = options
        self.prog = prog
        self.link = link
        self.status: int | None = None
        self._sockets: list[socket.socket] = []  # that systemd has passed

    def run(self) -> int:
        """Load the target and serve it; gives the exit status."""
        from ..process import replace_run
        from ..server.target import TargetError
        from .load import passed_sockets

        try:
            self._sockets = passed_sockets(self.options) if self.link is None and self._pipe is None else []
            with replace_run(self._serve_at_import):
                server = _load(self.options)
            if self.status is None:
                return self._serve(server, {})
        except TargetError as error:
            if self.status is not None and isinstance(error.__cause__, SystemExit):
                raise error.__cause__ from None  # it left, after it had served
            self._report(error)
            return USAGE
        return self.status

    def _serve_at_import(self, server: Server, arguments: dict[str, Any]) -> None:
        """Serve a server whose module calls `server.run()` at module level, with the arguments of that call."""
        from ..server.target import TargetError
        from .load import prepare

        if self.options.functions is not None:
            raise TargetError(f"{self.options.functions} calls server.run(): serve it without -f")
        prepare(server, self.options)
        self.status = FAILED
        self.status = self._serve(server, arguments)

    def _serve(self, server: Server, arguments: dict[str, Any]) -> int:
        """Serve; gives the exit status.

        Args:
            server: the server.
            arguments: for `Server.run`, from the target; options of the command come first.
        """
        from ..server.target import TargetError
        from .load import is_local, listen_arguments

        options = self.options
        _set_up_logging(options, is_one_of_several=self.link is not None)
        if self._pipe is not None:
            return self._serve_agent(server, self._pipe)
        default_port = DEFAULT_PORT if options.functions is None else FUNCTIONS_PORT
        where = listen_arguments(server, options, {"port": default_port, **arguments}, self._sockets)
        told = where.pop("on_listening", None)
        if options.docs is None and is_local(where):
            server.show_docs(is_default=True)

        link = self.link
        if link is not None:
            link.supervise(server)

        def on_listening(address: str) -> None:
            if link is None or link.is_first:
                several = where.get("sockets") or link is not None or options.nats is not None
                all_addresses = sorted(server.addresses, key=lambda each: each.startswith("nats"))
                shown = ", ".join(all_addresses) if several else address
                _say(banner(server, shown, functions=options.functions is not None))
            if told is not None:
                told(address)

        from ..errors import ConnectFailed, RegistrationError

        try:
            server.run(**where, on_listening=on_listening)
        except RegistrationError as error:  # a method that cannot run in another process
            raise TargetError(str(error)) from None
        except OSError as error:
            if isinstance(error, ConnectFailed) and (error.address or "").startswith(("nats://", "nats+tls://")):
                from .options import with_option_names

                print(f"{self.prog}: {with_option_names(str(error), of_nats=True)}", file=sys.stderr)
                return FAILED
            if error.strerror is None or not error.strerror.startswith("cannot listen"):
                raise  # raised by the target's own lifespan
            print(f"{self.prog}: {error.strerror}", file=sys.stderr)
            return FAILED
        return OK

    def _serve_agent(self, server: Server, pipe: StdioPipe) -> int:
        """Serve an agent on standard input and output; gives the exit status."""
        from ..errors import RegistrationError
        from ..server.target import TargetError

        try:
            server.run_mcp(pipe=pipe)
        except RegistrationError as error:
            raise TargetError(str(error)) from None
        except PermissionError as error:
            if error.errno is not None:
                raise  # raised by the target's own lifespan
            print(f"{self.prog}: {error}", file=sys.stderr)
            return FAILED
        return OK

    def _report(self, error: Exception) -> None:
        """Print why the target cannot be served: the traceback from the target's own frames on, and one line."""
        cause = error.__cause__
        if cause is not None:
            import traceback

            from ..process import without_own_frames

            trace = cause.__traceback__ if self.options.debug else without_own_frames(cause.__traceback__)
            traceback.print_exception(type(cause), cause, trace)
        print(f"{self.prog}: {error}", file=sys.stderr)


def _load(options: argparse.Namespace) -> Server:
    from ..server.target import load_module, load_server
    from .load import functions_server, make_hub, prepare

    if options.hub and options.target is None:
        return make_hub(options)
    if options.functions is None:
        server = load_server(options.target)
    else:
        pattern = FUNCTIONS_PATTERN if options.pattern is None else options.pattern
        server = functions_server(load_module(options.functions), pattern=pattern)
    prepare(server, options)
    return server


def _set_up_logging(options: argparse.Namespace, *, is_one_of_several: bool = False) -> None:
    """Log to standard error, unless the target has set up logging itself; --log-level applies in both cases."""
    import logging

    if options.log_config is None and not logging.getLogger().handlers:
        _show_access_log()
    if options.log_config is None:
        logging.basicConfig(format=_FORMAT_OF_SEVERAL if is_one_of_several else _FORMAT, level=logging.WARNING)
    level = options.log_level or ("info" if options.debug else None)
    if level is not None:
        logging.getLogger().setLevel(level.upper())


def _has_configured_logging(options: argparse.Namespace, prog: str) -> bool:
    """Set logging up by the file of --log-config, if any; False, and the reason is printed, if that fails."""
    if options.log_config is None:
        return True
    try:
        _configure_logging(options.log_config)
    except Exception as error:  # of any class, since it may name classes of its own
        cause = error.__cause__ or error
        reason = getattr(cause, "strerror", None) or f"{cause}{' is missing' if isinstance(cause, KeyError) else ''}"
        print(f"{prog}: --log-config {options.log_config}: {reason}", file=sys.stderr)
        return False
    return True


def _configure_logging(path: str) -> None:
    """Set logging up by a file: of `logging.config.dictConfig` as JSON or TOML, or else of `fileConfig`.

    Loggers that exist already, such as those of rpcstream, stay enabled unless the file says otherwise.

    Raises:
        Exception: it cannot be read, or does not make sense.
    """
    import logging.config

    if path.lower().endswith((".json", ".jsonc", ".toml")):
        from ..config.files import read_file

        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **read_file(path)})
    else:
        with open(path, encoding="utf-8") as opened:
            logging.config.fileConfig(opened, disable_existing_loggers=False)


def _show_access_log() -> None:
    """Write the lines of the access log to standard error as they are, since each has its time in it."""
    import logging

    from ..observe.call_log import ACCESS_LOGGER

    logger = logging.getLogger(ACCESS_LOGGER)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


def banner(server: Server, address: str, *, functions: bool) -> str:
    """The text that is printed when the server listens: its address and its methods, without the `rpc.` ones.

    Args:
        server: listens already.
        address: of the server.
        functions: use the format of the first JSON-RPC stream servers, which their clients read.
    """
    names = sorted(name for name in server.methods if not name.startswith("rpc."))
    if functions:
        url = address if "://" in address else f"jsonrpc2://{address}"
        head = f"{url}\nFunctions:"
    else:
        from .load import is_hub

        head = f"{'Hub listening' if is_hub(server) else 'Listening'} at {address}\nMethods:"
    lines = "".join(f"\n    - {name}" for name in names)
    page = _explorer_address(server) if not functions else None
    explorer = "" if page is None else f"\nExplorer at {page}"
    return f"{head}{lines}{explorer}\nCtrl-C to stop"


def _explorer_address(server: Server) -> str | None:
    """Where a browser finds the explorer; None if there is none, or none by TCP."""
    path = server.routes.explorer_path
    for address in server.addresses if path is not None else ():
        scheme, _, rest = address.rpartition("://")
        if scheme in ("", "tls"):
            return f"{'https' if scheme else 'http'}://{rest}{path}"
    return None


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError:  # standard output is closed: serve all the same, and let no later print fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
