"""Which package may import which, and no cycle among the modules inside a package.

Read from the source: an import inside a function counts, and so does one under `if TYPE_CHECKING:`, which is for types
only.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import rpcstream

PACKAGE = Path(rpcstream.__file__).parent

#: Room -> the rooms it may import. A room is a folder or a module at the top.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "backoff": set(),
    "text": set(),
    "limits": set(),
    "nearest": set(),
    "keyword_options": {"nearest"},
    "observe": {"text"},
    "shared_memory": {"local_peer", "text"},
    "process": set(),
    "systemd": {"text"},
    "wire": {"text", "errors", "limits"},
    "codec": {"errors", "limits", "wire"},
    "peer": {"text", "errors", "limits", "wire", "codec", "observe", "shared_memory"},
    "auth": {"text", "errors", "limits", "wire", "observe", "peer"},
    "events": {"text", "errors", "limits", "wire", "codec", "observe", "peer"},
    "methods": {
        "text",
        "nearest",
        "keyword_options",
        "errors",
        "limits",
        "wire",
        "codec",
        "observe",
        "auth",
        "peer",
        "events",
    },
    "tls": set(),
    "local_peer": set(),
    "user_files": set(),
    "transports": {"local_peer", "shared_memory", "errors", "limits", "wire", "auth", "peer", "observe", "tls"},
    "nats": {
        "backoff",
        "text",
        "errors",
        "limits",
        "wire",
        "codec",
        "observe",
        "auth",
        "peer",
        "events",
        "transports",
        "tls",
    },
    "web": {"text", "errors", "wire", "codec", "observe", "methods"},
    "mcp": {"text", "errors", "limits", "wire", "codec", "observe", "methods", "peer", "transports", "web"},
    "server": {
        "mcp",
        "nats",
        "text",
        "keyword_options",
        "errors",
        "limits",
        "wire",
        "codec",
        "observe",
        "auth",
        "methods",
        "peer",
        "events",
        "transports",
        "process",
        "systemd",
        "tls",
        "web",
    },
    "config": {"text", "nearest", "limits", "tls", "auth", "user_files", "nats"},
    "hub": {
        "backoff",
        "nearest",
        "text",
        "keyword_options",
        "errors",
        "limits",
        "wire",
        "codec",
        "observe",
        "auth",
        "peer",
        "events",
        "methods",
        "server",
        "config",
        "process",
        "nats",
        "tls",
    },
    "client": {
        "backoff",
        "nats",
        "text",
        "keyword_options",
        "errors",
        "limits",
        "wire",
        "codec",
        "peer",
        "events",
        "methods",
        "observe",
        "transports",
        "tls",
        "config",
        "process",
        "local_peer",
        "shared_memory",
    },
    "supervisor": {"text", "errors", "events", "limits", "observe", "process", "systemd", "transports", "server"},
    "testing": {"limits", "server", "client", "auth", "peer", "transports", "process"},
    "pytest_plugin": {"testing", "server", "client"},
    "stubs": {"text", "codec", "peer", "client"},
    "typed": {"client", "events"},
    "cli": {
        "stubs",
        "mcp",
        "text",
        "nearest",
        "errors",
        "limits",
        "wire",
        "observe",
        "codec",
        "client",
        "server",
        "methods",
        "hub",
        "config",
        "process",
        "systemd",
        "tls",
        "user_files",
        "supervisor",
    },
    "__init__": {
        "backoff",
        "errors",
        "limits",
        "codec",
        "auth",
        "peer",
        "methods",
        "nats",
        "client",
        "server",
        "tls",
        "web",
        "wire",
        "hub",
        "supervisor",
    },
    "__main__": {"cli"},
}

#: What the pure rooms must not import either.
PURE = {"wire", "codec", "errors", "limits"}
IMPURE_MODULES = {"asyncio", "socket", "time", "threading", "selectors", "ssl", "random", "uvloop"}


#: Packages whose modules still import each other in a cycle; to be emptied.
STILL_HAS_CYCLES: set[str] = set()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imports_in(path: Path) -> list[tuple[int, str]]:
    """Line and absolute dotted name of everything that a module imports."""
    package = ["rpcstream", *path.relative_to(PACKAGE).parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("room", sorted({room_of(path) for path in MODULES}))
def test_imports_point_one_way(room: str) -> None:
    assert room in MAY_IMPORT, f"the room {room} has no place in the plan yet"
    wrong: list[str] = []
    for path in MODULES:
        for line, name in imports_in(path) if room_of(path) == room else ():
            parts = name.split(".")
            known = parts[1] if parts[0] == "rpcstream" and len(parts) > 1 and parts[1] in MAY_IMPORT else room
            if known != room and known not in MAY_IMPORT[room]:
                wrong.append(f"{path.name}:{line}: {room} must not know {known}")
            if room in PURE and parts[0] in IMPURE_MODULES:
                wrong.append(f"{path.name}:{line}: {room} is pure, but imports {parts[0]}")
    assert not wrong


def test_the_plan_has_no_circle() -> None:
    seen: set[str] = set()
    while len(seen) < len(MAY_IMPORT):
        ready = {room for room, others in MAY_IMPORT.items() if room not in seen and others <= seen}
        assert ready, f"a circle among {set(MAY_IMPORT) - seen}"
        seen |= ready


def name_of(path: Path) -> str:
    """The dotted name of a module; of the `__init__` of a package the package's."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(["rpcstream", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def cycle_in(package: str) -> dict[str, set[str]]:
    """The modules of a package that import each other in a cycle, each with those of them that it imports."""
    paths = {name_of(path): path for path in MODULES if room_of(path) == package and path.name != "__init__.py"}
    imported = {}
    for name, path in paths.items():
        # `from .module import name` and `from . import module`.
        targets = {target for _, found in imports_in(path) for target in (found, found.rpartition(".")[0])}
        imported[name] = targets & paths.keys() - {name}
    while True:
        inner = {name for name in imported if any(name in others for others in imported.values())}
        left = {name: others & imported.keys() for name, others in imported.items() if others and name in inner}
        left = {name: others & left.keys() for name, others in left.items()}
        if left == imported:
            return left
        imported = left


PACKAGES = sorted({room_of(path) for path in MODULES if path.parent != PACKAGE})


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_of_a_package_have_no_cycle(package: str) -> None:
    cycle = cycle_in(package)
    if package in STILL_HAS_CYCLES:
        assert cycle, f"{package} has no cycle any more: take it out of STILL_HAS_CYCLES"
    else:
        assert not cycle, f"modules of {package} import each other: {cycle}"
