# PYTHON_ARGCOMPLETE_OK
"""The command `rpcstream-server`: serves the server or the functions of a module, or a hub.

`main` parses the options, loads the target, sets up logging, prints the banner, and returns the exit status.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..limits import DEFAULT_PORT
from .serve_options import FUNCTIONS_PORT, make_parser, parse

if TYPE_CHECKING:
    import socket

    from ..mcp.stdio import StdioPipe
    from ..server import Server
    from ..server.worker import WorkerLink
    from .serve_config import ServeConfig

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
    pipe = None
    if options.mcp:
        from ..mcp.stdio import StdioPipe

        # First of all: what the target prints while it is imported must not get to standard output.
        pipe = StdioPipe()
    command = _Command(options, prog, pipe=pipe)
    if not command.configure():
        return USAGE
    status = None if command.config is None or pipe is not None else _supervise(options, command.config, argv)
    return command.run() if status is None else status


def _supervise(options: argparse.Namespace, config: ServeConfig, argv: Sequence[str]) -> int | None:
    """Serve in several processes; gives the exit status. None if one process is meant."""
    from ..supervisor.options import wants_supervisor

    if not wants_supervisor(config.process) and not options.reload:
        return None
    _set_up_logging(config.logging, is_one_of_several=True)
    from ..server.target import TargetError
    from ..supervisor.supervisor import Supervisor
    from .load import passed_sockets

    watch = os.getcwd() if options.reload else None
    entry = "rpcstream.cli.serve:serve_as_worker"
    try:
        sockets = passed_sockets(options)
        return Supervisor(entry, list(argv), config.process, watch=watch, sockets=sockets).run()
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
    command = _Command(parse(parser, argv), parser.prog, link)
    return command.run() if command.configure() else USAGE


class _Command:
    """One run of the command.

    Args:
        link: to the supervisor, where this process is one of its workers.
        pipe: standard input and output, where an agent is served on these.

    Attributes:
        config: of a target; None for a hub without one, which reads its own.
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
        self.config: ServeConfig | None = None
        self.status: int | None = None
        self._sockets: list[socket.socket] = []  # that systemd has passed

    def configure(self) -> bool:
        """Read the configuration, and set logging up by it; False, and the reason is printed, if that fails."""
        if self.options.hub and self.options.target is None:
            return True
        from .serve_config import config_fault, read_config

        try:
            self.config = read_config(self.options)
        except (ValueError, OSError) as error:
            print(f"{self.prog}: {config_fault(error, self.options)}", file=sys.stderr)
            return False
        return self._has_configured_logging(self.config.logging)

    def run(self) -> int:
        """Load the target and serve it; gives the exit status."""
        from ..server.process import replace_run
        from ..server.target import TargetError
        from .load import load_target, make_hub, passed_sockets

        try:
            self._sockets = passed_sockets(self.options) if self.link is None and self._pipe is None else []
            with replace_run(self._serve_at_import):
                server: Server = (
                    make_hub(self.options) if self.config is None else load_target(self.options, self.config)
                )
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
        assert self.config is not None
        prepare(server, self.options, self.config)
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

        options, config = self.options, self.config
        if config is None and not self._has_configured_logging(server.logging):  # type: ignore[attr-defined]
            return USAGE
        logging = server.logging if config is None else config.logging  # type: ignore[attr-defined]
        _set_up_logging(logging, is_one_of_several=self.link is not None)
        if self._pipe is not None:
            return self._serve_agent(server, self._pipe)
        default_port = DEFAULT_PORT if options.functions is None else FUNCTIONS_PORT
        given = {"sockets": self._sockets} if self._sockets else {} if config is None else config.where
        where = listen_arguments(server, given, arguments, default_port=default_port)
        told = where.pop("on_listening", None)
        if is_local(where):
            server.show_docs_by_default()

        link = self.link
        if link is not None:
            link.supervise(server)

        def on_listening(address: str) -> None:
            if link is None or link.is_first:
                several = where.get("sockets") or link is not None or bool(config and config.nats)
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

    def _has_configured_logging(self, given: Mapping[str, Any]) -> bool:
        """Set logging up by `logging` or the file of `log_config`; False, and the reason is printed, if that fails."""
        try:
            if "logging" in given:
                _configure_logging_by(given["logging"])
            elif "log_config" in given:
                _configure_logging(given["log_config"])
        except Exception as error:  # of any class, since it may name classes of its own
            cause = error.__cause__ or error
            told = getattr(cause, "strerror", None)
            reason = told or f"{cause}{' is missing' if isinstance(cause, KeyError) else ''}"
            print(f"{self.prog}: log_config {given.get('log_config', '')}: {reason}", file=sys.stderr)
            return False
        return True

    def _report(self, error: Exception) -> None:
        """Print why the target cannot be served: the traceback from the target's own frames on, and one line."""
        cause = error.__cause__
        if cause is not None:
            import traceback

            from ..server.process import without_own_frames

            trace = cause.__traceback__ if self.options.debug else without_own_frames(cause.__traceback__)
            traceback.print_exception(type(cause), cause, trace)
        print(f"{self.prog}: {error}", file=sys.stderr)


def _set_up_logging(given: Mapping[str, Any], *, is_one_of_several: bool = False) -> None:
    """Log to standard error, unless the target has set up logging itself; `log_level` applies in both cases."""
    import logging

    if not given.keys() & {"logging", "log_config"}:
        if not logging.getLogger().handlers:
            _show_access_log()
        logging.basicConfig(format=_FORMAT_OF_SEVERAL if is_one_of_several else _FORMAT, level=logging.WARNING)
    if "log_level" in given:
        logging.getLogger().setLevel(given["log_level"].upper())


def _configure_logging_by(table: Mapping[str, Any]) -> None:
    """Set logging up by a table for `dictConfig`; loggers that exist stay enabled unless it says otherwise."""
    import logging.config

    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **table})


def _configure_logging(path: str) -> None:
    """Set logging up by a file: of `logging.config.dictConfig` as JSON or TOML, or else of `fileConfig`.

    Loggers that exist already, such as those of rpcstream, stay enabled unless the file says otherwise.

    Raises:
        Exception: it cannot be read, or does not make sense.
    """
    import logging.config

    if path.lower().endswith((".json", ".jsonc", ".toml")):
        from ..config.files import read_file

        _configure_logging_by(read_file(path))
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
