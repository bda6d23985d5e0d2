"""The image of examples/deploy, built of this checkout and run: a call is answered, and SIGTERM ends it in order.

    python -m tests.examples.containers

Needs docker, and a network for its first build; says so and ends with status 0 where there is none.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rpcstream import Client

ROOT = Path(__file__).parents[2]
IMAGE = "rpcstream-deploy-check"
TOKEN = "a-token-for-this-run-only"


def docker(*arguments: str, timeout: float = 600) -> str:
    return subprocess.run(
        ["docker", *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=timeout
    ).stdout.strip()


def is_there() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, timeout=60).returncode == 0


def build(folder: Path) -> None:
    """Build the image with a wheel of this checkout in place of the published package."""
    shutil.copytree(ROOT / "examples" / "deploy", folder, dirs_exist_ok=True)
    subprocess.run([sys.executable, "-m", "build", "--wheel", "-o", str(folder), str(ROOT)], check=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    (folder / "requirements.txt").write_text(f"./{wheel.name}\n")
    docker("build", "-q", "-t", IMAGE, str(folder))


def run(folder: Path, *command: str) -> None:
    """Run a container until it has answered a call, and stop it."""
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o644)
    mount = ("-v", f"{token}:/run/secrets/token:ro", "--read-only", "--cap-drop", "ALL", "--tmpfs", "/tmp")
    name = docker("run", "-d", "-p", "127.0.0.1::8545", *mount, IMAGE, *command)
    try:
        address = docker("port", name, "8545").splitlines()[0]
        with Client(address, token=TOKEN, wait_for=30) as client:
            assert client.rpc.ping() == "pong"
            if not command:
                assert client.embed("a red bicycle").shape == (8,)
        docker("stop", "--time", "20", name)
        status = docker("inspect", "-f", "{{.State.ExitCode}}", name)
        assert status == "0", f"the container ended with status {status}: {docker('logs', name)}"
    finally:
        docker("rm", "-f", name)


def main() -> int:
    if not is_there():
        print("no docker: the image was not built")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        run(folder)
        run(folder, "rpcstream-server", "--hub", "--host", "0.0.0.0", "--token-file", "/run/secrets/token")
        compose = ["docker", "compose", "-f", str(folder / "compose.yaml"), "config", "-q"]
        if subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60).returncode == 0:
            subprocess.run(compose, check=True, timeout=60)
    print("the image was built, and answers as a server and as a hub")
    return 0


if __name__ == "__main__":
    sys.exit(main())
