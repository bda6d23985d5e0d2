"""`python -m rpcstream`: the same as the command `rpcstream`."""

from __future__ import annotations

import sys

from .cli.call import main

if __name__ == "__main__":
    sys.exit(main())
