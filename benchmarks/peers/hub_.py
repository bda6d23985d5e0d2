"""rpcstream's hub with a client that offers methods; or these methods as a server's, to be called without a hub.

The hub is this process; the provider is another one, on the core that `--core` says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from _common import HOST, Options, main, needs, ready
from _provider import PACKAGES, serve_bare, serve_real

with needs("rpcstream", "uvloop"):
    from rpcstream.hub import Hub

PROVIDER = Path(__file__).with_name("_provider.py")


def serve(options: Options) -> None:
    if options.direct:
        serve_directly = serve_real if options.provider == "real" else serve_bare
        serve_directly(lambda port: ready(port, *PACKAGES))
    else:
        serve_with_provider(options)


def run_hub(on_listening: Callable[[int], None]) -> None:
    Hub().run(host=HOST, port=0, on_listening=lambda address: on_listening(int(address.rpartition(":")[2])))


def serve_with_provider(options: Options) -> None:
    """Serve the hub with a provider process, and print the ready line once the provider has registered."""
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int) -> None:
        command = [sys.executable, str(PROVIDER), "--port", str(port), "--kind", options.provider]
        command += ["--clients", str(options.clients)]
        started.append(provider := subprocess.Popen(command, stdout=subprocess.PIPE))
        if options.core is not None:
            os.sched_setaffinity(provider.pid, {options.core})
        threading.Thread(target=pass_on, args=(provider,), daemon=True).start()

    def pass_on(provider: subprocess.Popen[bytes]) -> None:
        """Print the provider's ready line as this script's own; end where there is none."""
        assert provider.stdout is not None
        line = provider.stdout.readline()
        if not line:
            os._exit(provider.wait() or 1)
        sys.stdout.buffer.write(line)
        sys.stdout.flush()

    try:
        run_hub(start)
    finally:
        for provider in started:
            provider.terminate()
            provider.communicate()


if __name__ == "__main__":
    main(
        serve,
        serve_options={
            "--provider": {"choices": ["real", "bare"], "default": "real", "help": "rpcstream's own, or the least"},
            "--direct": {"action": "store_true", "help": "no hub: the provider is a server"},
            "--core": {"type": int, "help": "where the provider runs; without, where the hub does"},
            "--clients": {"type": int, "default": 0, "help": "others on the hub, each with methods of its own"},
        },
    )
