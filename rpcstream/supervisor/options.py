"""The options of a server in several processes: documented, typed and with their defaults in one place."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from ..option import FLAG, SECONDS_OR_NONE, Kind, Option, defaults_of, whole

#: Processes at most: a thousand interpreters take 40 GB without any program in them.
MAX_WORKERS = 1000


def _workers(count: int | str, folder: str) -> int | Literal["auto"]:
    text = str(count)
    if text == "auto":
        return "auto"
    if re.fullmatch("[0-9]{1,9}", text) is None or not 1 <= int(text) <= MAX_WORKERS:
        raise ValueError(f"{text!r} is not a number from 1 to {MAX_WORKERS:,}")
    return int(text)


def _size(size: int | str, folder: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)B?", str(size), re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise ValueError("expected a number of bytes, or one with K, M, G or T behind it, such as 2G")
    power = " KMGT".index(found[2].upper() or " ")
    return int(int(found[1]) * 1024**power)


class WorkerOptions(TypedDict, total=False):
    """How a server runs in several processes.

    Attributes:
        workers: the number of processes that share the connections; "auto": one for each processor. None or 1: this
            process alone.
        max_requests: a worker that has answered this many requests (and up to a tenth more) is replaced. None: never.
        affinity: each worker runs on one processor only.
        memory_limit: bytes of main memory; a worker that takes more is replaced (Linux). None: no limit.
        start_timeout: seconds in which a worker must be ready; then it is killed, and another one is started. None: no
            limit.
    """

    workers: Annotated[int | Literal["auto"] | None, Option(None, Kind(int | str, finish=_workers))]
    max_requests: Annotated[int | None, Option(None, whole(1))]
    affinity: Annotated[bool, Option(False, FLAG)]
    memory_limit: Annotated[int | None, Option(None, Kind(int | str, finish=_size))]
    start_timeout: Annotated[float | None, Option(60.0, SECONDS_OR_NONE)]


#: The default of every option.
WORKER_DEFAULTS: Mapping[str, Any] = defaults_of(WorkerOptions)


def wants_supervisor(options: WorkerOptions) -> bool:
    """Whether these options need several processes, or one that is replaced.

    Raises:
        ValueError: one of them makes no sense.
    """
    workers = options.get("workers")
    if workers not in (None, "auto") and (type(workers) is not int or not 1 <= workers <= MAX_WORKERS):
        raise ValueError(f'workers: {workers!r} is not a number from 1 to {MAX_WORKERS:,}, or "auto"')
    limit = options.get("start_timeout")
    if limit is not None and not limit > 0:
        raise ValueError(f"start_timeout must be a positive number of seconds, or None, got {limit!r}")
    others = (value for name, value in options.items() if name != "workers")
    return workers not in (None, 1) or any(value not in (None, False) for value in others)
