"""One run of `rpcstream-server`: sets up logging, loads the server or makes a hub, and serves it."""

from __future__ import annotations

import argparse
import logging
import logging.config
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..config import Schema
from ..errors import ConnectFailed, RegistrationError
from ..hub import Hub
from ..hub.config import HUB
from ..limits import DEFAULT_HOST
from ..observe.call_log import ACCESS_LOGGER
from ..server import Server
from ..server.guard import is_loopback
from ..server.options import Info, configured
from ..server.program import replace_run, without_own_frames
from ..server.target import TargetError, load_module, load_server
from ..supervisor.options import wants_supervisor
from ..systemd import take_sockets
from ..text import visible
from .options import with_option_names
from .serve_config import ServeConfig, config_errors, given_options, guard, join_nats, read_access, read_config

if TYPE_CHECKING:
    import socket

    from ..mcp.agents import StdioPipe
    from ..server.worker import WorkerLink

OK, FAILED, USAGE = 0, 1, 2

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

#: The same where several processes write lines: with the number of the process.
_FORMAT_OF_SEVERAL = "%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s"

#: Where a server listens, which is one of these.
_PLACES = Schema({}, what="a server", prefix="", exclusive=((("unix", "unix_mode"), ("host", "port"), ("sockets",)),))


class Command:
    """One run of the command.

    Args:
        options: the parsed command line.
        argv: the command line, for workers.
        link: to the supervisor, where this process is one of its workers.
        pipe: standard input and output, where an agent is served on these.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        argv: Sequence[str],
        link: WorkerLink | None = None,
        *,
        pipe: StdioPipe | None = None,
    ) -> None:
        self._options = options
        self._argv = argv
        self._link = link
        self._pipe = pipe
        self._config: ServeConfig | None = None  # a hub without a target reads its own
        self._logging: Mapping[str, Any] = {}
        #: Of the server that the target ran itself, by `server.run()` at module level; None if it did not.
        self._status: int | None = None
        self._sockets: list[socket.socket] = []  # that systemd has passed

    def run(self) -> int:
        """Serve as the options say; returns the exit status."""
        try:
            return self._run()
        except TargetError as error:
            if self._status is not None and isinstance(error.__cause__, SystemExit):
                raise error.__cause__ from None  # it left, after it had served
            self._report(error)
            return USAGE

    def _run(self) -> int:
        options = self._options
        if options.hub and options.target is None:
            self._sockets = _passed_sockets(options)
            with config_errors(options):
                hub = Hub.from_config(options.config, **given_options(options, HUB))
            self._configure_logging(hub.logging)
            return self._serve(hub, {})
        with config_errors(options):
            self._config = read_config(options)
        self._configure_logging(self._config.logging)
        is_alone = self._link is None and self._pipe is None
        if is_alone and (wants_supervisor(self._config.process) or options.reload):
            return self._supervise(self._config)
        self._sockets = _passed_sockets(options) if is_alone else []
        with replace_run(self._serve_at_import):
            server = _load_target(options, self._config)
        return self._serve(server, {}) if self._status is None else self._status

    def _supervise(self, config: ServeConfig) -> int:
        """Serve in several processes; gives the exit status."""
        from ..supervisor.supervisor import Supervisor

        _set_up_logging(self._logging, is_one_of_several=True)
        watch = os.getcwd() if self._options.reload else None
        entry, sockets = "rpcstream.cli.serve:serve_as_worker", _passed_sockets(self._options)
        try:
            return Supervisor(entry, list(self._argv), config.process, watch=watch, sockets=sockets).run()
        except (RuntimeError, ValueError) as error:
            raise TargetError(str(error)) from None

    def _serve_at_import(self, server: Server, arguments: dict[str, Any]) -> None:
        """Serve a server whose module calls `server.run()` at module level, with the arguments of that call."""
        if self._options.functions is not None:
            raise TargetError(f"{self._options.functions} calls server.run(): serve it without -f")
        assert self._config is not None
        _prepare(server, self._options, self._config)
        self._status = FAILED
        self._status = self._serve(server, arguments)

    def _serve(self, server: Server, arguments: dict[str, Any]) -> int:
        """Serve; gives the exit status.

        Args:
            server: the server.
            arguments: for `Server.run`, from the target; options of the command come first.
        """
        _set_up_logging(self._logging, is_one_of_several=self._link is not None)
        try:
            if self._pipe is not None:
                server.run_mcp(pipe=self._pipe)
            else:
                self._listen(server, arguments)
        except RegistrationError as error:  # a method that cannot run in another process
            raise TargetError(str(error)) from None
        except OSError as error:
            reason = _failure(error, is_agent=self._pipe is not None)
            if reason is None:
                raise  # raised by the target's own lifespan
            _print_error(reason)
            return FAILED
        return OK

    def _listen(self, server: Server, arguments: dict[str, Any]) -> None:
        is_functions, config, link = self._options.functions is not None, self._config, self._link
        given = {"sockets": self._sockets} if self._sockets else {} if config is None else config.where
        # A hub in the target may have a place of its own, which comes before the arguments of `server.run()` there.
        sources = given, getattr(server, "where", {}), arguments, {"port": self._options.default_port}
        where = _PLACES.merged(
            *({name: value for name, value in each.items() if value is not None} for each in sources)
        )
        told = where.pop("on_listening", None)
        if not (where.get("unix") or where.get("sockets")) and is_loopback(where.get("host", DEFAULT_HOST)):
            server.show_docs_by_default()
        if link is not None:
            link.supervise(server)

        def on_listening(address: str) -> None:
            if link is None or link.is_first:
                several = where.get("sockets") or link is not None or bool(config and config.nats)
                all_addresses = sorted(server.addresses, key=lambda each: each.startswith("nats"))
                _say(_banner(server, ", ".join(all_addresses) if several else address, is_functions=is_functions))
            if told is not None:
                told(address)

        server.run(**where, on_listening=on_listening)

    def _configure_logging(self, given: Mapping[str, Any]) -> None:
        """Set logging up by the table `logging` or the file of `log_config`, before the target is loaded.

        Existing loggers, such as rpcstream's own, stay enabled unless the table says otherwise.

        Raises:
            TargetError: the table makes no sense.
        """
        self._logging = given
        table = given.get("logging", given.get("log_config"))
        if table is None:
            return
        try:
            logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **table})
        except Exception as error:  # of any class, since it may name classes of its own
            name = "logging" if "logging" in given else "log_config"
            raise TargetError(f"{name}: {error.__cause__ or error}") from None

    def _report(self, error: Exception) -> None:
        """Print why the target cannot be served: the traceback from the target's own frames on, and one line.

        The line says where a function was registered that cannot be a method, so this has a traceback only with -d.
        """
        cause = error.__cause__
        if cause is not None and (self._options.debug or not isinstance(cause, RegistrationError)):
            trace = cause.__traceback__ if self._options.debug else without_own_frames(cause.__traceback__)
            traceback.print_exception(type(cause), cause, trace)
        _print_error(str(error))


# -- what is served --------------------------------------------------------------------------------------------------


def _load_target(options: argparse.Namespace, config: ServeConfig) -> Server:
    """Load the server of the target, with the options of the configuration.

    Raises:
        TargetError: there is none, or as `_prepare`.
    """
    with config_errors(options):
        access, _ = read_access(config, options)
    with configured({**config.server, **access}):
        with config_errors(options):
            Server()  # so that a mistake in the configuration is not taken for one in the target
        if options.functions is None:
            server = load_server(options.target)
        else:
            server = _functions_server(load_module(options.functions), pattern=options.pattern)
    _prepare(server, options, config)
    return server


def _prepare(server: Server, options: argparse.Namespace, config: ServeConfig) -> None:
    """Give a server the parts of the configuration that are no options: who may connect, and services on NATS.

    Raises:
        TargetError: it is no hub where one is wanted, or an option does not fit it.
    """
    if options.hub and not isinstance(server, Hub):
        raise TargetError(f"{options.target} is a Server, not a Hub: remove --hub")
    with config_errors(options):
        guard(server, options, config)
    if config.nats:
        join_nats(server, config.nats)


def _passed_sockets(options: argparse.Namespace) -> list[socket.socket]:
    """The sockets that systemd has passed to this process; they take the place of host, port and unix.

    Raises:
        TargetError: they cannot be used, or one of these options is given as well.
    """
    try:
        sockets = take_sockets()
    except OSError as error:
        raise TargetError(f"socket activation: {error.strerror or error}") from None
    for name in ("host", "port", "unix") if sockets else ():
        if getattr(options, name) is not None:
            raise TargetError(f"systemd has passed listening sockets: remove --{name}")
    return sockets


def _functions_server(module: ModuleType, *, pattern: str) -> Server:
    """A server of a module's plain functions, with `ping`, `print` and `stop` unless the module has its own.

    Raises:
        TargetError: no function matches the pattern, or one of them cannot be a remote method.
    """
    server = Server(info=Info(title=module.__name__))
    try:
        server.add_module(module, pattern=pattern)
    except RegistrationError as error:
        raise TargetError(f"{module.__file__}: {error}") from None

    def ping() -> str:
        """Answers "pong"."""
        return "pong"

    def print_message(msg: Any = "") -> None:
        """Prints a message at the server."""
        print(visible(str(msg), keep="\n\t"), flush=True)

    def stop() -> None:
        """Stops the server, after this call is answered."""
        server.stop()

    extras: dict[str, Callable[..., Any]] = {"ping": ping, "print": print_message, "stop": stop}
    for name, function in extras.items():
        if name not in server.methods:
            server.add(function, name=name, mcp=False)  # no tools for agents
    return server


# -- what is shown ---------------------------------------------------------------------------------------------------


def _failure(error: OSError, *, is_agent: bool) -> str | None:
    """Why the server cannot listen or join; None for an error of the target itself."""
    if isinstance(error, ConnectFailed) and (error.address or "").startswith(("nats://", "nats+tls://")):
        return with_option_names(str(error), of_nats=True)
    if is_agent and isinstance(error, PermissionError) and error.errno is None:
        return str(error)
    return error.strerror if (error.strerror or "").startswith("cannot listen") else None


def _set_up_logging(given: Mapping[str, Any], *, is_one_of_several: bool = False) -> None:
    """Log to standard error, unless the target has set up logging itself; `log_level` applies in both cases."""
    if not given.keys() & {"logging", "log_config"}:
        if not logging.getLogger().handlers:
            _show_access_log()
        logging.basicConfig(format=_FORMAT_OF_SEVERAL if is_one_of_several else _FORMAT, level=logging.WARNING)
    if "log_level" in given:
        logging.getLogger().setLevel(given["log_level"].upper())


def _show_access_log() -> None:
    """Write the lines of the access log to standard error as they are, since each has its time in it."""
    logger = logging.getLogger(ACCESS_LOGGER)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


def _banner(server: Server, address: str, *, is_functions: bool) -> str:
    """The text that is printed when the server listens: its address and its methods, without the `rpc.` ones.

    Args:
        server: listens already.
        address: of the server.
        is_functions: use the format of the first JSON-RPC stream servers, which their clients read.
    """
    names = sorted(name for name in server.methods if not name.startswith("rpc."))
    if is_functions:
        url = address if "://" in address else f"jsonrpc2://{address}"
        head = f"{url}\nFunctions:"
    else:
        head = f"{'Hub listening' if isinstance(server, Hub) else 'Listening'} at {address}\nMethods:"
    lines = "".join(f"\n    - {name}" for name in names)
    page = _explorer_address(server) if not is_functions else None
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


def _print_error(text: str) -> None:
    print(f"rpcstream-server: {text}", file=sys.stderr)
