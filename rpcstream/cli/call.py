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
from typing import TYPE_CHECKING, Any

import orjson

from ..codec import Codec
from ..errors import CallTimeout, ConnectFailed, ConnectionLost, DeadlineExceeded, EncodeError, RpcError
from .items import UsageError
from .options import with_option_names
from .output import format_error
from .show import (
    BROKEN_PIPE,
    ERROR_REPLY,
    INTERRUPTED,
    NO_CONNECTION,
    OK,
    TIME_OUT,
    USAGE,
    print_error,
    show,
    show_description,
    terminal_of,
)

if TYPE_CHECKING:
    from ..client.loop_bridge import ClientStream
    from ..client.sync import Client
    from .diagnostics import StatusLine


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    from .call_options import make_parser, parse

    # A shell can close them (`>&-`): the output is discarded then.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):  # a letter that the terminal cannot show is escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["help"] and (status := _show_help(arguments)) is not None:
        return status
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


def _show_help(arguments: Sequence[str]) -> int | None:
    """Print a page of help, if the command line asks for one; returns the exit status, None if it does not."""
    from .help_topics import help_text, topic_of, unknown_topic

    topic = topic_of(arguments)
    if topic is None:
        return None
    text = help_text(topic)
    if text is None:
        print_error(unknown_topic(topic))
        return USAGE
    print(text)
    return OK


def _run(options: argparse.Namespace) -> int:
    from .call_options import connection_options, read_params

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
        print_error(with_option_names(str(error)))
        return TIME_OUT
    except RpcError as error:
        text = format_error(error.code, error.message, error.data, terminal_of(sys.stderr))
        advice = "" if error.advice is None else f"; {with_option_names(error.advice)}"
        sys.stderr.write(f"{text}{advice}\n")
        return TIME_OUT if isinstance(error, DeadlineExceeded) else ERROR_REPLY
    except (ConnectFailed, ConnectionLost) as error:
        print_error(with_option_names(str(error)))
        return NO_CONNECTION
    except EncodeError as error:
        raise UsageError(str(error)) from error
    if options.notify:
        return OK
    if options.list or options.describe:
        return show_description(options, result)
    return show(options, result)


def _make_client(options: argparse.Namespace, address: str, access: dict[str, Any], line: StatusLine | None) -> Client:
    """A client whose results are plain JSON data, rich values still tagged."""
    from ..client.sync import Client

    trace: Callable[[str, bytes], None] | None = None
    on_send: Callable[[int, int], None] | None = None
    if options.verbose:
        from .diagnostics import make_tracer

        trace = make_tracer(sys.stderr, terminal_of(sys.stderr))
    if line is not None and sys.stderr.isatty():
        from .diagnostics import UploadBar

        on_send = UploadBar(line)
    try:
        return Client(address, codec=TaggedCodec(), trace=trace, on_send=on_send, **access)
    except ValueError as error:
        raise UsageError(with_option_names(str(error))) from error
    except OSError as error:  # from the files with certificates
        reason = error.strerror or str(error)
        raise UsageError(with_option_names(reason) + (f": {error.filename!r}" if error.filename else "")) from error


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
                status = max(status, show(options, item))
    options.output = path
    if not number and stream.result is not None:
        with line or nullcontext():
            return show(options, stream.result)
    return status


def _status_line(options: argparse.Namespace) -> StatusLine | None:
    """The line for progress; None where it is switched off or -v shows the messages."""
    is_terminal = sys.stderr.isatty()
    if options.verbose or not (is_terminal if options.progress is None else options.progress):
        return None
    from .diagnostics import StatusLine

    return StatusLine(sys.stderr, terminal_of(sys.stderr).width, is_rewritten=is_terminal)


def _on_progress(line: StatusLine | None) -> Callable[[Any], object] | None:
    if line is None:
        return None
    from .diagnostics import HandlerProgress

    return HandlerProgress(line)


if __name__ == "__main__":
    sys.exit(main())
