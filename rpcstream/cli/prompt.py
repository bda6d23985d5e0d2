"""The line editor of `rpcstream --shell`: prompt_toolkit with completion and a private history.

Owns where the history stands and how long it becomes. Importing it raises ImportError where prompt_toolkit is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import History, InMemoryHistory

from ..user_files import append_private, read_private, state_folder, write_private

#: Bytes of the history; when it is longer, the older half is dropped at the next start.
_MAX_HISTORY = 256 * 1024

#: Gives what the last word of a text may become, each with a remark.
Suggest = Callable[[str], Iterable[tuple[str, str]]]


def make_reader(prompt: str, suggest: Suggest) -> Callable[[], str]:
    """A function that reads one line from the terminal; it raises EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
    session: PromptSession[str] = PromptSession(
        prompt, completer=_WordCompleter(suggest), complete_while_typing=False, history=_history()
    )
    return session.prompt


def _history() -> History:
    folder = state_folder(os.environ)
    return InMemoryHistory() if folder is None else PrivateHistory(os.path.join(folder, "history"))


class PrivateHistory(History):
    """Lines in a file that this user alone may read. One that begins with a blank is not kept, as in other shells."""

    def __init__(self, path: str) -> None:
        self._path = path
        super().__init__()

    def load_history_strings(self) -> Iterable[str]:
        """The lines, the newest first."""
        data = read_private(self._path, 16 * _MAX_HISTORY) or b""
        if len(data) > _MAX_HISTORY:
            data = data[-_MAX_HISTORY // 2 :].partition(b"\n")[2]
            self._keep(lambda: write_private(self._path, data))
        return reversed([line for line in data.decode(errors="replace").split("\n") if line])

    def store_string(self, string: str) -> None:
        """Add a line."""
        if string.strip() and not string.startswith(" ") and "\n" not in string:
            line = string.encode(errors="replace") + b"\n"
            self._keep(lambda: append_private(self._path, line))

    def _keep(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError:  # without a history one can go on
            pass


class _WordCompleter(Completer):
    """Completes the last word before the cursor."""

    def __init__(self, suggest: Suggest) -> None:
        self._suggest = suggest

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        start = -len(text.split(" ")[-1])
        for word, remark in self._suggest(text):
            yield Completion(word, start_position=start, display_meta=remark)
