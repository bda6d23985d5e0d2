"""A fixture that writes configuration files, and options from sources that a test gives and from nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rpcstream.client.config import client_options
from rpcstream.hub.config import hub_options

SECRET = "correct-horse-battery-staple"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(0o600)
        return path

    return write


def hub(source: Any = None, environ: dict[str, str] | None = None, **arguments: Any) -> Any:
    return hub_options(source, arguments, environ=environ or {})


def client(source: Any = None, environ: dict[str, str] | None = None, **arguments: Any) -> dict[str, Any]:
    return client_options(source, arguments, environ=environ or {})
