# PYTHON_ARGCOMPLETE_OK
"""The command `rpcstream`: one call from the shell, like cURL.

Owns the order of things (options, parameters, call, output) and the exit status. What items mean is in `items` and
`values`, what a result looks like in `output` and `save`, connections are the client's. Imports little before it has
to, since a shell waits for it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, DeadlineExceeded, EncodeError, RpcError
from ..text import visible
from .items import UsageError
from .output import Look, error_line, for_people, for_programs

if TYPE_CHECKING:
    from ..client.sync import Client
    from .progress import StatusLine

OK, ERROR_REPLY, USAGE, NO_CONNECTION, TIME_OUT = 0, 1, 2, 3, 4
#: What a person at a shell sends and asks for is not ours to refuse before memory does; the server has its own limit.
MAX_MESSAGE_SIZE = 1024 * 1024 * 1024
INTERRUPTED, BROKEN_PIPE = 130, 141  # as the shell reports a death by SIGINT and SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    from .call_options import make_parser, parsed

    # A shell can close them (`>&-`); what goes there is then meant to be lost.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal that cannot show a letter shows its escape
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete_call

        complete_call(parser)
    try:
        options = parsed(parser, sys.argv[1:] if argv is None else argv)
    except SystemExit as stopped:  # --help, --version, wrong use: argparse has said what there is to say
        return stopped.code if isinstance(stopped.code, int) else OK
    try:
        status = _run(options)
        sys.stdout.flush()
    except UsageError as error:
        _complain(str(error))
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # of standard output: whoever read it went away, or the disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        _complain(f"cannot write the result: {error.strerror or error}")
        return USAGE
    return status


def _run(options: argparse.Namespace) -> int:
    from .call_options import address, parameters

    where = address(options.uri, options.port)
    params = parameters(options)
    if options.stream:
        from .streaming import check_output

        check_output(options)
    elif options.output is not None:
        from .save import check_writable

        check_writable(options.output)
    line = _status_line(options)
    try:
        with _client(options, where, line) as client:
            if options.stream:
                return _show_stream(client, options, params, line)
            result = _result(client, options, params, line)
    except CallTimeout as error:
        _complain(str(error))
        return TIME_OUT
    except RpcError as error:
        look = _look(sys.stderr)
        sys.stderr.write(error_line(error.code, error.message, error.data, look) + "\n")
        return TIME_OUT if isinstance(error, DeadlineExceeded) else ERROR_REPLY
    except (ConnectFailed, ConnectionLost) as error:
        _complain(str(error))
        return NO_CONNECTION
    except EncodeError as error:
        raise UsageError(str(error)) from error
    if options.notify:
        return OK
    if options.list or options.describe:
        return _show_description(options, result)
    return _show(options, result)


def _client(options: argparse.Namespace, where: str, line: StatusLine | None) -> Client:
    """A client whose results are plain JSON data, rich values still tagged."""
    from ..client.sync import Client
    from ..limits import Limits
    from .call_options import DEFAULT_TIMEOUT, access
    from .wire import AsReceived

    timeout = DEFAULT_TIMEOUT if options.timeout is None else options.timeout or None
    trace: Callable[[str, bytes], None] | None = None
    on_send: Callable[[int, int], None] | None = None
    if options.verbose:
        from .trace import tracer

        trace = tracer(sys.stderr, _look(sys.stderr))
    if line is not None and sys.stderr.isatty():
        from .progress import Sending

        on_send = Sending(line)
    try:
        return Client(
            where,
            timeout=timeout,
            connect_timeout=min(10.0, timeout or 10.0),
            codec=AsReceived(),
            limits=Limits(max_message_size=MAX_MESSAGE_SIZE),
            trace=trace,
            on_send=on_send,
            **access(options),
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:  # of the files with certificates
        raise UsageError(f"the certificates cannot be used: {error}") from error


def _result(
    client: Client, options: argparse.Namespace, params: list[Any] | dict[str, Any] | None, line: StatusLine | None
) -> Any:
    from ..wire import envelope

    try:
        if options.list or options.describe:
            return client.request("rpc.discover", None)
        if options.notify:
            return client(envelope.request(options.method, params))
        # A time-out of the call's own, if one is given, so that the server hears of it too.
        limit = {"timeout": options.timeout} if options.timeout else {}
        return client.request(options.method, params, on_progress=_on_progress(line), **limit)
    finally:
        if line is not None:
            line.clear()


def _show_stream(
    client: Client, options: argparse.Namespace, params: list[Any] | dict[str, Any] | None, line: StatusLine | None
) -> int:
    from .streaming import show_items

    stream = client._streamed(options.method, params, options.timeout or None, on_progress=_on_progress(line))
    try:
        return show_items(stream, options, _show, line)
    finally:
        if line is not None:
            line.clear()


def _status_line(options: argparse.Namespace) -> StatusLine | None:
    """The line for progress, if it is wanted: with -v the messages themselves are shown."""
    is_terminal = sys.stderr.isatty()
    if options.verbose or not (is_terminal if options.progress is None else options.progress):
        return None
    from .progress import StatusLine

    return StatusLine(sys.stderr, _look(sys.stderr).width, is_rewritten=is_terminal)


def _on_progress(line: StatusLine | None) -> Callable[[Any], object] | None:
    if line is None:
        return None
    from .progress import Progress

    return Progress(line)


def _show_description(options: argparse.Namespace, document: Any) -> int:
    try:
        return _show_methods(options, document)
    except RecursionError:
        _complain("the descriptions are nested too deep to be shown; --format json has them as they are")
        return ERROR_REPLY


def _show_methods(options: argparse.Namespace, document: Any) -> int:
    from .describe import list_text, method_text, methods_of

    methods = methods_of(document)
    if options.list:
        if options.format == "raw" and options.output is None:
            sys.stdout.write("".join(f"{visible(method['name'])}\n" for method in methods))
        elif _for_people(options):
            print(list_text(methods, _look(sys.stdout)))
        else:
            return _show(options, methods)
        return OK
    for method in methods:
        if method["name"] == options.method:
            if not _for_people(options):
                return _show(options, method)
            print(method_text(method, document, _look(sys.stdout)))
            return OK
    _complain(f"the server has no method {options.method!r}; --list shows what it has")
    return ERROR_REPLY


def _show(options: argparse.Namespace, value: Any) -> int:
    from ..codec import Codec

    codec = Codec()
    is_terminal = sys.stdout.isatty()
    if options.output is not None and not (options.output == "-" and is_terminal):
        from .save import save

        try:
            complaint = save(options.output, value, codec, raw=options.format == "raw")
        except BrokenPipeError:
            raise
        except OSError as error:
            _complain(f"cannot write {options.output!r}: {error.strerror or error}; here is the result")
            options.output = None
            _show(options, value)
            return USAGE
        if complaint is not None:
            _complain(complaint)
        return OK if complaint is None else USAGE
    if options.format == "raw":
        from .save import raw_form

        data, is_text = raw_form(value, codec)
        if not is_terminal:
            _write(data)
            return OK
        if is_text:
            _print(data)
            return OK
        _complain("this would put binary data on the terminal; here is its description (-o FILE saves it)")
    if not is_terminal:
        _write(for_programs(value, codec))
    elif options.format == "json":
        _print(for_programs(value, codec))
    else:
        print(for_people(value, _look(sys.stdout), codec))
        sys.stdout.flush()
    return OK


def _for_people(options: argparse.Namespace) -> bool:
    return options.format == "auto" and options.output is None and sys.stdout.isatty()


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _print(data: bytes) -> None:
    """Text of a peer's on the terminal. (In a pipe or a file it is exactly as it came.)"""
    print(visible(data.decode(errors="backslashreplace"), keep="\n\t"), end="", flush=True)


def _complain(text: str) -> None:
    print(f"rpcstream: {visible(text)}", file=sys.stderr)


def _look(stream: TextIO) -> Look:
    """What the terminal behind a stream can do; plain where there is none."""
    if not stream.isatty():
        return Look()
    try:
        width = os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        width = 80
    dull = os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb")
    return Look(width, not dull and (stream.encoding or "").lower().startswith("utf"))


if __name__ == "__main__":
    sys.exit(main())
