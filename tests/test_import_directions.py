"""Which package may import which, and no cycle among the modules inside a package.

Read from the source: an import inside a function counts, and so does one under `if TYPE_CHECKING:`, which is for types
only.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

import rpcstream

PACKAGE = Path(rpcstream.__file__).parent

#: Room -> the rooms it may import. A room is a folder or a module at the top.
PLAN = """
errors:
backoff:
text:
limits:
nearest:
option:
observe: errors text
process:
systemd: text
wire: errors limits text
codec: errors limits wire
peer: codec errors limits local_peer observe text wire
auth: errors limits observe peer text wire
events: codec errors limits observe peer text wire
methods: auth codec errors events limits nearest observe openrpc option peer text wire
tls:
local_peer:
transports: auth errors limits local_peer observe peer tls wire
nats: auth backoff codec errors events limits observe peer text tls transports wire
web: codec errors methods observe openrpc text wire
supervisor: errors events limits observe option process systemd text transports wire
mcp: codec errors limits methods observe openrpc peer text transports web wire
config: codec limits nearest option text tls
server: auth codec errors events limits mcp methods nats nearest observe option peer process supervisor systemd
    text tls transports web wire
hub: auth codec config errors events limits methods nearest observe openrpc option peer server text wire
client: backoff codec config errors events limits local_peer methods nats nearest observe openrpc
    option peer process text tls transports wire
testing: auth client limits peer process server transports
pytest_plugin: client server testing
openrpc: codec text
stubs: codec openrpc peer text
typed: client events
cli: client codec config errors hub limits mcp methods nats nearest observe openrpc option process server stubs
    supervisor systemd text tls wire
__init__: auth backoff client codec errors hub limits methods nats peer server tls web wire
__main__: cli
"""

MAY_IMPORT: dict[str, set[str]] = {
    room: set(others.split()) for room, others in re.findall(r"^(\w+):((?:.|\n )*)", PLAN, re.MULTILINE)
}

#: What the pure rooms must not import either.
PURE = {"wire", "codec", "errors", "limits"}
IMPURE_MODULES = {"asyncio", "socket", "time", "threading", "selectors", "ssl", "random", "uvloop"}


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
    assert not cycle, f"modules of {package} import each other: {cycle}"
