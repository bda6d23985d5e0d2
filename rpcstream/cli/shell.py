"""`rpcstream --shell`: lines as on the command line, one after the other, on one connection.

Owns the reading of lines, what Ctrl-C and Ctrl-D do, and what may be completed. How a line is carried out it is given;
`prompt` has the line editor where prompt_toolkit is installed. Imported for --shell only.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from .. import __version__
from ..client.discovery import methods_of, parameters_of, signature_text, type_text
from ..errors import MethodNotFound, NotPermitted
from ..text import visible
from .call_options import make_parser, parse
from .completion import HARMLESS, files_from
from .help_topics import TOPICS, help_text
from .items import UsageError
from .show import OK, USAGE, print_error

PROMPT = "rpcstream> "

_HINT = 'for completion and history: pip install "rpcstream[shell]"'

_HELP = """\
  METHOD [ITEM ...]   call a method, as on the command line: items, options, quotes
  --list              the methods of the server; METHOD --describe shows one
  help METHOD         the same; help TOPIC, on {topics}
  exit                leave, as Ctrl-D does; Ctrl-C gives up a call
A method that is called help or exit: -- help, -- exit."""

#: Options that are given when the shell is started.
_OF_START = ("uri", "port", "token", "token_file", "ca", "certificate", "key", "profile", "config", "verbose", "shell")
#: Options whose values are files.
_WITH_FILES = frozenset(("-o", "--output", "-i", "--image", "-f", "--file"))
#: Suggestions at most.
_MAX_SUGGESTIONS = 1000
#: Characters of a line beyond which nothing is suggested: to read its words would take long with each key.
_MAX_LINE = 10_000
#: Characters of what stands beside a suggestion.
_MAX_REMARK = 100

#: What can stand in the place of the last word, and a remark about it.
Suggestion = tuple[str, str]


class Shell:
    """Reads lines and carries them out.

    Args:
        options: of the command line that started it.
        perform: carries out a line, from its options; returns the exit status.
        discover: asks the server for its methods.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        perform: Callable[[argparse.Namespace], int],
        discover: Callable[[], Any],
    ) -> None:
        self._perform = perform
        self._discover = discover
        self._parser = make_parser(_LineParser)
        self._parser.set_defaults(format=options.format, progress=options.progress)
        self._methods: dict[str, dict[str, Any]] = {}

    def run(self, address: str) -> int:
        """Read lines until the end of the input; returns the exit status.

        That is 0 at a terminal; of a script, that of its last line.

        Raises what a call raises, if the server cannot be asked for its methods.
        """
        self._learn()
        is_interactive = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        if is_interactive:
            print(f"rpcstream {__version__} at {visible(address)}: {len(self._methods)} methods; help, Ctrl-D leaves")
        status = OK
        for text in self._lines(is_interactive):
            try:
                result = self.carry_out(text)
            except KeyboardInterrupt:
                if not is_interactive:
                    raise
                print_error("given up")
                continue
            if result is None:
                break
            status = result
        return OK if is_interactive else status

    def carry_out(self, text: str) -> int | None:
        """Carry out one line; returns its exit status, None if it ends the shell."""
        try:
            words = split_line(text)
            if not words:
                return OK
            if len(words) == 1 and words[0] in ("exit", "quit"):
                return None
            if words[0] == "help" and len(words) <= 2 and (status := self._help(*words[1:])) is not None:
                return status
            return self._call(words)
        except ValueError as error:  # a quote without its end
            print_error(str(error))
        except UsageError as error:
            print_error(str(error))
        return USAGE

    def suggestions(self, text: str) -> list[Suggestion]:
        """What the last word of a line may become."""
        if len(text) > _MAX_LINE:
            return []
        last = text.rsplit(maxsplit=1)[-1] if text and not text[-1].isspace() else ""
        head = text[: len(text) - len(last)]
        try:
            words = split_line(head)
        except ValueError:  # within quotes
            return []
        found = [each for each in self._candidates(words, last) if each[0].startswith(last)]
        return found[:_MAX_SUGGESTIONS]

    # -- lines ------------------------------------------------------------------------------------------------------

    def _lines(self, is_interactive: bool) -> Iterator[str]:
        if not is_interactive:
            yield from sys.stdin or ()
            return
        read = self._reader()
        while True:
            try:
                yield read()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return

    def _reader(self) -> Callable[[], str]:
        """A function that reads one line from the terminal."""
        try:
            from .prompt import make_reader
        except ImportError:
            print(_HINT)
            try:
                import readline  # noqa: F401 makes input() a line editor
            except ImportError:
                pass
            return lambda: input(PROMPT)
        return make_reader(PROMPT, self.suggestions)

    def _call(self, words: list[str]) -> int:
        try:
            options = parse(self._parser, words)
        except SystemExit:  # --help, --version
            return OK
        given = [name for name in _OF_START if getattr(options, name) not in (None, False)]
        if given:
            raise UsageError(
                f"--{given[0].replace('_', '-')} is given when the shell is started: rpcstream --shell ..."
            )
        if options.list:
            self._learn()
        return self._perform(options)

    def _learn(self) -> None:
        """Ask for the methods; those that a server does not tell are not completed."""
        try:
            self._methods = {method["name"]: method for method in methods_of(self._discover())}
        except (MethodNotFound, NotPermitted):
            self._methods = {}

    def _help(self, about: str = "") -> int | None:
        """Print help; returns the exit status, None if the line is a call of a method called help."""
        if about in self._methods and about not in TOPICS:
            return self._call(["--describe", "--", about])
        text = help_text(about) if about else _HELP.format(topics=", ".join(TOPICS))
        if text is None:
            return None if "=" in about else self._no_topic(about)
        print(text)
        return OK

    def _no_topic(self, about: str) -> int:
        print_error(f"{about!r} is neither a method nor a topic: {', '.join(TOPICS)}")
        return USAGE

    # -- completion -------------------------------------------------------------------------------------------------

    def _candidates(self, words: list[str], last: str) -> Iterator[Suggestion]:
        if words and words[-1] in _WITH_FILES:
            return ((path, "") for path in files_from(last))
        if words and words[-1] == "--format":
            return ((form, "") for form in ("auto", "text", "table", "json", "raw"))
        if last.startswith("-"):
            return self._option_names()
        method = next((word for word in words if word in self._methods), None)
        if method is None:
            return self._method_names(last) if not words or words == ["help"] else iter(())
        return self._parameters(self._methods[method], words, last)

    def _option_names(self) -> Iterator[Suggestion]:
        for action in self._parser._actions:
            if action.dest not in _OF_START:
                for name in action.option_strings:
                    yield name, action.help or ""

    def _method_names(self, last: str) -> Iterator[Suggestion]:
        for name, method in self._methods.items():
            if HARMLESS.fullmatch(name) and (last.startswith("rpc.") or not name.startswith("rpc.")):
                summary = method.get("summary")
                remark = visible(summary) if isinstance(summary, str) else signature_text(method)
                yield name, remark[:_MAX_REMARK]

    def _parameters(self, method: dict[str, Any], words: list[str], last: str) -> Iterator[Suggestion]:
        """Names that are not given yet; behind the `=` of one, what its type permits."""
        key, equals, value = last.partition("=")
        schemas = {each["name"]: each.get("schema") for each in parameters_of(method) if "x-rest" not in each}
        if equals:
            if key.endswith((":image", ":ndarray")):
                yield from ((f"{key}={path}", "") for path in files_from(value))
            else:
                yield from ((f"{key}={each}", "") for each in _values_of(schemas.get(key)))
            return
        given = {word.partition("=")[0].partition(":")[0] for word in words}
        for name, schema in schemas.items():
            if name not in given and HARMLESS.fullmatch(name):
                yield f"{name}=", type_text(schema)[:_MAX_REMARK]


