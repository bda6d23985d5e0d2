"""Hook of the documentation's site: plain names in place of links that lead out of docs/, and plain blocks of code.

Behind the language of a block stand words for the tests (tests/docs), which the site's Markdown does not know.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_FENCE = re.compile(r"^```(\w+) ([^\n]*)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#:]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page's text as the site's Markdown reads it."""
    folder = posixpath.dirname(page.file.src_uri)

    def kept(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return f"{link[1]} (`{target[3:]}`)" if target.startswith("../") else link[0]

    return with_plain_fences(_LINK.sub(kept, markdown))


def with_plain_fences(markdown: str) -> str:
    """Return the text with a block's file name as its title, and without its other words for the tests."""

    def plain(fence: re.Match[str]) -> str:
        file = re.search(r"file=(\S+)", fence[2])
        return f'```{fence[1]} title="{file[1]}"' if file else f"```{fence[1]}"

    return _FENCE.sub(plain, markdown)
