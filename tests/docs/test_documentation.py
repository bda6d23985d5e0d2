"""The documentation against the code: blocks run, options and defaults are the real ones, links exist."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import re
import shutil
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import rpcstream
from rpcstream import (
    AsyncClient,
    Backoff,
    Client,
    Codec,
    Http,
    Hub,
    ImageOptions,
    Info,
    Limits,
    Logs,
    NatsLogin,
    Server,
)
from rpcstream.cli import call_options, reading, serve
from rpcstream.client import options
from rpcstream.methods.options import METHOD_DEFAULTS, MethodOptions
from rpcstream.peer.marshal import NOT_GIVEN
from rpcstream.server.options import DEFAULTS as SERVER_DEFAULTS
from rpcstream.server.options import RUN_DEFAULTS, RunOptions, ServerOptions

from .blocks import DOCS, FRONT, PAGES, PROGRAMS, README, REASONS, ROOT, RUN, blocks_of
from .check_types import all_modules

pytestmark = pytest.mark.slow

LINKED = [README, *FRONT, *PAGES]
WIRE = DOCS / "reference" / "wire.md"

#: The headings of the reference, and what their tables describe.
DESCRIBED: dict[str, Callable[..., Any]] = {
    "Server": Server,
    "Server.add": Server.add,
    "Server.run": Server.run,
    "Server.join_nats": Server.join_nats,
    "Server.asgi": Server.asgi,
    "Hub": Hub,
    "Limits": Limits,
    "Info": Info,
    "Http": Http,
    "Logs": Logs,
    "Client": Client,
    "AsyncClient": AsyncClient,
    "Backoff": Backoff,
    "NatsLogin": NatsLogin,
    "Retry": options.Retry,
    "Trace": options.Trace,
    "Codec": Codec.__init__,
    "ImageOptions": ImageOptions,
}

#: The keyword options of what takes them as a TypedDict, and their defaults.
OPTIONS: dict[str, tuple[Collection[str], Mapping[str, Any]]] = {
    "Server": (ServerOptions.__optional_keys__, SERVER_DEFAULTS),
    "Client": (options.ClientOptions.__optional_keys__, options.DEFAULTS),
    "AsyncClient": (options.ClientOptions.__optional_keys__, options.DEFAULTS),
    "Server.run": (RunOptions.__optional_keys__, RUN_DEFAULTS),
    "Server.add": (MethodOptions.__optional_keys__, METHOD_DEFAULTS),
}


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run_as_they_stand(page: Path, run_page: Callable[[Path], None], tmp_path: Path) -> None:
    if page == README:
        shutil.copy(ROOT / "examples" / "pictures" / "cat.jpg", tmp_path)
    run_page(page)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    marked = [block for block in blocks_of(page.read_text()) if block.skipped is not None]
    assert [block.line for block in marked if block.skipped not in REASONS or block.language not in RUN] == []


@pytest.mark.parametrize("page", FRONT, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_that_no_test_runs_say_so(page: Path) -> None:
    assert [block.line for block in blocks_of(page.read_text()) if block.language in RUN and not block.skipped] == []


def test_the_site_shows_a_block_by_its_language_and_the_name_of_its_file() -> None:
    specification = importlib.util.spec_from_file_location("site_hook", ROOT / ".ci" / "site.py")
    assert specification is not None
    assert specification.loader is not None
    hook = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(hook)
    shown = hook.with_plain_fences("```text talk\n-->\n```\n```python file=a.py\n1\n```\n```sh no-run=ci\nls\n```\n")
    assert shown == '```text\n-->\n```\n```python title="a.py"\n1\n```\n```sh\nls\n```\n'


def test_the_code_of_all_pages_makes_modules_for_the_type_checkers() -> None:
    modules = all_modules()
    assert len(modules) > len(PAGES)
    for name, code in modules.items():
        compile(code, f"{name}.py", "exec")


# -- JavaScript -------------------------------------------------------------------------------------------------------

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="node is not installed: no JavaScript of the pages is run"
)


@pytest.mark.parametrize("program", sorted({"nc", "curl", "node", "java", "nginx", "nats-server"}))
def test_programs_of_the_pages_are_installed(program: str) -> None:
    if shutil.which(program, path=PROGRAMS) is None:
        pytest.skip(f"{program} is not installed: what the pages do with it is not run")


@needs_node
def test_the_wire_page_runs_its_javascript() -> None:
    commands = "".join(block.code for block in blocks_of(WIRE.read_text()) if block.language == "console")
    assert "$ node client.mjs\n" in commands


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heading", DESCRIBED)
def test_reference_has_every_option_with_its_default(heading: str) -> None:
    text = section("reference/options.md", heading)
    for below in DESCRIBED:  # such as Server.add, below Server
        text = text.partition(f"\n### {below}\n")[0]
    rows = dict(options_in(text))
    if heading == "AsyncClient":  # the page has what differs from Client
        rows = dict(options_in(section("reference/options.md", "Client"))) | rows
    parameters = inspect.signature(DESCRIBED[heading]).parameters
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    if heading in OPTIONS:
        names, all_defaults = OPTIONS[heading]
        defaults |= {name: all_defaults[name] for name in names}
    assert rows.keys() == defaults.keys()
    wrong = {name: text for name, text in rows.items() if text not in forms_of(defaults[name])}
    assert not wrong, f"the defaults are { ({name: defaults[name] for name in wrong}) }"


@pytest.mark.parametrize(
    ("heading", "make_parser"),
    [("rpcstream", call_options.make_parser), ("rpcstream-server", serve.make_parser)],
)
def test_command_line_has_every_option_with_its_default(
    heading: str, make_parser: Callable[[], argparse.ArgumentParser]
) -> None:
    text = section("reference/command-line.md", heading)
    rows: dict[str, str] = {}
    for first, second in cells_in(text):
        rows.update(dict.fromkeys(re.findall(r"(?<![\w:])--?[a-z][a-z-]*", first), second))
    parser = make_parser()
    actions = parser._actions  # noqa: SLF001 argparse tells of them in no other way
    assert rows.keys() == {name for action in actions for name in action.option_strings}
    for action in actions:
        for name in action.option_strings:
            missing = [default for default in defaults_of(action, parser.format_help()) if default not in rows[name]]
            assert not missing, f"{name}: the default {missing} is not in {rows[name]!r}"
        assert action.option_strings or str(action.metavar) in text


def test_command_line_has_every_type_and_status() -> None:
    text = section("reference/command-line.md", "rpcstream")
    assert [kind for kind in reading.KINDS if f"`key:{kind}=" not in text] == []
    statuses = {first for first, _ in cells_in(text) if first.isdigit()}
    assert statuses == {"0", "1", "2", "3", "4"}


def test_the_markers_of_tests() -> None:
    """CONTRIBUTING.md has those of pyproject.toml; others belong to one folder, which registers them."""
    rows = [first for first, _ in cells_in((ROOT / "CONTRIBUTING.md").read_text())]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    named = [each.partition(":")[0] for each in settings["markers"]]
    assert [row.strip("`") for row in rows][: len(named) + 1] == ["marker", *named]


def test_every_public_name_is_documented() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in rpcstream.__all__ if name != "__version__" and not re.search(rf"\b{name}\b", text)] == []


def section(page: str, heading: str) -> str:
    """The text below a heading, with all that is below its subheadings."""
    text = (DOCS / page).read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found is not None, f"{page} has no heading {heading!r}"
    rest = text[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def cells_in(text: str) -> Iterator[tuple[str, str]]:
    """The first two cells of every row of a table."""
    for line in text.splitlines():
        if line.startswith("| "):
            first, second = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:3])
            yield first, second


def options_in(text: str) -> Iterator[tuple[str, str]]:
    """The names in the first cells of the tables, each with its default, without backticks."""
    for first, second in cells_in(text):
        names = re.findall(r"`(\w+)`", first)
        defaults = re.findall(r"`([^`]+)`", second) if len(names) > 1 else [second.strip("`")]
        yield from zip(names, defaults, strict=bool(names))


def forms_of(value: object) -> set[str]:
    """How a default may be written."""
    forms = {repr(value), repr(value).replace("'", '"')}
    if isinstance(value, Limits | ImageOptions | Info | Http | Logs) and value == type(value)():
        forms.add(f"{type(value).__name__}()")
    if type(value) is int:
        forms |= {f"{value:,}", f"{value / 2**20:g} MiB", f"{value / 2**30:g} GiB"} if value >= 10_000 else set()
    if value is NOT_GIVEN:
        forms.add("not given")  # it depends on others
    if value is Backoff().random:
        forms.add("random.random")  # called through a function of ours, which imports it late
    return forms


def defaults_of(action: argparse.Action, help_text: str) -> list[str]:
    """What the option's line of the help says is the default."""
    lines = help_text.splitlines()
    help_text = next(line for line in lines if re.search(rf"(?<![\w-]){action.option_strings[-1]}(?![\w-])", line))
    found = re.findall(r"\(default '?([\w.*]+(?::\d+)?)", help_text)
    found += re.findall(r"(?<=, )with -\w (\w+)", help_text)
    return found + [each for each in (action.default, action.const) if isinstance(each, str) and "==" not in each]


# -- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors_of(file), target


def test_index_names_every_page() -> None:
    index = (DOCS / "index.md").read_text()
    names = [str(page.relative_to(DOCS)) for page in PAGES]
    assert [name for name in names if f"]({name})" not in index and name != "index.md"] == []


def test_every_example_is_listed() -> None:
    text = (ROOT / "examples" / "README.md").read_text()
    examples = [path for path in (ROOT / "examples").iterdir() if path.name not in ("README.md", "__pycache__")]
    assert [path.name for path in examples if f"]({path.name}" not in text] == []


def test_the_site_has_every_page() -> None:
    site = (ROOT / ".ci" / "mkdocs.yml").read_text()
    assert [str(page.relative_to(DOCS)) for page in PAGES if f": {page.relative_to(DOCS)}\n" not in site] == []


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """The anchors that are made of headings, as on GitHub."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
