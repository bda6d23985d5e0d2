# PYTHON_ARGCOMPLETE_OK
"""The command `rpcstream`: one call from the shell, like cURL.

Owns the order of the steps (options, parameters, call, output) and the exit status. `items` and `values` read the
parameters, `output` and `save` format the result. Modules are imported where they are needed, so that a plain call
starts fast.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from ..codec import Codec
from ..errors import CallTimeout, ConnectFailed, ConnectionLost, DeadlineExceeded, EncodeError, RpcError
from ..text import visible
from .items import UsageError
from .output import Terminal, format_error, format_for_terminal, format_json

if TYPE_CHECKING:
    from ..client.loop_bridge import ClientStream
    from ..client.sync import Client
    from .diagnostics import StatusLine

OK, ERROR_REPLY, USAGE, NO_CONNECTION, TIME_OUT = 0, 1, 2, 3, 4
INTERRUPTED, BROKEN_PIPE = 130, 141  # as the shell reports a death by SIGINT and SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    from .call_options import make_parser, parse

    # A shell can close them (`>&-`): the output is discarded then.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):  # a letter that the terminal cannot show is escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete_call

        complete_call(parser)
    try:
        options = parse(parser, sys.argv[1:] if argv is None else argv)
    except SystemExit as stopped:  # --help, --version, wrong use: argparse has printed the text
        return stopped.code if isinstance(stopped.code, int) else OK
    try:
        status = _run(options)
        sys.stdout.flush()
    except UsageError as error:
        _print_error(str(error))
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # standard output: its reader has exited, or the disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        _print_error(f"cannot write the result: {error.strerror or error}")
        return USAGE
    return status


def _run(options: argparse.Namespace) -> int:
    from .call_options import connection_options, read_params, with_option_names

    address, access = connection_options(options)
    params = read_params(options)
    if options.output is not None:
        from .save import check_writable, item_path

        check_writable(item_path(options.output, 1) if options.stream else options.output)
    line = _status_line(options)
    try:
        with _make_client(options, address, access, line) as client:
            if options.stream:
                return _show_stream(client, options, params, line)
            result = _request(client, options, params, line)
    except CallTimeout as error:
        _print_error(with_option_names(str(error)))
        return TIME_OUT
    except RpcError as error:
        text = format_error(error.code, error.message, error.data, _terminal_of(sys.stderr))
        sys.stderr.write(text + "\n")
        return TIME_OUT if isinstance(error, DeadlineExceeded) else ERROR_REPLY
    except (ConnectFailed, ConnectionLost) as error:
        _print_error(with_option_names(str(error)))
        return NO_CONNECTION
    except EncodeError as error:
        raise UsageError(str(error)) from error
    if options.notify:
        return OK
    if options.list or options.describe:
        return _show_description(options, result)
    return _show(options, result)


def _make_client(options: argparse.Namespace, address: str, access: dict[str, Any], line: StatusLine | None) -> Client:
    """A client whose results are plain JSON data, rich values still tagged."""
    from ..client.sync import Client
    from .call_options import with_option_names

    trace: Callable[[str, bytes], None] | None = None
    on_send: Callable[[int, int], None] | None = None
    if options.verbose:
        from .diagnostics import make_tracer

        trace = make_tracer(sys.stderr, _terminal_of(sys.stderr))
    if line is not None and sys.stderr.isatty():
        from .diagnostics import UploadBar

        on_send = UploadBar(line)
    try:
        return Client(address, codec=TaggedCodec(), trace=trace, on_send=on_send, **access)
    except ValueError as error:
        raise UsageError(with_option_names(str(error))) from error
    except OSError as error:  # from the files with certificates
        raise UsageError(with_option_names(str(error.strerror or error))) from error


class TaggedCodec(Codec):
    """Decodes no rich values: results keep their tagged objects, as the server sent them."""

    def parse(self, line: bytes, max_values: int | None = None) -> tuple[Any, bytes]:
        """The message as plain JSON data."""
        return orjson.loads(line), line

    def holds_tags(self, line: bytes | bytearray) -> bool:
        """False: no value is decoded."""
        return False


def _request(
    client: Client, options: argparse.Namespace, params: list[Any] | dict[str, Any] | None, line: StatusLine | None
) -> Any:
    from ..wire import envelope

    try:
        if options.list or options.describe:
            return client.request("rpc.discover", None)
        if options.notify:
            return client(envelope.request(options.method, params))
        # A time-out from the options is one of the call, which the server is told, too.
        limit = {"timeout": options.timeout} if options.timeout else {}
        return client.request(options.method, params, on_progress=_on_progress(line), **limit)
    finally:
        if line is not None:
            line.clear()


def _show_stream(
    client: Client, options: argparse.Namespace, params: list[Any] | dict[str, Any] | None, line: StatusLine | None
) -> int:
    timeout, on_progress = options.timeout or None, _on_progress(line)
    stream = client.stream_request(options.method, params, timeout=timeout, on_progress=on_progress)
    try:
        return _show_items(stream, options, line)
    finally:
        if line is not None:
            line.clear()


def _show_items(stream: ClientStream, options: argparse.Namespace, line: StatusLine | None) -> int:
    """Write each item as soon as it is received; returns the worst exit status.

    The method's return value is written only where there was no item, since the method may be no stream at all.
    """
    path, status, number = options.output, OK, 0
    with stream:
        for number, item in enumerate(stream, 1):
            if path is not None:
                from .save import item_path

                options.output = item_path(path, number)
            with line or nullcontext():
                status = max(status, _show(options, item))
    options.output = path
    if not number and stream.result is not None:
        with line or nullcontext():
            return _show(options, stream.result)
    return status


def _status_line(options: argparse.Namespace) -> StatusLine | None:
    """The line for progress; None where it is switched off or -v shows the messages."""
    is_terminal = sys.stderr.isatty()
    if options.verbose or not (is_terminal if options.progress is None else options.progress):
        return None
    from .diagnostics import StatusLine

    return StatusLine(sys.stderr, _terminal_of(sys.stderr).width, is_rewritten=is_terminal)


def _on_progress(line: StatusLine | None) -> Callable[[Any], object] | None:
    if line is None:
        return None
    from .diagnostics import HandlerProgress

    return HandlerProgress(line)


def _show_description(options: argparse.Namespace, document: Any) -> int:
    try:
        return _show_methods(options, document)
    except RecursionError:
        _print_error("the descriptions are nested too deep to be shown; --format json prints them as JSON")
        return ERROR_REPLY


def _show_methods(options: argparse.Namespace, document: Any) -> int:
    from ..client.discovery import methods_of
    from ..nearest import did_you_mean, nearest
    from .describe import list_text, method_text

    methods = methods_of(document)
    if options.list:
        if options.format == "raw" and options.output is None:
            sys.stdout.write("".join(f"{visible(method['name'])}\n" for method in methods))
        elif _is_readable(options):
            print(list_text(methods, _terminal_of(sys.stdout)))
        else:
            return _show(options, methods)
        return OK
    for method in methods:
        if method["name"] == options.method:
            if not _is_readable(options):
                return _show(options, method)
            print(method_text(method, document, _terminal_of(sys.stdout)))
            return OK
    near = did_you_mean(nearest(options.method, [method["name"] for method in methods]))
    _print_error(f"the server has no method {options.method!r}{near}; --list shows its methods")
    return ERROR_REPLY


def _show(options: argparse.Namespace, value: Any) -> int:
    codec = Codec()
    is_terminal = sys.stdout.isatty()
    if options.output is not None and not (options.output == "-" and is_terminal):
        from .save import save

        try:
            complaint = save(options.output, value, codec, raw=options.format == "raw")
        except BrokenPipeError:
            raise
        except OSError as error:
            _print_error(f"cannot write {options.output!r}: {error.strerror or error}; here is the result")
            options.output = None
            _show(options, value)
            return USAGE
        if complaint is not None:
            _print_error(complaint)
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
        _print_error("the result is binary data; here is its description (-o FILE saves it)")
    if not is_terminal:
        _write(format_json(value, codec))
    elif options.format == "json":
        _print(format_json(value, codec))
    else:
        print(format_for_terminal(value, _terminal_of(sys.stdout), codec))
        sys.stdout.flush()
    return OK


def _is_readable(options: argparse.Namespace) -> bool:
    """Tell whether to write text for a terminal, and not JSON."""
    return options.format == "auto" and options.output is None and sys.stdout.isatty()


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _print(data: bytes) -> None:
    """Write text from the server to a terminal, with control characters escaped (in a pipe they are not)."""
    print(visible(data.decode(errors="backslashreplace"), keep="\n\t"), end="", flush=True)


def _print_error(text: str) -> None:
    print(f"rpcstream: {visible(text)}", file=sys.stderr)


def _terminal_of(stream: TextIO) -> Terminal:
    """The terminal that a stream is connected to; one without colours where it is connected to none."""
    if not stream.isatty():
        return Terminal()
    try:
        width = os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        width = 80
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb")
    return Terminal(width, not is_plain and (stream.encoding or "").lower().startswith("utf"))


if __name__ == "__main__":
    sys.exit(main())
