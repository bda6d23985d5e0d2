"""Typed clients: Python and TypeScript types of a server's methods, made from its OpenRPC document.

The same document always gives the same bytes.
"""

from __future__ import annotations

from typing import Any

from ..openrpc.types import DocumentError

__all__ = ["LANGUAGES", "DocumentError", "stubs"]

#: The languages that types are written in.
LANGUAGES = ("python", "typescript")


def stubs(document: Any, language: str) -> str:
    """The types of the methods that a document describes, as the text of a module.

    Args:
        document: of `rpc.discover`, or of any other server that has an OpenRPC document: plain data.
        language: one of `LANGUAGES`.

    Raises:
        DocumentError: it is no OpenRPC document, or has too much in it.
        ValueError: there is no such language.
    """
    from ..openrpc.document import read_document

    if language == "python":
        from .python import PythonModule

        return PythonModule(read_document(document)).text()
    if language == "typescript":
        from .typescript import TypeScriptModule

        return TypeScriptModule(read_document(document)).text()
    raise ValueError(f"no types are written in {language!r}, only in {', '.join(LANGUAGES)}")