def _values_of(schema: Any) -> list[str]:
    """The values of an enumeration, or of a bool, as they are written in a line."""
    if not isinstance(schema, dict):
        return []
    if schema.get("type") == "boolean":
        return ["true", "false"]
    values = schema.get("enum")
    texts = [each for each in values if isinstance(each, str)] if isinstance(values, list) else []
    return [text for text in texts if HARMLESS.fullmatch(text)]


#: A part of a line: blanks, a quoted text, one escaped character, or plain text.
_PART = re.compile(
    r"""(?P<blank>[ \t\r\n]+)|'(?P<single>[^']*)'|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|\\(?P<escaped>.)"""
    r"""|(?P<plain>[^ \t\r\n'"\\]+)""",
    re.DOTALL,
)
_ESCAPED = re.compile(r'\\(["\\])')


def split_line(text: str) -> list[str]:
    """Split a line into words as a POSIX shell does; as `shlex.split`, which is too slow for a line of 1 MB.

    Raises:
        ValueError: a quotation has no end.
    """
    words: list[str] = []
    parts: list[str] | None = None
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            raise ValueError("No escaped character" if text[at] == "\\" else "No closing quotation")
        at = found.end()
        if found["blank"] is None:
            parts = [] if parts is None else parts
            quoted = found["double"]
            parts.append(found[found.lastgroup or 0] if quoted is None else _ESCAPED.sub(r"\1", quoted))
        elif parts is not None:
            words.append("".join(parts))
            parts = None
    return words if parts is None else [*words, "".join(parts)]


class _LineParser(argparse.ArgumentParser):
    """Reports wrong options without the usage of the command."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)
