"""Events on the command line: `--subscribe` shows them as they arrive, `--publish` reads the value to send."""

from __future__ import annotations

import argparse
import select
import sys
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from ..client.address import check_lasting, parse_address
from ..codec import Codec
from ..text import visible
from .options import UsageError
from .reading import ValueReader, build_params, parse_item, parse_positional
from .show import OK, TIME_OUT, format_for_terminal, print_error, selected, terminal_of, write_result

if TYPE_CHECKING:
    from ..client.sync import Client

#: What makes a pattern; no topic may have one of these.
_WILDCARDS = frozenset("*>")

#: Seconds between two looks whether standard output is still read.
_LOOK_AGAIN = 0.5

#: What `poll` says about a pipe without a reader; empty on Windows, which has no `poll`.
_UNREAD = getattr(select, "POLLERR", 0) | getattr(select, "POLLHUP", 0)

# -- publish ------------------------------------------------------------------------------------------------------


def read_event(options: argparse.Namespace) -> dict[str, Any]:
    """The params of `rpc.publish`: one value, or an object out of items with keys.

    Raises:
        UsageError: there are several values, an item is wrong, or a file cannot be read.
    """
    params = {"topic": options.publish, "value": _event_value(options.items, options.parts or [], ValueReader())}
    return {**params, "retain": True} if options.retain else params


def _event_value(texts: list[str], parts: list[Any], reader: ValueReader) -> Any:
    if texts == ["-"] and not parts:
        return reader.convert(parse_positional(":=@-"))
    items = [parse_item(text) if _has_key(text) else parse_positional(text) for text in texts] + parts
    value = build_params(items, reader.convert)
    if isinstance(value, dict):
        return value
    if value is None or len(value) != 1:
        raise UsageError(f"--publish takes one VALUE, not {len(value or [])}: quote it, or give a list as ':=[...]'")
    return value[0]


def _has_key(text: str) -> bool:
    return "=" in text and not text.startswith(":")


# -- subscribe ----------------------------------------------------------------------------------------------------


def subscribe(options: argparse.Namespace, address: str, make_client: Callable[..., Client]) -> int:
    """Show events until the number or the time that the options say, or Ctrl-C; returns the exit status.

    Args:
        options: of the command line.
        address: of the server.
        make_client: makes the client, with further options.

    Raises:
        UsageError: the address has no lasting connection, or an option makes no sense.
        BrokenPipeError: nothing reads standard output any more, even if no event arrives.
        Besides that what calls raise, and KeyboardInterrupt.
    """
    try:
        check_lasting(parse_address(address), "--subscribe")
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from error
    watch = _Watch(options)
    with make_client(reconnect=options.reconnect, on_state=watch.state_changed) as client:
        return watch.run(client)


class _Watch:
    """One subscription of the command line."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._has_topics = not _WILDCARDS.isdisjoint(options.subscribe)
        self._is_text = options.format == "text" or (options.format == "auto" and sys.stdout.isatty())
        self._terminal = terminal_of(sys.stdout)
        self._codec = Codec()
        self._was_connected = self._is_lost = False
        self._end_at = monotonic() + options.timeout if options.timeout else float("inf")
        self._is_unread = False

    def run(self, client: Client) -> int:
        """Show the events; returns the worst exit status."""
        status, count, dropped = OK, 0, 0
        with client.subscribe(self._options.subscribe).with_topics() as events:
            threading.Thread(target=self._close_at_the_end, args=(client,), daemon=True).start()
            for count, (topic, value) in enumerate(events, 1):
                status = max(status, self._show(topic, value, count))
                if count == self._options.max_events:
                    return status
                if events.dropped > dropped:
                    print_error(f"{events.dropped - dropped} events were dropped: they came faster than shown")
                    dropped = events.dropped
        if self._is_unread:
            raise BrokenPipeError
        print_error(f"the timeout of {self._options.timeout:g} s has passed, after {count} events")
        return TIME_OUT

    def _close_at_the_end(self, client: Client) -> None:
        """Close the client, which ends the loop over events, after the time-out or if nothing reads standard output."""
        output = select.poll() if hasattr(select, "poll") else None  # Windows has none
        if output is not None:
            output.register(sys.stdout.fileno(), 0)  # errors are reported in any case
        while (remaining := self._end_at - monotonic()) > 0 and not self._is_unread:
            sleep(min(remaining, _LOOK_AGAIN))
            self._is_unread = output is not None and any(event & _UNREAD for _, event in output.poll(0))
        client.close()

    def _show(self, topic: str, value: Any, number: int) -> int:
        options = self._options
        value = selected(value, options.select)
        if options.output is not None:
            return write_result(options, value, number)
        if self._is_text:
            name = f"{self._terminal.paint('key', visible(topic))}  " if self._has_topics else ""
            print(name + format_for_terminal(value, self._terminal, self._codec, is_one_line=True), flush=True)
            return OK
        if self._has_topics and options.format != "raw":
            value = {"topic": topic, "value": value}
        return write_result(options, value)

    def state_changed(self, state: str) -> None:
        """Say that the connection was lost, and that there is one again; only with --reconnect the loss is no end."""
        if not self._options.reconnect:
            return
        if state == "connected" and self._is_lost:
            print_error("connected again; events of the meantime may be missing")
        elif state not in ("connected", "closed") and self._was_connected and not self._is_lost:
            print_error("the connection is lost; connecting again")
        self._was_connected = self._was_connected or state == "connected"
        self._is_lost = self._was_connected and state not in ("connected", "closed")
