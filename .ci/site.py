"""Hook of the documentation's site: links that lead out of docs/ (examples, the source) become plain names."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#:]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Give the page's text without links to files that are not on the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def kept(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return f"{link[1]} (`{target[3:]}`)" if target.startswith("../") else link[0]

    return _LINK.sub(kept, markdown)
