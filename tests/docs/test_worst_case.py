"""The page about abuse adds up what `Limits` allow: its figures are computed here from the defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rpcstream import Limits
from rpcstream.events.retained import MAX_RETAINED_SIZE
from rpcstream.events.subscriptions import MAX_SUBSCRIPTIONS_TOTAL
from rpcstream.hub.registrations import MAX_OFFERED_TOTAL
from rpcstream.peer.ledger import A_VALUE

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "topics" / "abuse.md").read_text(encoding="utf-8")

KIB = 1024
MIB = 1024 * KIB
UNITS = {"KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB}

#: What the page says without a limit of its own: bytes for a call with its task, and for a subscription.
A_CALL, A_SUBSCRIPTION = 40 * KIB, 734

LIMITS = Limits()


def row(name: str) -> list[str]:
    """The cells of the last row of a table that begins so."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [cells for cells in rows if cells[0].startswith(name)][-1]


def size_in(text: str) -> float:
    """The bytes of a sum such as "2 GiB + 192 MiB", "256 + 192 MiB" or "2 x 512 MiB", of the first that is written."""
    written = re.match(r"(?:some )?((?:\d+ x )?[\d.]+(?: [KMG]iB)?(?: \+ [\d.]+(?: [KMG]iB)?)*)", text)
    assert written is not None, text
    unit, total = "", 0.0
    for part in reversed(written[1].split(" + ")):
        *factors, number = re.sub(r" [KMG]iB", "", part).split(" x ")
        unit = (re.findall(r"[KMG]iB", part) or [unit])[0]
        total += float(number) * UNITS[unit] * (float(factors[0]) if factors else 1)
    return total


def parsed_message(limits: Limits) -> float:
    """Bytes of one message in ASCII: the line, its strings, its values."""
    return 2 * limits.max_message_size + A_VALUE * limits.max_values


def connection_parts(limits: Limits) -> dict[str, float]:
    return {
        "messages of running calls (": limits.max_held_size + parsed_message(limits),
        "1,024 calls of short messages": A_CALL * limits.max_calls,
        "requests that wait": limits.max_message_size + MIB,
        "unread replies (": limits.max_message_size + 4 * limits.write_buffer,
    }


def server_parts(limits: Limits) -> dict[str, float]:
    return {
        "messages of running calls, of waiting": limits.max_held_total + parsed_message(limits),
        "one message that is being parsed": parsed_message(limits),
        "images, decoded": limits.max_image_memory,
        "items that are collected": limits.max_collected,
        "unread replies": limits.max_held_total,
        "events, and messages of a hub": 2 * limits.max_waiting,
        "retained events": MAX_RETAINED_SIZE,
        "subscriptions": A_SUBSCRIPTION * MAX_SUBSCRIPTIONS_TOTAL,
        "methods that": MAX_OFFERED_TOTAL,
    }


@pytest.mark.parametrize(("name", "size"), [*connection_parts(LIMITS).items(), *server_parts(LIMITS).items()])
def test_each_part_is_what_the_limit_allows(name: str, size: float) -> None:
    assert size_in(row(name)[-1]) == pytest.approx(size, rel=0.05)


def test_the_sums() -> None:
    one, server = PAGE.split("**One connection**")[1].split("**The server**")
    (together,) = re.findall(r"\| together \| (.*?) \|", one)
    assert size_in(together) == pytest.approx(sum(connection_parts(LIMITS).values()), rel=0.03)
    (together,) = re.findall(r"\| together, without workers \| \| (.*?) \|", server)
    assert size_in(together) == pytest.approx(sum(server_parts(LIMITS).values()), rel=0.05)


def test_the_sum_for_a_small_machine() -> None:
    advice = PAGE.split("For a small machine")[1].split("##")[0]
    assert all(part in advice for part in ("messages of 16 MiB", "12 megapixels", "a fifth of `max_held_total`"))
    small = Limits(max_message_size=16 * MIB, max_image_pixels=12_000_000, max_held_total=LIMITS.max_held_total // 5)
    (said,) = re.findall(r"the sum is about ([\d.]+ GiB)", PAGE)
    assert size_in(said) == pytest.approx(sum(server_parts(small).values()), rel=0.03)
