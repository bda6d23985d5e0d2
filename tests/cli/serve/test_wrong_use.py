"""What `rpcstream-server` does not serve, and how it says so."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import environment

Refused = Callable[..., str]

NATS = ("--nats", "nats://127.0.0.1/a")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        # Targets.
        (["nowhere:server"], "there is no module 'nowhere'"),
        (["package.nowhere:server"], "there is no module 'package.nowhere'"),
        (["nowhere.py"], "there is no file 'nowhere.py'"),
        (["app:nothing"], "'app' has no 'nothing'"),
        (["controlFunctions"], "has no Server; for plain functions use -f controlFunctions"),
        (["several.py"], "say several:NAME with one of one, two"),
        (["elsewhere/json.py"], "another module has the name 'json' already"),
        (["a.b.py"], "without further dots"),
        (["number:n"], "number:n is int, not a Server"),
        # Options.
        ([], "say what to serve"),
        (["app", "-f"], "say what to serve"),
        (["app", "other"], "one TARGET is expected"),
        (["app", "--pattern", "x"], "--pattern goes with -f"),
        (["app", "--unix", "x", "-p", "1"], "takes the place of"),
        (["app", "--log-level", "loud"], "invalid choice"),
        (["app", "-p", "99999"], "is not a port"),
        (["-f", "--pattern", "nothing_*"], "no public functions that match 'nothing_*'"),
        (["--hub", "-f"], "-f does not go with --hub"),
        (["--hub", "app", "other"], "one TARGET is expected"),
        (["app:server", "--config", "x"], "--config goes with --hub"),
        (["app:server", "--ping-interval", "5"], "--ping-interval goes with --hub"),
        (["app:hub", "--hub", "--call-timeout", "5"], "--call-timeout is for a hub without a TARGET"),
        (["app:server", "--hub"], "app:server is a Server, not a Hub"),
        (["--hub", "--call-timeout", "soon"], "'soon' is not a number of seconds"),
        (["--hub", "--unix", "x", "-p", "1"], "takes the place of"),
        (["app:server", "--key", "x"], "--key goes with --certificate"),
        (["app:server", "--client-ca", "x"], "--client-ca goes with --certificate"),
        (["app:server", "--unix-mode", "660"], "--unix-mode goes with --unix"),
        (["app:server", "--unix", "x", "--unix-mode", "999"], "'999' is no file mode"),
        (["app:server", "--token", "x"], "unrecognized arguments: --token"),
        (["app:server", "--token-file", "none"], "--token-file: cannot read 'none': No such file"),
        (["app:locked", "--token-file", "token"], "this server has a token= or an authenticate= of its own"),
        (["app:server", "--certificate", "token"], "--certificate: no certificate with its key"),
        (["app:server", "--cert", "server.pem"], "--certificate must have a certificate and its private key"),
        (["app:server", "--allow-host", "a b"], "a b"),
        (["app:server", "--path", "rpc"], "path: a path is a string that begins with '/'"),
        (["--hub", "--path", "rpc"], "path: a path is a string that begins with"),
        (["--hub", "--key", "server.key"], "argument tls: 'certificate' is missing"),
        (["--hub", "--config", "none.toml"], "cannot read 'none.toml': No such file"),
        (["--hub", "--config", "token"], "token: Expected '=' after a key"),
        (["--hub", "--config", "slip.toml"], "slip.toml: unknown option 'prot' of a hub (did you mean 'port'?)"),
        (["--hub", "--config", "rules.toml"], "rules.toml: rules[0]: 'cal' is unknown"),
        (["--hub", "--config", "open.toml"], "rules need callers that are authenticated"),
        # Logging.
        *((["app", "--log-config", name], "No such file or directory") for name in ("none.json", "none.ini")),
        (["app", "--log-config", "bad.json"], "--log-config bad.json: bad.json: "),
        (["app", "--log-config", "bad.toml"], "--log-config bad.toml: bad.toml: "),
        (["app", "--log-config", "wrong.json"], "nothing"),
        (["app", "--log-config", "bad.ini"], "'formatters' is missing"),
        # NATS.
        (["app", "--nats", "nats://127.0.0.1"], "the name of the service is missing"),
        (["app", "--nats", "127.0.0.1"], "an address of NATS begins with nats:// or nats+tls://"),
        (["app", *NATS, "--service", "b"], "and --service is 'b'"),
        (["app", *NATS, "--nats-trust-identity"], "--nats-trust-identity tells authenticate="),
        (["app", "--nats", "nats+tls://127.0.0.1/a", "--nats-ca", "none"], "--nats-ca cannot be read"),
        (["app", *NATS, "--nats-ca", "none"], "--nats-ca is for TLS"),
        (["app", *NATS, "--nats-user", "a", "--nats-nkey", "b"], "a NATS login has one of creds, nkey and user"),
        (["app", *NATS, "--nats-inbox-prefix", "$x"], "--nats-inbox-prefix is a subject"),
        (["app", *NATS, "--nats-key", "x"], "--nats-key goes with --nats-certificate"),
        (["app", *NATS, "--nats-only", "-p", "1"], "--port does not go with --nats-only"),
        (["app", *NATS, "--nats-direct", "x:y:z"], "is host:port, not 'x:y:z'"),
        (["app", *NATS, "--nats-password", "x"], "unrecognized arguments: --nats-password"),
        (["app", "--nats-creds", "x"], "--nats-creds goes with --nats"),
        (["app", "--service", "x"], "--service goes with --nats"),
        (["--hub", "--nats", "nats://127.0.0.1"], "--nats does not go with --hub"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_it_is_said_in_a_line(argv: list[str], words: str, folder: Path, refused: Refused) -> None:
    (folder / "elsewhere").mkdir()
    for name, text in {
        "several.py": "from rpcstream import Server\none = Server()\ntwo = Server()",
        "a.b.py": "",
        "number.py": "n = 5",
        "elsewhere/json.py": "",
        "slip.toml": "prot = 1",
        "rules.toml": 'token = "x"\n[[rules]]\nwho = "*"\ncal = "x"',
        "open.toml": '[[rules]]\nwho = "*"',
        "bad.json": "{",
        "bad.toml": "a =",
        "wrong.json": '{"root": {"handlers": ["nothing"]}}',
        "bad.ini": "[loggers]\n",
    }.items():
        (folder / name).write_text(text)
    said = refused(*argv)
    assert words in said
    assert "Traceback" not in said
    assert said.count("\n") == 1 or said.startswith("usage: ")


@pytest.mark.parametrize(
    ("target", "source", "shown"),
    [
        (
            "broken.py",
            "def fail():\n    raise ValueError('at\\nimport')\n\nfail()\n",
            'Traceback (most recent call last):\n  File "{file}", line 4, in <module>\n    fail()\n'
            "  File \"{file}\", line 2, in fail\n    raise ValueError('at\\nimport')\nValueError: at\nimport\n"
            "rpcstream-server: cannot import 'broken': ValueError: at import\n",
        ),
        (
            "syntax.py",
            "x = 1\ndef\n",
            '  File "{file}", line 2\n    def\n       ^\nSyntaxError: invalid syntax\n'
            "rpcstream-server: cannot import 'syntax': SyntaxError in {file}, line 2: invalid syntax\n",
        ),
        (
            "missing.py",
            "import not_installed.part\n",
            'Traceback (most recent call last):\n  File "{file}", line 1, in <module>\n'
            "    import not_installed.part\nModuleNotFoundError: No module named 'not_installed'\n"
            "rpcstream-server: cannot import 'missing': {file}, line 1: "
            "'not_installed' is not installed for {python}\n",
        ),
        (
            "leaves.py",
            "raise SystemExit(5)\n",
            'Traceback (most recent call last):\n  File "{file}", line 1, in <module>\n    raise SystemExit(5)\n'
            "SystemExit: 5\nrpcstream-server: cannot import 'leaves': SystemExit: 5\n",
        ),
        (
            "app:double",
            None,
            "TypeError: double() missing 1 required positional argument: 'n'\n"
            "rpcstream-server: app:double failed: TypeError: double() missing 1 required positional argument: 'n'\n",
        ),
    ],
)
def test_an_exception_of_the_target_is_shown_from_its_own_frames_on(
    target: str, source: str | None, shown: str, folder: Path, refused: Refused
) -> None:
    if source is not None:
        (folder / target).write_text(source)
    said = refused(target, "-p", "0").splitlines()
    # Newer Pythons underline the place in lines of their own.
    lines = [line for line in said if line.strip(" ~^") or target == "syntax.py"]
    assert "\n".join(lines) + "\n" == shown.format(file=folder / target, python=sys.executable)
    if source is not None and target != "syntax.py":
        assert "target.py" in refused(target, "-d")


def test_a_place_that_cannot_be_listened_at(refused: Refused, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for target in ("app:server", "--hub"):
            said = refused(target, "-p", str(port), status=1)
            assert said.startswith(f"rpcstream-server: cannot listen at 127.0.0.1:{port}")
            assert said.count("\n") == 1
    assert "cannot listen at 192.0.2.1:0" in refused("app:server", "-s", "192.0.2.1", "-p", "0", status=1)


def test_a_lifespan_that_fails_shows_its_own_error(refused: Refused, folder: Path) -> None:
    (folder / "model.py").write_text(
        "import contextlib\nfrom rpcstream import Server\n@contextlib.asynccontextmanager\n"
        "async def life(server):\n    open('/no/model')\n    yield\nserver = Server(lifespan=life)\n"
    )
    with pytest.raises(FileNotFoundError, match="'/no/model'"):  # which Python shows, with status 1
        refused("model.py", "-p", "0")


def test_a_wrong_variable(refused: Refused) -> None:
    assert refused("--hub", RPCSTREAM_HUB_PORT="tcp://10.0.0.1:8545") == (
        "rpcstream-server: environment variable RPCSTREAM_HUB_PORT: expected an integer, got a string\n"
    )


def test_the_help_needs_no_server(refused: Refused) -> None:
    """So that it and completion are quick."""
    program = "import sys\nfrom rpcstream.cli.serve import main\nmain(['--help'])\nprint(*sys.modules)"
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout
    assert not {"asyncio", "ssl", "msgspec", "rpcstream.config", "rpcstream.server"} & set(out.split())
    assert "--token-file" in out
    assert "default 8545, with -f 2102" in " ".join(out.split())
