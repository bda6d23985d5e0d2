# PYTHON_ARGCOMPLETE_OK
"""The command `rpcstream`: one call from the shell, like cURL.

`main` parses the options, reads the parameters, makes the call, shows the result, and returns the exit status. Modules
are imported where they are needed, so that a plain call starts fast.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from io import IOBase, TextIOWrapper
from typing import TYPE_CHECKING, Any

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, EncodeError, InvalidParams, MethodNotFound, RpcError
from ..text import visible
from .options import UsageError, option_fault, with_option_names
from .show import (
    BROKEN_PIPE,
    INTERRUPTED,
    OK,
    USAGE,
    TaggedCodec,
    format_error,
    print_error,
    show,
    status_of,
    terminal_of,
)

if TYPE_CHECKING:
    from ..client.sync import Client
    from .diagnostics import MessageLog, StatusLine
    from .reading import GivenParams, Params

#: Seconds that the server may take to say what its methods take; without an answer the call is made as it is.
DISCOVERY_TIME = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    from .call_options import make_parser, parse

    # A shell can close them (`>&-`): the output is discarded then.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):  # a letter that the terminal cannot show is escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:] if argv is None else argv
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete_call

        complete_call(parser)
    try:
        options = parse(parser, arguments)
    except SystemExit as stopped:  # --help, --version, wrong use: argparse has printed the text
        return stopped.code if isinstance(stopped.code, int) else OK
    try:
        status = _run(options)
        sys.stdout.flush()
    except UsageError as error:
        print_error(str(error))
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # standard output: its reader has exited, or the disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        print_error(f"cannot write the result: {error.strerror or error}")
        return USAGE
    return status


class _Setting:
    """What all calls of one command share: the server, and what is shown while they run.

    Attributes:
        address: of the server.
        access: the options of a client.
        line: shows the progress; None where that is switched off, and with -v.
        log: shows the messages; None without -v.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        from ..client.options import Trace
        from .call_options import connection_options

        self.address, self.access = connection_options(options)
        self.line: StatusLine | None = None
        self.log: MessageLog | None = None
        is_terminal = sys.stderr.isatty()
        if options.verbose:
            from .diagnostics import MessageLog

            self.log = MessageLog(sys.stderr, terminal_of(sys.stderr))
            self.access["trace"] = Trace(message=self.log.show)
        elif is_terminal if options.progress is None else options.progress:
            from .diagnostics import StatusLine

            self.line = StatusLine(sys.stderr, terminal_of(sys.stderr).width, is_rewritten=is_terminal)
            if is_terminal:
                self.access["trace"] = Trace(on_send=self.line.show_upload)

    def make_client(self, **options: Any) -> Client:
        """A client whose results are plain JSON data, rich values still tagged."""
        from ..client.sync import Client

        try:
            return Client(self.address, **{"codec": TaggedCodec(), **self.access, **options})
        except (ValueError, OSError) as error:
            raise UsageError(option_fault(error)) from error


def _run(options: argparse.Namespace) -> int:
    setting = _Setting(options)
    try:
        return _perform(options, setting)
    except RpcError as error:
        text = format_error(error.code, error.message, error.data, terminal_of(sys.stderr))
        advice = "" if error.advice is None else f"; {visible(with_option_names(error.advice))}"
        sys.stderr.write(f"{text}{advice}\n")
        return status_of(error)
    except (CallTimeout, ConnectFailed, ConnectionLost) as error:
        print_error(with_option_names(str(error)))
        return status_of(error)
    except EncodeError as error:
        raise UsageError(str(error)) from error


def _perform(options: argparse.Namespace, setting: _Setting) -> int:
    """Do what the command line asks for; returns the exit status."""
    _check_output(options)
    if options.stubs is not None and options.method:
        from .describe import read_document_file, write_stubs

        return write_stubs(options, read_document_file(options.method))
    if options.subscribe is not None:
        from .events import subscribe

        return subscribe(options, setting.address, setting.access)
    given = _params(options)
    if options.repeat:
        return _measure(options, setting, given)
    call = _show_stream if options.stream else _request
    with setting.make_client() as client, setting.log or nullcontext():
        try:
            result = _fitted_call(client, options, given, lambda params: call(client, options, params, setting.line))
        finally:
            if setting.line is not None:
                setting.line.clear()
    if options.stream:
        return int(result)
    if options.notify:
        return OK
    if options.list or options.describe:
        from .describe import show_description

        return show_description(options, result)
    if options.stubs is not None:
        from .describe import write_stubs

        return write_stubs(options, result)
    return show(options, result)


