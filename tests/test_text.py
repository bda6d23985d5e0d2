"""Text from a peer: control characters are escaped where it is shown."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rpcstream

from .kit import logged

NASTY = "x\x1b[2J\x9b2J\x7f\r\u202e\u2066\u200f\u2028\udc80"
SHOWN = r"x\u001b[2J\u009b2J\u007f\u000d\u202e\u2066\u200f\u2028\udc80"


@pytest.mark.parametrize(
    ("template", "value", "line"),
    [
        ("closed the connection from %s", NASTY, f"closed the connection from {SHOWN}"),
        ("failed: %s", ValueError("\x1b]0;x\x07\nERROR forged"), r"failed: \u001b]0;x\u0007\u000aERROR forged"),
        ("plain %s", "ä\t1 漢字 😀 \u200d", "plain ä\t1 漢字 😀 \u200d"),
        ("a template\nof two lines: %s", "\x1b", "a template\nof two lines: \\u001b"),
    ],
)
def test_a_log_obeys_nothing(template: str, value: object, line: str) -> None:
    with logged("rpcstream.server", alone=True) as seen:
        logging.getLogger("rpcstream.server").warning(template, value)
    assert seen.lines == [line]
    json.dumps(line).encode()


def test_a_traceback_in_a_log_obeys_nothing() -> None:
    with logged("rpcstream.server", alone=True) as seen:
        try:
            raise ValueError(NASTY)
        except ValueError:
            logging.getLogger("rpcstream.server").exception("failed")
    (text,) = seen.lines
    assert text.endswith(f"ValueError: {SHOWN}")
    assert text.splitlines()[1].startswith("Traceback")


@pytest.mark.slow
def test_every_logger_of_the_package_does_that() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(rpcstream.__file__).parent.rglob("*.py"))
    names = sorted(set(re.findall(r'(?:getLogger|get_logger)\("(rpcstream\.\w+)"\)', sources)))
    assert len(names) > 4
    pytest.importorskip("nats")
    program = (
        "import logging\n"
        "import rpcstream.supervisor.supervisor, rpcstream.nats.service\n"
        "from rpcstream import Server, Client, AsyncClient, Hub\n"
        f"print([name for name in {names} if not logging.getLogger(name).filters])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
