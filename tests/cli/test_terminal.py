"""`rpcstream` on a terminal: colours, pictures and progress."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import environment


def on_a_terminal(*argv: str, **more: str) -> tuple[int, str]:
    """The exit status, and all that the command writes to a terminal that is output and error alike."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "rpcstream", *argv]
    env = environment(**{"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **more})
    with subprocess.Popen(command, env=env, stdin=slave, stdout=slave, stderr=slave) as calling:
        os.close(slave)
        seen = bytearray()
        while True:
            assert select.select([master], [], [], 30)[0], "nothing comes"
            try:
                data = os.read(master, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not data:
                break
            seen += data
        os.close(master)
        status = calling.wait(30)
    return status, seen.decode().replace("\r\n", "\n")


class TestTerminal:
    def test_coloured_and_indented(self, address: str) -> None:
        status, text = on_a_terminal("echo", 'a:={"b": 1, "c": "x"}', "--uri", address)
        assert status == 0
        assert text == (
            '{\n  \x1b[34m"a"\x1b[0m: {\n    \x1b[34m"b"\x1b[0m: \x1b[36m1\x1b[0m,\n'
            '    \x1b[34m"c"\x1b[0m: \x1b[32m"x"\x1b[0m\n  }\n}\n'
        )

    @pytest.mark.parametrize("more", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
    def test_without_colour(self, more: dict[str, str], address: str) -> None:
        assert on_a_terminal("echo", "a=1", "--uri", address, **more) == (0, '{\n  "a": 1\n}\n')

    def test_an_array(self, address: str) -> None:
        status, text = on_a_terminal("ramp", "n=1000", "--uri", address, NO_COLOR="1")
        assert (status, text) == (0, "ndarray float32 (1000,)\n  [  0.   1.   2. ... 997. 998. 999.]\n")

    def test_an_image_as_a_picture(self, address: str) -> None:
        status, text = on_a_terminal("square", "side=4", "--uri", address)
        assert status == 0
        row = "  \x1b[38;2;255;0;0;48;2;255;0;0m" + "\u2580" * 4 + "\x1b[0m\n"
        assert text == "\x1b[33mimage PNG 4 x 4 RGB\x1b[0m\n" + row * 2

    def test_json_where_asked_for(self, address: str) -> None:
        assert on_a_terminal("echo", "a=1", "--format", "json", "--uri", address) == (0, '{"a":1}\n')

    def test_a_terminal_that_knows_few_letters(self, address: str) -> None:
        more = {"PYTHONIOENCODING": "ascii"}
        assert on_a_terminal("echo", "a=\u00e9", "--uri", address, **more) == (0, '{\n  "a": "\\xe9"\n}\n')
        status, text = on_a_terminal("square", "side=4", "--uri", address, **more)
        assert (status, text) == (0, "image PNG 4 x 4 RGB\n")

    def test_raw_bytes_do_not_reach_it(self, address: str) -> None:
        status, text = on_a_terminal("blob", "n=3", "--format", "raw", "--uri", address, NO_COLOR="1")
        assert status == 0
        assert "binary data" in text
        assert text.endswith("bytes (3)\n  b'\\xff\\xff\\xff'\n")

    def test_an_error_in_colour(self, address: str) -> None:
        status, text = on_a_terminal("fail", "--uri", address)
        assert (status, text) == (1, '\x1b[31merror 7:\x1b[0m it failed \\u001b[2J, data {"why": "because"}\n')

    def test_descriptions(self, address: str) -> None:
        status, text = on_a_terminal("sum", "--describe", "--uri", address, NO_COLOR="1")
        assert (status, text) == (0, "sum(a: int, b: int = 2) -> int\n\n    Adds two numbers.\n\n    Nothing else.\n")
        status, text = on_a_terminal("--list", "--uri", address, NO_COLOR="1")
        assert "\nsum(a: int, b: int = 2) -> int  # Adds two numbers.\n" in text

    def test_progress_of_a_large_upload(self, address: str, tmp_path: Path) -> None:
        (tmp_path / "data").write_bytes(b"x" * 20_000_000)
        status, text = on_a_terminal("length", "-f", f"data={tmp_path / 'data'}", "--uri", address, NO_COLOR="1")
        assert status == 0
        assert "\rsending [" in text
        assert text.endswith("\r20000000\n")
