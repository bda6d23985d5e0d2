"""Writes types as users do: with `rpcstream --stubs`, of a document in a file or of a server."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from rpcstream.cli.call import main

LANGUAGES = ("python", "typescript")


class RefusedError(Exception):
    """No types are written."""


def written(given: Any, language: str, *, uri: str | None = None) -> str:
    """The types of a document, or of the server at an address."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
        document, types = Path(folder) / "openrpc.json", Path(folder) / "types"
        document.write_text(given if isinstance(given, str) else json.dumps(given))
        source = [str(document)] if uri is None else ["--uri", uri]
        if main(["--stubs", language, *source, "-o", str(types)]):
            raise RefusedError(said.getvalue())
        return types.read_bytes().decode()
