"""The code that runs inside a worker process: takes pickled calls from a pipe, and sends pickled results back.

Knows neither the pool nor the other workers. A module of its own, since each worker imports it when it starts: the pool
(`workers`), with all that it imports, stays in the server.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

from ..errors import RpcError
from ..wire import envelope
from .threads import HandlerFailed

#: The first message of a worker.
READY = b"ready"


def serve_calls(connection: Connection, max_result: int) -> None:
    """Run the calls that come through a pipe, one after the other, until the other end is closed.

    The main function of a worker process.

    Args:
        connection: the worker's end of the pipe.
        max_result: bytes of one pickled result.
    """
    # Ctrl-C goes to all processes of the group, but the server decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):  # so does the end of a terminal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(READY)
        while True:
            kind, result = run_packed(connection.recv_bytes(), max_result)
            connection.send_bytes(kind)
            connection.send_bytes(result)
            del result  # an idle worker keeps no memory


def run_packed(packed: bytes, max_result: int) -> tuple[bytes, bytes]:
    """Run a pickled call; gives a kind ("result", "error" or "failed") and the pickled outcome.

    Pickled here, so that a result that cannot be pickled fails its own call only.
    """
    try:
        function, args, kwargs = pickle.loads(packed)
        del packed
        result = pickle.dumps(function(*args, **kwargs))
        if len(result) > max_result:
            raise envelope.oversize(len(result), max_result, side="server")
        return b"result", result
    except RpcError as error:
        try:
            return b"error", pickle.dumps((error.code, error.message, error.data))
        except Exception as unfit:
            return b"failed", pickle.dumps(f"the data of an error cannot be sent between processes: {unfit}")
    except BaseException as error:
        return b"failed", pickle.dumps("".join(traceback.format_exception(error)))


def unpacked(kind: bytes, packed: bytes) -> Any:
    """The result of `run_packed`; raises RpcError or HandlerFailed if the call failed."""
    outcome = pickle.loads(packed)
    if kind == b"error":
        raise RpcError(*outcome)
    if kind == b"failed":
        raise HandlerFailed(outcome)
    return outcome
