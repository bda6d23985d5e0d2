# PYTHON_ARGCOMPLETE_OK
"""The command `rpcstream`: one call from the shell, like cURL.

`main` parses the options, reads the parameters, makes the call, shows the result, and returns the exit status. Modules
are imported where they are needed, so that a plain call starts fast.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, EncodeError, MethodNotFound, RpcError
from ..text import visible
from .items import UsageError
from .options import option_fault, with_option_names
from .output import TaggedCodec, format_error
from .show import (
    BROKEN_PIPE,
    INTERRUPTED,
    OK,
    USAGE,
    print_error,
    show,
    show_description,
    status_of,
    terminal_of,
)

if TYPE_CHECKING:
    from ..client.blocking_streams import ClientStream
    from ..client.sync import Client
    from .diagnostics import StatusLine, Timeline
    from .params import GivenParams, Params


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
        line: shows the progress; None where that is switched off.
        timeline: shows messages and times; None without -v.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        from .call_options import connection_options

        self.address, self.access = connection_options(options)
        self.line = _status_line(options)
        self.timeline: Timeline | None = None
        if options.verbose:
            from .diagnostics import Timeline

            self.timeline = Timeline(sys.stderr, terminal_of(sys.stderr))

    def make_client(self, **options: Any) -> Client:
        """A client whose results are plain JSON data, rich values still tagged."""
        from ..client.sync import Client

        if self.timeline is not None:
            shown = self.traced(on_send=self.timeline.on_send)
        elif self.line is not None and sys.stderr.isatty():
            from ..client.options import Trace
            from .diagnostics import UploadBar

            shown = {"trace": Trace(on_send=UploadBar(self.line))}
        else:
            shown = {}
        try:
            return Client(self.address, **{"codec": TaggedCodec(), **shown, **self.access, **options})
        except (ValueError, OSError) as error:
            raise UsageError(option_fault(error)) from error

    def traced(self, **more: Any) -> dict[str, Any]:
        """The options of a client that shows its messages, if that is asked for."""
        from ..client.options import Trace

        timeline = self.timeline
        if timeline is None:
            return {"trace": None}
        return {"trace": Trace(message=timeline.trace, on_receive=timeline.on_receive, **more)}


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
        from .stubs import read_document, write_stubs

        return write_stubs(options, read_document(options.method))
    if options.subscribe is not None:
        from .events import subscribe

        return subscribe(options, setting.address, {**setting.access, **setting.traced()})
    from .params import fitted_call

    given = _params(options)
    if options.repeat:
        return _measure(options, setting, given)
    line, timeline = setting.line, setting.timeline
    if timeline is not None:
        timeline.begin()
    with setting.make_client() as client, timeline or nullcontext():
        if options.stream:
            shown = fitted_call(client, options, given, lambda params: _show_stream(client, options, params, line))
            return int(shown)
        result = fitted_call(client, options, given, lambda params: _request(client, options, params, line))
    if options.notify:
        return OK
    if options.list or options.describe:
        return show_description(options, result)
    if options.stubs is not None:
        from .stubs import write_stubs

        return write_stubs(options, result)
    return show(options, result)


def _measure(options: argparse.Namespace, setting: _Setting, given: GivenParams) -> int:
    from .measure import measure
    from .params import fitted_call

    count = options.concurrency or 1
    limit = {"timeout": options.timeout} if options.timeout else {}
    # A call that is made again would hide a failure.
    with setting.make_client(pool=count, retry=None, **setting.traced()) as client:

        def measured(params: Params) -> int:
            return measure(options, lambda: client.request(options.method, params, **limit), setting.line)

        return int(fitted_call(client, options, given, measured))


def _params(options: argparse.Namespace) -> GivenParams:
    from .params import GivenParams, read_params

    if options.publish is not None:
        from .events import read_event

        return GivenParams(read_event(options), [])
    return read_params(options)


def _check_output(options: argparse.Namespace) -> None:
    """Raises UsageError unless the result can be saved."""
    if options.output is not None:
        from .save import check_writable, is_folder, item_path

        if options.stubs is not None and is_folder(options.output):
            raise UsageError(f"cannot write {options.output!r}: --stubs writes one file: give its name")
        is_numbered = options.stream or options.subscribe is not None
        check_writable(item_path(options.output, 1) if is_numbered else options.output)


def _request(client: Client, options: argparse.Namespace, params: Params, line: StatusLine | None) -> Any:
    from ..wire import envelope

    try:
        if options.list or options.describe or options.stubs is not None:
            return client.request("rpc.discover", None)
        if options.notify:
            return client(envelope.request(options.method, params))
        # The server gets a timeout from the options, too.
        limit = {"timeout": options.timeout} if options.timeout else {}
        if options.publish is not None:
            return _publish(client, params, limit)
        return client.request(options.method, params, on_progress=_on_progress(line), **limit)
    finally:
        if line is not None:
            line.clear()


def _publish(client: Client, params: Any, limit: dict[str, Any]) -> Any:
    try:
        return client.publish(**params, **limit)
    except MethodNotFound as error:
        raise MethodNotFound("only a hub takes events from clients, and this server is not a hub") from error


def _show_stream(client: Client, options: argparse.Namespace, params: Params, line: StatusLine | None) -> int:
    timeout, on_progress = options.timeout or None, _on_progress(line)
    stream = client.stream_request(options.method, params, timeout=timeout, on_progress=on_progress)
    try:
        return _show_items(stream, options, line)
    finally:
        if line is not None:
            line.clear()


def _show_items(stream: ClientStream, options: argparse.Namespace, line: StatusLine | None) -> int:
    """Write each item as soon as it is received; returns the worst exit status."""
    status = OK
    with stream:
        for number, item in enumerate(stream, 1):
            with line or nullcontext():
                status = max(status, show(options, item, number))
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
