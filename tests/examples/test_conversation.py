"""The examples of a conversation: progress and cancel, a question to the caller, frames both ways."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.slow

#: Frames: a window of each stream, one in the filter, one made ahead, one in front of whoever looks.
MOST_UNDER_WAY = 16 + 16 + 3


def test_a_long_computation_shows_progress_and_is_cancelled(served, python, promised):
    address, server = served("examples/long_computation.py")
    output = python("-W", "error", "examples/long_computation.py", "call", address)
    # As a terminal would show it; each carriage return was read as a line end.
    assert re.sub(r"^( *\d+%)?\n", "", output, flags=re.MULTILINE) == promised("long_computation.py")
    parts = re.findall(r"^ *(\d+)%", output, flags=re.MULTILINE)
    assert len(parts) > 1
    assert parts == sorted(parts, key=int)
    said = next(line for line in server.stdout if "nobody" in line)
    assert said == "nobody waits for the primes below 5000000\n"


def test_a_handler_asks_before_it_deletes(served, python, promised):
    address, _ = served("examples/confirm.py")
    for _ in range(2):
        assert python("-W", "error", "examples/confirm.py", "call", address) == promised("confirm.py")


def test_a_video_is_never_in_memory_as_a_whole(served, python, promised):
    address, _ = served("examples/video_filter.py")
    output = python("-W", "error", "examples/video_filter.py", "call", address)
    numbers = r"(?<=never more than )\d+"
    assert re.sub(numbers, "", output) == re.sub(numbers, "", promised("video_filter.py"))
    (most,) = re.findall(numbers, output)
    assert int(most) <= MOST_UNDER_WAY
