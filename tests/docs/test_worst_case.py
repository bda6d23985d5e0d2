"""The page about capacity adds up what `Limits` allow: its figures are computed here from the defaults."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from rpcstream import Limits
from rpcstream.events.subscriptions import MAX_SUBSCRIPTIONS_TOTAL
from rpcstream.events.topics import MAX_RETAINED_SIZE
from rpcstream.hub.methods import MAX_OFFERED_TOTAL
from rpcstream.peer.ledger import A_VALUE
from tests.kit.certificates import client_side, server_tls

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "capacity.md").read_text(encoding="utf-8")

KIB = 1024
MIB = 1024 * KIB
UNITS = {"KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB}

#: What the page says without a limit of its own: bytes for a call with its task, and for a subscription.
A_CALL, A_SUBSCRIPTION = 40 * KIB, 734

LIMITS = Limits()

#: A server whose memory is measured.
SERVER = """
from pathlib import PosixPath
from rpcstream import Server
from rpcstream.tls import TLS

Server(tls={tls!r}).run(port=0, on_listening=lambda address: print(address, flush=True))
"""


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


def number_in(text: str) -> int:
    return int(size_in(text)) if "iB" in text else int(text.replace(",", ""))


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
        "items that are collected": limits.max_waiting,
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
    (together,) = re.findall(r"\| together \| \| (.*?) \|", server)
    assert size_in(together) == pytest.approx(sum(server_parts(LIMITS).values()), rel=0.02)


def test_the_sum_with_large_messages() -> None:
    (said,) = re.findall(r"With messages of 256 MiB, .* up to \[about ([\d.]+ GiB)", PAGE)
    parts = server_parts(Limits(max_message_size=256 * MIB))
    assert size_in(said) == pytest.approx(sum(parts.values()), rel=0.02)


@pytest.mark.parametrize("container", ["512 MiB", "1 GiB", "2 GiB", "8 GiB"])
def test_the_limits_for_a_container_fit_into_it(container: str) -> None:
    names = [cell.strip("` ") for cell in row("container")[1:-1]]
    *sizes, most = row(container)[1:]
    limits = Limits(**{name: number_in(text) for name, text in zip(names, sizes, strict=True)})
    total = sum(server_parts(limits).values())
    assert size_in(most) == pytest.approx(total, rel=0.02)
    assert total + 60 * MIB < size_in(container)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_an_idle_connection_takes_what_the_page_says(tls: bool, tmp_path: Path) -> None:
    pytest.importorskip("uvloop")
    plain, encrypted = re.findall(r"takes about (\d+ KiB) of memory, or (\d+ KiB) with TLS", PAGE)[0]
    options = server_tls() if tls else None
    script = tmp_path / "server.py"
    script.write_text(SERVER.format(tls=options))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            taken = asyncio.run(memory_of_a_connection(process.pid, port, client_side() if tls else None))
        finally:
            process.kill()
    assert taken == pytest.approx(size_in(encrypted if tls else plain), rel=0.3)


async def memory_of_a_connection(pid: int, port: int, tls: ssl.SSLContext | None, count: int = 500) -> float:
    """The bytes that a server takes for each open connection on which a call was answered."""

    async def connect() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=tls)
        writer.write(b'{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}\n')
        assert b"result" in await reader.readline()
        return writer

    kept = [await connect() for _ in range(50)]  # what the server needs once is there before it is measured
    before = resident(pid)
    for _ in range(count // 50):
        kept += await asyncio.gather(*(connect() for _ in range(50)))
    taken = resident(pid) - before
    for writer in kept:
        writer.transport.abort()
    return taken / count


def resident(pid: int) -> int:
    (kib,) = re.findall(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(kib) * KIB
