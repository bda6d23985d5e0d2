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
    """One subscription of the command line.

    Attributes:
        count: events that were shown.
        status: the worst exit status of these.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.count = 0
        self.status = OK
        self._options = options
        self._has_topics = not _WILDCARDS.isdisjoint(options.subscribe)
        self._is_text = options.format == "text" or (options.format == "auto" and sys.stdout.isatty())
        self._terminal = terminal_of(sys.stdout)
        self._codec = Codec()
        self._was_connected = self._is_lost = False

    async def run(self, address: str, access: dict[str, Any]) -> int:
        options = self._options
        try:
            client = AsyncClient(
                address, codec=TaggedCodec(), reconnect=options.reconnect, on_state=self._state_changed, **access
            )
        except (ValueError, OSError) as error:
            raise UsageError(option_fault(error)) from error
        try:
            async with asyncio.timeout(options.timeout or None), client:
                await self._show_until_reader_leaves(client)
        except TimeoutError as error:
            if type(error) is not TimeoutError:  # a CallTimeout, while it connected
                raise
            print_error(f"the timeout of {options.timeout:g} s has passed, after {self.count} events")
            return TIME_OUT
        return self.status

    async def _show_until_reader_leaves(self, client: AsyncClient) -> None:
        """Show events; raises BrokenPipeError when nothing reads standard output any more, also while none comes."""
        main = asyncio.current_task()
        assert main is not None
        watching = asyncio.create_task(_wait_for_broken_pipe())
        watching.add_done_callback(lambda task: None if task.cancelled() else main.cancel())
        try:
            await self._show_events(client)
        except asyncio.CancelledError:
            if not watching.done():
                raise
            main.uncancel()
            raise BrokenPipeError from None
        finally:
            watching.cancel()

    async def _show_events(self, client: AsyncClient) -> None:
        most = self._options.max_events
        subscription = client.subscribe(self._options.subscribe).with_topics()
        dropped = 0
        async with subscription:
            async for topic, value in subscription:
                self.count += 1
                self.status = max(self.status, self._show(topic, value))
                if self.count == most:
                    break
                if subscription.dropped > dropped:
                    print_error(f"{subscription.dropped - dropped} events were dropped: they came faster than shown")
                    dropped = subscription.dropped

    def _show(self, topic: str, value: Any) -> int:
        options = self._options
        value = selected(value, options.select)
        if options.output is not None:
            return write_result(options, value, self.count)
        if self._is_text:
            name = f"{self._terminal.paint('key', visible(topic))}  " if self._has_topics else ""
            print(name + format_for_terminal(value, self._terminal, self._codec, is_one_line=True), flush=True)
            return OK
        if self._has_topics and options.format != "raw":
            value = {"topic": topic, "value": value}
        return write_result(options, value)

    def _state_changed(self, state: str) -> None:
        """Say that the connection was lost, and that there is one again: only with --reconnect that is no end."""
        if state == "connected":
            if self._is_lost:
                print_error("connected again; events of the meantime may be missing")
            self._was_connected, self._is_lost = True, False
        elif state != "closed" and self._was_connected and not self._is_lost and self._options.reconnect:
            print_error("the connection is lost; connecting again")
            self._is_lost = True
