# PYTHON_ARGCOMPLETE_OK
"""The command `rpcstream-server`: serves what a module holds, or a hub.

Owns the options, the banner and the exit status. What a target means is in `load`, the serving in `Server.run`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import __version__
from ..limits import DEFAULT_HOST, DEFAULT_PORT
from .hub import add_guard_options, add_hub_options, complaint
from .options import Formatter, apart, port

if TYPE_CHECKING:
    from ..server import Server

#: With -f, so that the callers of the first JSON-RPC stream servers find it where they always did.
FUNCTIONS_PORT = 2102
FUNCTIONS_MODULE = "controlFunctions"
FUNCTIONS_PATTERN = "control_*"

OK, FAILED, USAGE = 0, 1, 2

_DESCRIPTION = """\
Serve the methods of a Server, with -f the functions of a plain module, or with --hub a hub.

TARGET is one of
  module:server      a Server in a module, seen from the current directory
  module:function    a function without parameters that returns a Server
  file.py            the only Server in a file, or the one called `server`
  file.py:server     that Server in the file
A Hub is a Server too. Without TARGET, --hub makes one, out of these options, then of environment
variables such as RPCSTREAM_HUB_TOKEN, then of the file that --config names."""

_EPILOG = """\
exit status: 0 stopped (Ctrl-C, SIGTERM, the method `stop`), 1 cannot listen, 2 wrong use or a
target that cannot be served, 128 + the signal's number when a second signal ended it at once,
or a handler kept the event loop for too long after the first"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of `rpcstream-server`."""
    parser = argparse.ArgumentParser(
        prog="rpcstream-server",
        usage="%(prog)s [options] TARGET\n       %(prog)s [options] -f [MODULE]\n       %(prog)s [options] --hub",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("target", metavar="TARGET", nargs="?", help="what to serve")
    add(
        "-f",
        "--functions",
        metavar="MODULE",
        nargs="?",
        const=FUNCTIONS_MODULE,
        help=f"serve the functions of a module (a name or a file; {FUNCTIONS_MODULE} if none is given),"
        " and with them ping, print and stop",
    )
    add("--pattern", help=f"with -f: the names to serve, as in a shell (default '{FUNCTIONS_PATTERN}')")
    add("-s", "--host", help=f"address to listen at (default {DEFAULT_HOST}: this machine only)")
    add(
        "-p",
        "--port",
        type=port,
        help=f"port to listen at (default {DEFAULT_PORT}, with -f {FUNCTIONS_PORT}; 0: one that is free)",
    )
    add("--unix", metavar="PATH", help="listen at a Unix socket instead")
    add("-d", "--debug", action="store_true", help="log every message; show callers what handlers raised")
    add(
        "--log-level",
        metavar="LEVEL",
        choices=("debug", "info", "warning", "error", "critical"),
        help="debug, info, warning, error or critical (default warning, with -d info)",
    )
    add("--version", action="version", version=f"rpcstream {__version__}")
    add_hub_options(parser.add_argument_group("a hub").add_argument)
    add_guard_options(parser.add_argument_group("who may connect").add_argument)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete_server

        complete_server(parser)
    try:
        options = _options(parser, sys.argv[1:] if argv is None else argv)
    except SystemExit as stopped:  # --help, --version, wrong use: argparse has said what there is to say
        return stopped.code if isinstance(stopped.code, int) else OK
    from .load import TargetError

    if options.hub and options.target is None:  # a target may set logging up itself
        _set_up_logging(options)
    try:
        server = _load(options)
    except TargetError as error:
        if options.debug and error.__cause__ is not None:
            import traceback

            traceback.print_exception(error.__cause__)
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE
    _set_up_logging(options)
    return _serve(server, options, parser.prog)


def _options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    given, targets = apart(argv, parser._actions)
    options = parser.parse_args(given)
    if len(targets) > 1:
        parser.error(f"one TARGET, please, not {len(targets)}: {' '.join(targets)}")
    options.target = targets[0] if targets else None
    if options.hub and options.functions is not None:
        parser.error("-f does not go with --hub: let a client of the hub offer the functions")
    if not options.hub and (options.target is None) == (options.functions is None):
        parser.error("say what to serve: a TARGET such as module:server or file.py, -f MODULE, or --hub")
    if options.pattern is not None and options.functions is None:
        parser.error("--pattern goes with -f")
    if options.unix is not None and (options.host is not None or options.port is not None):
        parser.error("--unix takes the place of --host and --port")
    wrong = complaint(options)
    if wrong is not None:
        parser.error(wrong)
    return options


def _load(options: argparse.Namespace) -> Server:
    from .hub import guard, is_hub, make_hub
    from .load import TargetError, functions_server, load_module, load_server

    if options.hub and options.target is None:
        return make_hub(options)
    if options.functions is None:
        server = load_server(options.target)
    else:
        pattern = FUNCTIONS_PATTERN if options.pattern is None else options.pattern
        server = functions_server(load_module(options.functions), pattern=pattern)
    if options.hub and not is_hub(server):
        raise TargetError(f"{options.target} is a Server, not a Hub: leave --hub out")
    guard(server, options)
    server.debug = server.debug or options.debug
    return server


def _set_up_logging(options: argparse.Namespace) -> None:
    """To standard error, unless the target has set logging up itself; --log-level counts either way."""
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    level = options.log_level or ("info" if options.debug else None)
    if level is not None:
        logging.getLogger().setLevel(level.upper())


def _serve(server: Server, options: argparse.Namespace, prog: str) -> int:
    from .hub import place

    where = place(server, options, DEFAULT_PORT if options.functions is None else FUNCTIONS_PORT)

    def on_listening(address: str) -> None:
        _say(banner(server, address, functions=options.functions is not None))

    from ..errors import RegistrationError

    try:
        server.run(**where, on_listening=on_listening)
    except RegistrationError as error:  # a method that cannot run in another process
        print(f"{prog}: {error}", file=sys.stderr)
        return USAGE
    except OSError as error:
        if error.strerror is None or not error.strerror.startswith("cannot listen"):
            raise  # of the target's own lifespan
        print(f"{prog}: {error.strerror}", file=sys.stderr)
        return FAILED
    return OK


def banner(server: Server, address: str, *, functions: bool) -> str:
    """Where the server listens and what it offers, its own `rpc.` methods left out.

    With `functions`, in the words of the first JSON-RPC stream servers.
    """
    names = sorted(name for name in server.methods if not name.startswith("rpc."))
    if functions:
        place = address if "://" in address else f"jsonrpc2://{address}"
        head = f"{place}\nFunctions:"
    else:
        from .hub import is_hub

        head = f"{'Hub listening' if is_hub(server) else 'Listening'} at {address}\nMethods:"
    lines = "".join(f"\n    - {name}" for name in names)
    return f"{head}{lines}\nCtrl-C to stop"


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError:  # nobody reads it: serve all the same, and let no later print fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
