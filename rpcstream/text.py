"""Text that a peer chose, on its way to a terminal, a log or a page of plain text: nothing in it is obeyed there.

The one place that decides what is written escaped, and where loggers learn it. Knows no peer and no terminal.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

#: What a terminal would obey instead of show, or what would make text look like another one: C0 and C1 controls, DEL,
#: further line ends, all that turns the direction of writing, and surrogates, which no encoding takes.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str, *, keep: str = "") -> str:
    """The text with control characters written as in JSON (`\\u001b`), so that a peer cannot command the terminal.

    JSON text stays JSON, and means the same.

    Args:
        keep: control characters that stay as they are, such as line ends.
    """
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", text)


def get_logger(name: str) -> logging.Logger:
    """A logger of this package, by its full name, whose records are `visible` wherever they are written.

    The one line of a record has no line ends and escape sequences but its own; the text of a traceback keeps its lines.
    Other code that asks for the logger of this name gets the same one.
    """
    import logging

    logger = logging.getLogger(name)
    if _make_visible not in logger.filters:
        logger.addFilter(_make_visible)
    return logger


def _make_visible(record: logging.LogRecord) -> bool:
    """A filter that lets every record pass. One without control characters is not changed."""
    try:
        message = record.getMessage()
        shown = visible(message, keep="\n\t" if "\n" in str(record.msg) else "\t")
        if shown != message:
            record.msg, record.args = shown, None
        if record.exc_info and not record.exc_text:
            trace = _plain_formatter().formatException(record.exc_info)
            if (shown := visible(trace, keep="\n\t")) != trace:
                record.exc_text = shown  # which formatters take for the traceback
    except Exception:
        pass  # the handler says that the record cannot be written, and where it was made
    return True


def _plain_formatter() -> logging.Formatter:
    import logging

    return logging.Formatter()
