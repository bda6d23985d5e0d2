"""The permissions of a Unix socket's file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rpcstream import AsyncClient, Server


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
async def test_the_file_of_the_socket_has_the_permissions_asked_for(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o022)
    try:
        async with Server().listening(unix=tmp_path / "socket", unix_mode=mode) as address:
            assert stat.S_IMODE(os.stat(tmp_path / "socket").st_mode) == mode
            async with AsyncClient(address) as client:
                assert await client.call("rpc.ping") == "pong"
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


async def test_without_it_the_umask_counts(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        async with Server().listening(unix=tmp_path / "socket"):
            assert stat.S_IMODE(os.stat(tmp_path / "socket").st_mode) == 0o700
    finally:
        os.umask(before)
