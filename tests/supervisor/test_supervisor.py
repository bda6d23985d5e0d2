"""A server in several processes: how connections are shared, and what becomes of them when processes come and go."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import urllib.request
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import trustme

from rpcstream import Client, ConnectionLost, ServerBusy

from ..cli.conftest import environment
from ..kit import until_in_thread
from ..kit.example_count import IS_THOROUGH
from ..observe.reading import check_with_promtool, value
from .conftest import APP, StartWorkers, WorkersProcess, has_ended, run, running, serve_command

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")]


#: Four connections may be open.
FOUR = APP.replace("Server(", "Server(limits=Limits(max_connections=4), ").replace("Server\n", "Limits, Server\n")

#: A worker that can be made to take all of its file descriptors.
TAKES_DESCRIPTORS = f"""
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
files = []
{APP}

@server
def fill() -> None:
    try:
        while True:
            files.append(os.dup(2))
    except OSError:
        pass

@server
def free() -> None:
    while files:
        os.close(files.pop())
"""


def clients(stack: ExitStack, address: str, number: int) -> list[Client]:
    return [stack.enter_context(Client(address)) for _ in range(number)]


def begun(client: Client, seconds: float) -> Future[int]:
    """A call that has begun, and takes so long."""
    event = threading.Event()
    call: Future[int] = client.submit.wait(seconds, on_progress=lambda value: event.set())
    assert event.wait(20)
    return call


class Load:
    """Calls without a pause from several threads; half of them keep their connection, and half make one for each call.

    Attributes:
        calls: how often each worker answered; and `failures` of the others.
        killed: workers that were killed, whose calls are no failures.
    """

    def __init__(self, address: str) -> None:
        self.calls: Counter[int] = Counter()
        self.failures: list[Exception] = []
        self.killed: set[int] = set()
        self._address = address
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(number % 2 == 0,)) for number in range(4)]

    def _call(self, keeps: bool) -> None:
        with ExitStack() as stack:
            client = stack.enter_context(Client(self._address)) if keeps else None
            pid = None  # of a new connection it is not known yet who serves it
            while not self._is_over.is_set():
                try:
                    with ExitStack() as own:
                        pid = (client or own.enter_context(Client(f"http://{self._address}"))).pid()
                    self.calls[pid] += 1
                except Exception as error:
                    is_excused = self.killed and isinstance(error, ConnectionLost) and pid in {None, *self.killed}
                    if not is_excused:
                        self.failures.append(error)
                    pid = None
                pid = pid if keeps else None

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


class TestConnections:
    def test_are_spread_exactly_and_a_worker_that_has_lost_some_gets_the_next_ones(self, three: WorkersProcess) -> None:
        three.wait_until_free()
        with ExitStack() as stack:
            opened = clients(stack, three.address, 60)
            pids = [client.pid() for client in opened]
            assert sorted(Counter(pids).values()) == [20, 20, 20]
            assert sorted(worker["connections"] for worker in three.workers()) == [20, 20, 21]
            for client, pid in zip(opened[:9], pids, strict=False):
                if pid == pids[0]:
                    client.close()
            until_in_thread(lambda: sum(worker["connections"] for worker in three.workers()) == 58)
            assert [client.pid() for client in clients(stack, three.address, 3)] == [pids[0]] * 3

    def test_one_that_a_worker_has_no_descriptor_for_is_closed(self, start: StartWorkers) -> None:
        program = start("--workers", "1", "--set", "max_requests=1000000", app=TAKES_DESCRIPTORS)
        with Client(program.address) as client:
            pid = client.pid()
            client.fill()
            with socket.create_connection(program.place, timeout=20) as refused:
                assert refused.recv(1) == b""
            until_in_thread(lambda: "a connection was closed: Too many open files" in program.log)
            client.free()
            with Client(program.address) as other:
                assert other.pid() == pid
            assert client.call("rpc.stats")["connections"] == 1
        assert program.end() == 0

    def test_those_that_say_nothing_count_until_they_are_closed(self, three: WorkersProcess) -> None:
        three.wait_until_free()
        silent = [socket.create_connection(three.place) for _ in range(6)]
        with Client(three.address) as client:
            until_in_thread(lambda: client.call("rpc.stats")["connections"] == 7)
            for each in silent:
                each.close()
            until_in_thread(lambda: client.call("rpc.stats")["connections"] == 1)

    def test_max_connections_is_held_for_all_together(self, start: StartWorkers) -> None:
        program = start("--workers", "2", app=FOUR)
        with ExitStack() as stack:
            opened = clients(stack, program.address, 4)
            assert sorted(Counter(client.pid() for client in opened).values()) == [2, 2]
            with Client(program.address) as fifth, pytest.raises(ServerBusy, match="4 connections are open"):
                fifth.pid()
            opened[0].close()
            until_in_thread(lambda: opened[1].call("rpc.stats")["connections"] == 3)
            assert clients(stack, program.address, 1)[0].pid()

    def test_a_stranger_gives_way_to_a_newcomer(self, start: StartWorkers, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("correct-horse-battery-staple")
        program = start("--workers", "2", "--token-file", "token", app=FOUR)
        strangers = [socket.create_connection(program.place) for _ in range(4)]
        with Client(program.address, token="correct-horse-battery-staple") as client:
            assert client.pid()
            assert client.call("rpc.stats")["connections"] <= 4
        for each in strangers:
            each.close()

    def test_at_a_unix_socket(self, start: StartWorkers, tmp_path: Path) -> None:
        path = tmp_path / "s"
        echo = f"{APP}\n@server\ndef echo(array):\n    return array\n"
        program = start("--workers", "2", "--unix", "s", "--set", "unix_mode=600", app=echo)
        assert program.address == f"unix://{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        with ExitStack() as stack:
            opened = clients(stack, program.address, 4)
            assert sorted(Counter(client.pid() for client in opened).values()) == [2, 2]
            for client in opened:  # each worker shares memory with its clients
                client.echo(np.zeros(100_000))
                assert client.echo(np.ones(100_000)).flags.writeable is (sys.platform != "linux")
        assert program.end() == 0
        assert not path.exists()

    def test_with_tls(self, start: StartWorkers, tmp_path: Path) -> None:
        issuer = trustme.CA()
        issuer.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        issuer.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "tls.pem"))
        program = start("--workers", "2", "--cert", "tls.pem")
        with ExitStack() as stack:
            address, ca = f"tls://{program.address}", str(tmp_path / "ca.pem")
            opened = [stack.enter_context(Client(address, tls=ca)) for _ in range(6)]
            assert sorted(Counter(client.pid() for client in opened).values()) == [3, 3]
            with socket.create_connection(program.place) as plain:  # its handshake fails
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            until_in_thread(lambda: sum(each["connections"] for each in opened[0].call("rpc.stats")["workers"]) == 6)


def test_the_counters_are_those_of_all_workers_and_many_may_ask_for_them_at_once(three: WorkersProcess) -> None:
    three.wait_until_free()
    with ExitStack() as stack:
        opened = clients(stack, three.address, 6)
        before = opened[0].call("rpc.stats")["requests"]
        for client in opened:
            client.pid()
        after = opened[5].call("rpc.stats")
        assert (after["requests"], after["connections"], len(after["workers"])) == (before + 7, 6, 3)
        asked = [client.submit.rpc.stats() for client in opened for _ in range(25)]
        assert {len(each.result()["workers"]) for each in asked} == {3}


class TestDeaths:
    def test_a_killed_worker_is_replaced_and_only_its_calls_fail(self, three: WorkersProcess) -> None:
        program = three
        program.wait_until_free()
        with ExitStack() as stack:
            opened = clients(stack, program.address, 3)
            pids = [client.pid() for client in opened]
            calls = [begun(client, 1.0) for client in opened]
            os.kill(pids[0], signal.SIGKILL)
            outcomes = [call.exception() for call in calls]
            assert sum(isinstance(each, ConnectionLost) for each in outcomes) == 1
            assert sum(each is None for each in outcomes) == 2
            until_in_thread(lambda: len(program.pids() - set(pids)) == 1)
            assert sorted(worker["restarts"] for worker in program.workers()) == [0, 0, 1]
            assert program.supervisor()["replaced"]["died"] == 1
            assert "killed by SIGKILL: another one starts in 0.1 s" in program.log
            assert program.pids() >= set(pids) - {pids[0]}

    @pytest.mark.thorough
    def test_killed_workers_fail_no_calls_of_others_under_load(self, start: StartWorkers) -> None:
        program = start("--workers", "3")
        with Load(program.address) as calls:
            for _ in range(5 if IS_THOROUGH else 2):
                victim = min(program.wait_until_whole())
                calls.killed.add(victim)
                os.kill(victim, signal.SIGKILL)
                until_in_thread(lambda victim=victim: victim not in program.pids())
        assert not calls.failures
        assert sum(worker["restarts"] for worker in program.workers()) == len(calls.killed)

    def test_when_the_supervisor_is_dead_the_workers_finish(self, start: StartWorkers) -> None:
        program = start("--workers", "2")
        pids = program.pids()
        with Client(program.address) as client:
            call = begun(client, 0.3)
            program.process.kill()
            assert call.result() in pids
        until_in_thread(lambda: all(has_ended(pid) for pid in pids))
        assert "the supervisor has gone" in program.log

    def test_a_worker_that_has_answered_enough_is_replaced(self, start: StartWorkers) -> None:
        program = start("--workers", "2", "--set", "max_requests=20")
        before = program.pids()
        with Load(program.address) as calls:
            until_in_thread(lambda: len(calls.calls) >= 4)
        assert not calls.failures
        until_in_thread(lambda: not program.pids() & before)
        assert all(worker["restarts"] == 0 for worker in program.workers())
        assert program.supervisor()["replaced"]["max_requests"] >= 2
        text = (
            r" WARNING \[\d+\] rpcstream.supervisor: worker [12] \(pid \d+\) is replaced: it has answered \d+ requests"
        )
        assert re.search(text, program.log)

    def test_a_worker_that_takes_too_much_memory_is_replaced(self, start: StartWorkers) -> None:
        app = (
            APP + "\n@server\ndef grow() -> int:\n    server.state.kept = b'x' * 150_000_000\n    return os.getpid()\n"
        )
        program = start("--workers", "2", "--set", "memory_limit=150M", app=app)
        with Client(program.address) as client:
            pid = client.grow()
            until_in_thread(lambda: pid not in program.pids())
        assert program.supervisor()["replaced"] == {"memory_limit": 1}
        assert re.search(r"(?m) WARNING .* is replaced: it takes \d+ bytes of memory", program.log)

    def test_a_worker_whose_event_loop_is_blocked_is_replaced_for_its_memory(self, start: StartWorkers) -> None:
        app = (
            APP.replace("drain_timeout=5", "drain_timeout=0.1")
            + "\n@server\nasync def grow() -> None:\n    server.state.kept = b'x' * 150_000_000\n    time.sleep(60)\n"
        )
        program = start("--workers", "2", "--set", "memory_limit=150M", app=app)
        with Client(program.address) as client, pytest.raises(ConnectionLost):
            client.grow()
        until_in_thread(lambda: program.supervisor()["replaced"] == {"memory_limit": 1})
        assert "is replaced: it takes" in program.log


class TestReload:
    @pytest.mark.thorough
    @pytest.mark.timeout(150)
    def test_no_call_is_lost(self, three: WorkersProcess) -> None:
        program = three
        before = program.wait_until_whole()
        with Load(program.address) as calls:
            for _ in range(10 if IS_THOROUGH else 2):
                program.send(signal.SIGHUP)
                until_in_thread(lambda before=before: not program.pids() & before)
                before = program.pids()
            until_in_thread(lambda: all(calls.calls[pid] > 10 for pid in before))
        assert not calls.failures

    def test_one_that_fails_keeps_the_old_workers(self, three: WorkersProcess) -> None:
        program = three
        before = program.wait_until_whole()
        (program.folder / "app.py").write_text("def\n")
        program.send(signal.SIGHUP)
        until_in_thread(lambda: "reload failed" in program.log)
        assert program.log.count("SyntaxError: invalid syntax\n") == 1
        assert program.pids() == before
        assert program.supervisor()["failed_reloads"] == 1
        (program.folder / "app.py").write_text(APP)
        program.send(signal.SIGHUP)
        until_in_thread(lambda: not program.pids() & before)


class TestStart:
    @pytest.mark.parametrize(
        ("source", "status", "text"),
        [
            ("raise ValueError('at import')", 2, "ValueError: at import"),
            ("from rpcstream import Hub\nserver = Hub()", 2, "a hub must be one process"),
            (APP.replace("Server(", "Server(lifespan=lambda server: 5, "), 1, "TypeError: "),
            (APP, 1, "cannot listen at 127.0.0.1:"),
        ],
    )
    def test_a_program_that_cannot_start_ends_with_its_text_and_status(
        self, source: str, status: int, text: str, tmp_path: Path
    ) -> None:
        (tmp_path / "app.py").write_text(source)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1] if source == APP else 0)
            ended = run(tmp_path, *serve_command("app.py", "-p", port, "--workers", "2"))
        assert ended.returncode == status, ended.stderr
        assert text in ended.stderr
        assert ended.stdout == ""


class TestStop:
    def test_connections_are_taken_until_the_delay_is_over(self, start: StartWorkers) -> None:
        program = start("--workers", "2", "--log-level", "info", app=APP.replace("Server(", "Server(drain_delay=0.5, "))
        program.send(signal.SIGTERM)
        until_in_thread(lambda: program.log.count("SIGTERM: stopping") == 3)
        with Client(program.address) as client:
            assert client.pid()
        assert program.process.wait(20) == 0

    def test_calls_that_run_are_answered(self, start: StartWorkers) -> None:
        program = start("--workers", "2")
        with ExitStack() as stack:
            calls = [begun(client, 0.5) for client in clients(stack, program.address, 4)]
            assert program.end() == 0
            assert len({call.result() for call in calls}) == 2

    def test_a_second_signal_ends_it_at_once(self, start: StartWorkers) -> None:
        program = start("--workers", "2", "--log-level", "info")
        pids = program.pids()
        with Client(program.address) as client:
            call = begun(client, 60.0)
            program.send(signal.SIGINT)
            until_in_thread(lambda: "SIGINT: stopping" in program.log)
            program.send(signal.SIGINT)
            assert call.exception() is not None
        assert program.process.wait(20) == 128 + signal.SIGINT
        assert all(has_ended(pid) for pid in pids)

    def test_a_server_that_stops_itself_stops_all(self, start: StartWorkers) -> None:
        program = start("--workers", "2")
        pids = program.pids()
        with Client(program.address) as client:
            client.stop()
        assert program.process.wait(20) == 0
        assert all(has_ended(pid) for pid in pids)

    def test_a_worker_that_is_told_to_stop_from_outside_is_replaced(self, three: WorkersProcess) -> None:
        program = three
        before = program.wait_until_whole()
        gone = min(before)
        os.kill(gone, signal.SIGTERM)
        until_in_thread(lambda: len(program.pids() - before - {None}) == 1)
        assert gone not in program.pids()


def test_a_worker_has_its_share_of_the_processors(tmp_path: Path) -> None:
    app = APP + (
        "\n@server\ndef share() -> list[str]:\n"
        "    return [os.environ['OMP_NUM_THREADS'], str(sorted(os.sched_getaffinity(0))), os.environ['PYTHONPATH']]\n"
    )
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system does not let processes choose their processors")
    with running(tmp_path, "--workers", "2", "--set", "affinity=true", app=app) as program, ExitStack() as stack:
        shares = [client.share() for client in clients(stack, program.address, 2)]
        mine = sorted(os.sched_getaffinity(0))
        assert [each[1] for each in shares] == [str([mine[index % len(mine)]]) for index in range(2)]
        assert {each[2] for each in shares} == {environment()["PYTHONPATH"]}


def test_metrics_are_those_of_all_workers_and_of_those_that_have_ended(start: StartWorkers) -> None:
    program = start("--workers", "2", "--metrics")

    def shown() -> str:
        with urllib.request.urlopen(f"http://{program.address}/metrics", timeout=20) as response:
            text: str = response.read().decode()
        return text

    with ExitStack() as stack:
        opened = clients(stack, program.address, 4)
        pids = {client.pid() for client in opened}
        assert len(pids) == 2
        text = shown()
        assert value(text, "rpcstream_calls_total", method="pid", code="0") == 4
        assert value(text, "rpcstream_call_duration_seconds_bucket", method="pid", le="+Inf") == 4
        assert value(text, "rpcstream_connections", transport="tcp") == 4
        assert (value(text, "rpcstream_workers"), value(text, "rpcstream_worker_restarts_total")) == (2, 0)
        for pid in pids:
            assert (value(text, "process_resident_memory_bytes", pid=str(pid)) or 0) > 1_000_000
        check_with_promtool(text)
        assert "metrics" not in opened[0].call("rpc.stats")
        os.kill(pids.pop(), signal.SIGKILL)
        until_in_thread(lambda: all(f'pid="{pid}"' in shown() for pid in program.pids() - {None}))
        assert value(shown(), "rpcstream_calls_total", method="pid", code="0") == 4
        until_in_thread(lambda: value(shown(), "rpcstream_workers") == 2)
        assert value(shown(), "rpcstream_worker_restarts_total") == 1
        assert value(shown(), "rpcstream_workers_replaced_total", reason="died") == 1
        assert (value(shown(), "rpcstream_reloads_failed_total"), value(shown(), "rpcstream_accept_pauses_total")) == (
            0,
            0,
        )
