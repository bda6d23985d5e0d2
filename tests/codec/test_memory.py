"""Freed memory is kept: glibc would give every large block back, and each message would pay for its pages anew."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")

#: Prints the page faults of messages of 8 MiB, after the first ones.
PROGRAM = """
import resource
from rpcstream import Codec
codec, value = Codec(), bytes(6_000_000)
for turn in range(20):
    if turn == 5:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    codec.dumps({"result": value})
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_large_messages_use_the_memory_of_those_before() -> None:
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert int(done.stdout) < 2000  # one message has 2,000 pages
