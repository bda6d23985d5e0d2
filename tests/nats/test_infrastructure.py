"""What the kit starts, where no other test would say that it is wrong: ends of processes, and refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("nats")

from ..kit import until_in_thread
from ..kit.nats_server import NatsServer
from ..kit.plain_nats import plain_client
from .service import user

pytestmark = pytest.mark.nats


async def test_a_user_may_do_what_is_permitted_and_no_more(start_nats: Callable[..., NatsServer]) -> None:
    """Tests of what is refused would say nothing otherwise."""
    nats = start_nats(users=[user("caller", {"publish": ["may.>"]})])
    async with plain_client(nats.url_with("caller", "p")) as plain:
        seen = await plain.subscribe("*.*")
        await plain.publish("not.this", b"1")
        await plain.publish("may.do", b"2")
        assert (await seen.next_msg(20)).data == b"2"
    assert "Publish Violation" in nats.log()


def test_a_configuration_that_nats_refuses_is_shown(start_nats: Callable[..., NatsServer]) -> None:
    with pytest.raises(RuntimeError, match='unknown field "max_pailoud"'):
        start_nats(config={"max_pailoud": 1})


@pytest.mark.slow
def test_no_server_outlives_a_test_run_that_is_killed() -> None:
    program = """
import time
from tests.kit.nats_server import NatsServer
server = NatsServer()
print(server.process.pid, server.folder, flush=True)
time.sleep(60)
"""
    root = Path(__file__).parent.parent.parent
    run = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pid, folder = run.stdout.readline().split()
    assert is_alive(int(pid))
    run.kill()
    run.communicate()
    until_in_thread(lambda: not is_alive(int(pid)) and not Path(folder).exists())


def is_alive(pid: int) -> bool:
    """Whether a process runs; not where it has ended and its parent has not asked for its status."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")
