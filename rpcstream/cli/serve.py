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
from typing import TYPE_CHECKING

from ..limits import DEFAULT_PORT
from .serve_options import FUNCTIONS_PATTERN, FUNCTIONS_PORT, make_parser, parse

if TYPE_CHECKING:
    from ..server import Server

OK, FAILED, USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete_server

        complete_server(parser)
    try:
        options = parse(parser, sys.argv[1:] if argv is None else argv)
    except SystemExit as stopped:  # --help, --version, wrong use: argparse has printed the text
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


def _load(options: argparse.Namespace) -> Server:
    from .load import (
        TargetError,
        apply_access_options,
        functions_server,
        is_hub,
        load_module,
        load_server,
        make_hub,
    )

    if options.hub and options.target is None:
        return make_hub(options)
    if options.functions is None:
        server = load_server(options.target)
    else:
        pattern = FUNCTIONS_PATTERN if options.pattern is None else options.pattern
        server = functions_server(load_module(options.functions), pattern=pattern)
    if options.hub and not is_hub(server):
        raise TargetError(f"{options.target} is a Server, not a Hub: leave --hub out")
    apply_access_options(server, options)
    server.debug = server.debug or options.debug
    return server


def _set_up_logging(options: argparse.Namespace) -> None:
    """Log to standard error, unless the target has set up logging itself; --log-level applies in both cases."""
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    level = options.log_level or ("info" if options.debug else None)
    if level is not None:
        logging.getLogger().setLevel(level.upper())


def _serve(server: Server, options: argparse.Namespace, prog: str) -> int:
    from .load import listen_arguments

    arguments = listen_arguments(server, options, DEFAULT_PORT if options.functions is None else FUNCTIONS_PORT)

    def on_listening(address: str) -> None:
        _say(banner(server, address, functions=options.functions is not None))

    from ..errors import RegistrationError

    try:
        server.run(**arguments, on_listening=on_listening)
    except RegistrationError as error:  # a method that cannot run in another process
        print(f"{prog}: {error}", file=sys.stderr)
        return USAGE
    except OSError as error:
        if error.strerror is None or not error.strerror.startswith("cannot listen"):
            raise  # raised by the target's own lifespan
        print(f"{prog}: {error.strerror}", file=sys.stderr)
        return FAILED
    return OK


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
    return f"{head}{lines}\nCtrl-C to stop"


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError:  # standard output is closed: serve all the same, and let no later print fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