def _measure(options: argparse.Namespace, setting: _Setting, given: GivenParams) -> int:
    from .measure import measure

    limit = {"timeout": options.timeout} if options.timeout else {}
    # A call that is made again would hide a failure.
    with setting.make_client(pool=options.concurrency or 1, retry=None, trace=None) as client:

        def measured(params: Params) -> int:
            return measure(options, lambda: client.request(options.method, params, **limit), setting.line)

        return int(_fitted_call(client, options, given, measured))


def _params(options: argparse.Namespace) -> GivenParams:
    from .reading import GivenParams, read_params

    if options.publish is not None:
        from .events import read_event

        return GivenParams(read_event(options))
    return read_params(options)


def _check_output(options: argparse.Namespace) -> None:
    """Raises UsageError unless the result can be saved."""
    if options.output is not None:
        from .files import check_writable, is_folder, item_path

        if options.stubs is not None and is_folder(options.output):
            raise UsageError(f"cannot write {options.output!r}: --stubs writes one file: give its name")
        is_numbered = options.stream or options.subscribe is not None
        check_writable(item_path(options.output, 1 if is_numbered else None))


def _fitted_call(client: Client, options: argparse.Namespace, given: GivenParams, call: Callable[[Params], Any]) -> Any:
    """Make a call; if the server refuses the params, ask what the method takes, and call again if that changes them.

    The server is asked before the call where an item is the path of a file, which is sent to a parameter that takes
    one; for a notification, which has no error; and for a measurement, which would count it many times.
    """
    may_ask = bool(given.unclear) and not options.no_schema
    fitted: Any = None
    if may_ask and (given.names_files or options.notify or options.repeat):
        may_ask = False
        fitted = _fit(client, options, given)
    params: Any = given.params if fitted is None else fitted
    for where, item in given.unclear.items() if options.notify or options.repeat else ():
        value = params[where]
        if isinstance(value, Iterator) and not isinstance(value, IOBase):  # an image in its file is one, too
            raise UsageError(f"{item.source}: a stream goes with one call, not with --notify or --repeat")
    try:
        return call(params)
    except InvalidParams as error:
        fitted = _fit(client, options, given) if may_ask else fitted
        error.advice = given.advice(error, is_fitted=fitted is not None)
        if fitted is None or all(fitted[where] is params[where] for where in given.unclear):
            raise
    return call(fitted)


def _fit(client: Client, options: argparse.Namespace, given: GivenParams) -> Params:
    """The params as the method takes them; None where the server does not say what that is."""
    from ..openrpc.document import read_document
    from ..openrpc.types import DocumentError
    from .inputs import Inputs

    try:
        document = client.request("rpc.discover", None, timeout=min(options.timeout or DISCOVERY_TIME, DISCOVERY_TIME))
        api = read_document(document, only=options.method)
    except (RpcError, CallTimeout, DocumentError):
        return None
    except (ConnectFailed, ConnectionLost) as error:
        error.method = options.method  # what the user called
        raise
    return Inputs(api, api.methods[0], given.reader).fitted(given) if api.methods else None


def _request(client: Client, options: argparse.Namespace, params: Params, line: StatusLine | None) -> Any:
    from ..wire import envelope

    if options.list or options.describe or options.stubs is not None:
        return client.request("rpc.discover", None)
    if options.notify:
        return client(envelope.request(options.method, params))
    # The server gets a timeout from the options, too.
    limit = {"timeout": options.timeout} if options.timeout else {}
    if options.publish is not None:
        return _publish(client, params, limit)
    return client.request(options.method, params, on_progress=_on_progress(line), **limit)


def _publish(client: Client, params: Any, limit: dict[str, Any]) -> Any:
    try:
        return client.publish(**params, **limit)
    except MethodNotFound as error:
        raise MethodNotFound("only a hub takes events from clients, and this server is not a hub") from error


def _show_stream(client: Client, options: argparse.Namespace, params: Params, line: StatusLine | None) -> int:
    """Write each item as soon as it is received; returns the worst exit status."""
    on_progress = _on_progress(line)
    status = OK
    with client.stream_request(
        options.method, params, timeout=options.timeout or None, on_progress=on_progress
    ) as stream:
        for number, item in enumerate(stream, 1):
            with line or nullcontext():
                status = max(status, show(options, item, number))
    return status


def _on_progress(line: StatusLine | None) -> Callable[[Any], object] | None:
    return None if line is None else line.show_progress


if __name__ == "__main__":
    sys.exit(main())
