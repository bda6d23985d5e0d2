"""How much a test does: a part in the plain suite, all of it with `RPCSTREAM_THOROUGH=1`.

Tests that do more then are property tests, which hypothesis marks, and those with the mark `thorough`.
"""

from __future__ import annotations

import os

#: Set in a step of `.ci/run`.
IS_THOROUGH = bool(os.environ.get("RPCSTREAM_THOROUGH"))


def example_count(thorough: int) -> int:
    """For `max_examples`: this many in a thorough run, else a fifth of them, though at least 20."""
    return thorough if IS_THOROUGH else min(thorough, max(20, thorough // 5))
