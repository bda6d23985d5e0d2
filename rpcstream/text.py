"""Escape control characters in text from a peer, before it reaches a terminal, a log or a page of plain text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

#: Characters that control a terminal, or that make text look like another one: C0 and C1 controls, DEL, further line
#: ends, changes of the writing direction; and surrogates, which cannot be encoded. Compiled at its first use, which
#: most calls from the command line do without.
_CONTROLS = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


def visible(text: str, *, keep: str = "") -> str:
    r"""The text with control characters escaped as in JSON (`\u001b`), so that they do not control a terminal.

    JSON text stays JSON with the same value.

    Args:
        text: from a peer.
        keep: control characters that stay as they are, such as line ends.
    """
    if text.isascii() and text.isprintable():
        return text
    return re.sub(_CONTROLS, lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", text)


def get_logger(name: str) -> logging.Logger:
    """A logger whose records have their control characters escaped, for every handler.

    Line ends in the values of a record are escaped; those of its own text and of a traceback stay. It is the logger
    that `logging.getLogger` returns for this name.
    """
    import logging

    logger = logging.getLogger(name)
    if _make_visible not in logger.filters:
        logger.addFilter(_make_visible)
    return logger


def _make_visible(record: logging.LogRecord) -> bool:
    """Escape the control characters of a record. A logging filter that lets every record pass."""
    import logging

    try:
        message = record.getMessage()
        shown = visible(message, keep="\n\t" if "\n" in str(record.msg) else "\t")
        if shown != message:
            record.msg, record.args = shown, None
        if record.exc_info and not record.exc_text:
            trace = logging.Formatter().formatException(record.exc_info)
            if (shown := visible(trace, keep="\n\t")) != trace:
                record.exc_text = shown  # formatters use it as the traceback
    except Exception:
        pass  # the logging handler reports a record that cannot be formatted, and where it was made
    return True
