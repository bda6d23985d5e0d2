"""What tests may touch: what users see, and the parts of the package without I/O, so that the rest can change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: Modules with public names: all of them may be imported.
PUBLIC = {
    "rpcstream",
    *(f"rpcstream.{name}" for name in ("config", "errors", "hub", "pytest_plugin", "systemd", "testing", "tls", "web")),
}

#: Packages and modules inside without I/O, which take and give values: tests call what other packages call.
PURE = tuple(
    f"rpcstream.{name}"
    for name in (
        *("codec", "peer", "wire", "events.patterns", "nats.messages"),
        *("client.address", "client.config", "hub.config", "transports.access"),
    )
)

#: The commands, as pyproject.toml names them: only `main` of them.
COMMANDS = ("rpcstream.cli.call", "rpcstream.cli.serve")

#: Files that look deeper, for as long as the reason holds.
EXCEPTIONS = {
    "abuse/attacks_transports.py": "the server under attack runs in a process of its own, where a limit is set",
    "docs/test_worst_case.py": "the sum of all limits is compared with the page that gives it",
    "docs/test_documentation.py": "the tables of options are compared with the declarations that they describe",
    "interop/autobahn/run.py": "a program run by hand, which has our frames without the calls above them",
}

FILES = sorted(path for path in HERE.rglob("*.py") if not {"node_modules", "golden", "__pycache__"} & set(path.parts))


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
        if node.module in COMMANDS and [each.name for each in node.names] == ["main"]:
            return
        # `from rpcstream import module` is an import of a module too, where there is one of that name.
        yield node.module
        if node.module == "rpcstream":
            yield from (f"rpcstream.{each.name}" for each in node.names if _is_module(f"rpcstream/{each.name}"))


def _is_module(path: str) -> bool:
    root = HERE.parent / path
    return root.with_suffix(".py").exists() or (root / "__init__.py").exists()


def _is_allowed(module: str) -> bool:
    if module.partition(".")[0] != "rpcstream" or module in PUBLIC:
        return True
    return any(module == each or module.startswith(f"{each}.") for each in PURE)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def faults_of(source: str, file: Path) -> list[str]:
    """What a test file touches and may not, with the line."""
    faults = []
    tree = ast.parse(source)
    own = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute) and _is_own(each.value)}
    for node in ast.walk(tree):
        where = f"line {getattr(node, 'lineno', 0)}"
        faults += [f"{where}: imports {each}" for each in _imported(node) if not _is_allowed(each)]
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rpcstream":
            faults += [f"{where}: imports {each.name}" for each in node.names if _is_private(each.name)]
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own:
            faults.append(f"{where}: touches .{node.attr}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            faults += [f"{where}: patches {name}" for name in _patched(node)]
    return faults


def _is_own(value: ast.expr) -> bool:
    """The private names of classes that a test file has made; and `sys._getframe`, `os._exit`."""
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "os", "sys")


def _patched(call: ast.Call) -> Iterator[str]:
    """The part of the package that `monkeypatch.setattr(...)` replaces."""
    assert isinstance(call.func, ast.Attribute)
    owner = call.func.value
    if call.func.attr not in ("setattr", "delattr") or not (isinstance(owner, ast.Name) and owner.id == "monkeypatch"):
        return
    what = call.args[0]
    name = str(what.value) if isinstance(what, ast.Constant) else ast.unparse(what)
    is_limit = re.fullmatch(r"rpcstream(\.[a-z_]+)+\.[A-Z][A-Z_]*", name) is not None
    if name.partition(".")[0] not in PATCHABLE and not is_limit:
        yield name


#: What tests may replace: the operating system and the standard library, as a program's surroundings; and limits, which
#: are constants of the package (`rpcstream.module.MAX_SIZE`) or follow from options (`Limits`).
PATCHABLE = {
    "Limits",
    "asyncio",
    "logging",
    "os",
    "signal",
    "socket",
    "sys",
    "time",
    "tracemalloc",
    "builtins",
    "importlib",
}

#: And modules of benchmarks/ and examples/, by the names that their tests have for them.
PATCHABLE |= {"memory", "run", "suite", "worker"}


@pytest.mark.parametrize("file", FILES, ids=[str(each.relative_to(HERE)) for each in FILES])
def test_only_what_others_see(file: Path) -> None:
    name = file.relative_to(HERE).as_posix()
    faults = faults_of(file.read_text(encoding="utf-8"), file)
    if name in EXCEPTIONS:
        assert faults, "this file keeps to the rules now: take it off the list"
    else:
        assert not faults


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("from rpcstream.server import Server", "imports rpcstream.server"),
        ("import rpcstream.transports.listen", "imports rpcstream.transports.listen"),
        ("from rpcstream import client", "imports rpcstream.client"),
        ("from rpcstream.codec import _tables", "imports _tables"),
        ("server._running", "touches ._running"),
        ("monkeypatch.setattr(session, 'LIMIT', 1)", "patches session"),
        ("monkeypatch.setattr('rpcstream.hub.serve', 1)", "patches rpcstream.hub.serve"),
    ],
)
def test_the_rules_see_it(source: str, fault: str) -> None:
    assert [each.partition(": ")[2] for each in faults_of(source, HERE / "x.py")] == [fault]


def test_the_rules_leave_the_rest_alone() -> None:
    source = "from rpcstream import Server, errors\nfrom rpcstream.wire.framing import LineFramer\nself._x\n"
    assert not faults_of(source + "monkeypatch.setattr(os, 'cpu_count', lambda: 4)\n", HERE / "x.py")
