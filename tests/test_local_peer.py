import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcstream.local_peer import BUFFER_SIZE, PACED, UNPACED, is_local, is_same_user, widen_buffers

OPTION = getattr(socket, "TCP_CONGESTION", None)
needs_option = pytest.mark.skipif(OPTION is None, reason="this system has no TCP_CONGESTION")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            yield one, other


@pytest.fixture
def unix_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    if not hasattr(socket, "AF_UNIX"):
        pytest.skip("this system has no Unix sockets")
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        yield one, other


def congestion(sock: socket.socket) -> bytes:
    assert OPTION is not None
    return sock.getsockopt(socket.IPPROTO_TCP, OPTION, 16).rstrip(b"\0")


def available() -> set[str]:
    path = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    return set(path.read_text().split()) if path.exists() else set()


@pytest.mark.parametrize("kind", ["pair", "unix_pair"])
def test_a_connection_on_this_machine_is_local_and_gets_wide_buffers(kind: str, request: pytest.FixtureRequest) -> None:
    one, _ = request.getfixturevalue(kind)
    before = [one.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
    assert is_local(one)
    widen_buffers(one)
    after = [one.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
    assert all(new >= old for new, old in zip(after, before, strict=True))
    granted = int(Path("/proc/sys/net/core/rmem_max").read_text()) if Path("/proc/sys").exists() else 0
    assert after[1] >= min(BUFFER_SIZE, granted)


@needs_option
def test_a_local_connection_is_not_paced(pair: tuple[socket.socket, socket.socket]) -> None:
    if PACED.decode() not in available():
        pytest.skip("no program of this user may choose BBR here")
    one, _ = pair
    one.setsockopt(socket.IPPROTO_TCP, OPTION, PACED)
    widen_buffers(one)
    assert congestion(one) == UNPACED


@needs_option
def test_another_way_of_avoiding_congestion_stays(pair: tuple[socket.socket, socket.socket]) -> None:
    one, _ = pair
    others = available() - {PACED.decode()}
    for name in sorted(others):
        one.setsockopt(socket.IPPROTO_TCP, OPTION, name.encode())
        widen_buffers(one)
        assert congestion(one) == name.encode()


@needs_option
def test_a_connection_in_a_network_is_left_as_it_is(pair: tuple[socket.socket, socket.socket]) -> None:
    class Remote:
        """A socket that says that its peer is on another machine."""

        family = socket.AF_INET

        def getpeername(self) -> tuple[str, int]:
            return "192.0.2.1", 9

        def setsockopt(self, *arguments: object) -> None:
            raise AssertionError(arguments)

    widen_buffers(Remote())


def test_a_socket_that_is_closed_does_no_harm(pair: tuple[socket.socket, socket.socket]) -> None:
    one, _ = pair
    one.close()
    assert not is_local(one)
    widen_buffers(one)


def test_the_user_at_the_other_end_of_a_unix_socket_is_known(
    unix_pair: tuple[socket.socket, socket.socket], pair: tuple[socket.socket, socket.socket]
) -> None:
    one, _ = unix_pair
    assert is_same_user(one) is hasattr(socket, "SO_PEERCRED")
    assert not is_same_user(pair[0])
