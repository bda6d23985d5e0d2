"""Events on the command line: `--subscribe` shows them as they arrive, `--publish` reads the value to send."""

from __future__ import annotations

import argparse
import asyncio
import select
import sys
from typing import Any

from ..client.address import check_lasting, parse_address
from ..client.aio import AsyncClient
from ..codec import Codec
from ..text import visible
from .options import UsageError, option_fault
from .reading import ValueReader, build_params, parse_item, parse_positional
from .show import (
    OK,
    TIME_OUT,
    TaggedCodec,
    format_for_terminal,
    print_error,
    selected,
    terminal_of,
    write_result,
)

#: What makes a pattern; no topic may have one of these.
_WILDCARDS = frozenset("*>")

#: Seconds between two looks whether standard output is still read.
_LOOK_AGAIN = 0.5

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


def subscribe(options: argparse.Namespace, address: str, access: dict[str, Any]) -> int:
    """Show events until the number or the time that the options say, or Ctrl-C; returns the exit status.

    Args:
        options: of the command line.
        address: of the server.
        access: the options of the client.

    Raises:
        UsageError: the address has no lasting connection, or an option makes no sense.
        BrokenPipeError: nothing reads standard output any more, even if no event arrives.
        Besides that what calls raise, and KeyboardInterrupt.
    """
    try:
        check_lasting(parse_address(address), "--subscribe")
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from error
    return asyncio.run(_Watch(options).run(address, access))


async def _wait_for_broken_pipe() -> None:
    """Return when the reader of standard output has left; never where the system does not tell (Windows)."""
    if not hasattr(select, "poll"):
        await asyncio.Event().wait()
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors are reported in any case
    while not any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0)):
        await asyncio.sleep(_LOOK_AGAIN)


class _Watch:
    """One subscription of the command line."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._count = 0
        self._has_topics = not _WILDCARDS.isdisjoint(options.subscribe)
        self._is_text = options.format == "text" or (options.format == "auto" and sys.stdout.isatty())
        self._terminal = terminal_of(sys.stdout)
        self._codec = Codec()
        self._was_connected = self._is_lost = False

    async def run(self, address: str, access: dict[str, Any]) -> int:
        """Show the events; returns the exit status."""
        options = self._options
        try:
            client = AsyncClient(
                address, codec=TaggedCodec(), reconnect=options.reconnect, on_state=self._state_changed, **access
            )
        except (ValueError, OSError) as error:
            raise UsageError(option_fault(error)) from error
        try:
            async with asyncio.timeout(options.timeout or None), client:
                return await self._show_while_read(client)
        except TimeoutError as error:
            if type(error) is not TimeoutError:  # a CallTimeout, while it connected
                raise
            print_error(f"the timeout of {options.timeout:g} s has passed, after {self._count} events")
            return TIME_OUT

    async def _show_while_read(self, client: AsyncClient) -> int:
        showing, watching = asyncio.create_task(self._show_events(client)), asyncio.create_task(_wait_for_broken_pipe())
        try:
            await asyncio.wait((showing, watching), return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                return await showing
            raise BrokenPipeError
        finally:
            showing.cancel()
            watching.cancel()

    async def _show_events(self, client: AsyncClient) -> int:
        """Show events as they arrive; returns the worst exit status."""
        status, dropped = OK, 0
        async with client.subscribe(self._options.subscribe).with_topics() as events:
            async for topic, value in events:
                self._count += 1
                status = max(status, self._show(topic, value, self._count))
                if self._count == self._options.max_events:
                    break
                if events.dropped > dropped:
                    print_error(f"{events.dropped - dropped} events were dropped: they came faster than shown")
                    dropped = events.dropped
        return status

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

    def _state_changed(self, state: str) -> None:
        """Say that the connection was lost, and that there is one again; only with --reconnect the loss is no end."""
        if not self._options.reconnect:
            return
        if state == "connected" and self._is_lost:
            print_error("connected again; events of the meantime may be missing")
        elif state not in ("connected", "closed") and self._was_connected and not self._is_lost:
            print_error("the connection is lost; connecting again")
        self._was_connected = self._was_connected or state == "connected"
        self._is_lost = self._was_connected and state not in ("connected", "closed")
