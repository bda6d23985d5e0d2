"""What `rpcstream-server` does not serve, and how it says so."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import environment

Refused = Callable[..., str]

NATS = ("--nats", "nats://127.0.0.1/a")

#: What `--set` refuses, and how it says so.
SET = [
    ("prot=1", "--set prot: unknown option 'prot' of a server (did you mean 'port'?)"),
    ("port", "--set port: expected an integer"),
    ("port=x", "--set port: expected an integer"),
    ("metrics=maybe", "--set metrics: "),
    ("max_calls=0", "--set max_calls: expected a number of at least 1, got 0"),
    ("users=[{", "--set users: "),
    ('users=[{"token": "x"}]', "--set users[0]: 'name' is missing"),
    ("drain_timeout_ms=5", "--set drain_timeout_ms: give seconds, as drain_timeout"),
    ("memory_limit=lots", "--set memory_limit: expected a number of bytes"),
]

#: Files that a server is not served with, and what is said of them.
FILES = [
    ("slip", "slip.toml: unknown option 'prot' of a server (did you mean 'port'?)"),
    ("rules", "rules.toml: unknown option 'rules' of a server"),
    ("many", "many.toml: workers: '0' is not a number from 1 to 1,000"),
    ("both", "both.toml: either unix or port, not both"),
    ("secret", "token_file: cannot read"),
]


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
        (["app", "--pattern", "x"], "--pattern goes with --functions"),
        (["app", "--unix", "x", "-p", "1"], "takes the place of"),
        (["app", "--log-level", "loud"], "invalid choice"),
        (["app", "-p", "99999"], "is not a port"),
        (["-f", "--pattern", "nothing_*"], "no public functions that match 'nothing_*'"),
        (["--hub", "-f"], "--functions does not go with --hub"),
        (["--hub", "app", "other"], "one TARGET is expected"),
        (["app:server", "--config", "x"], "cannot read 'x': No such file"),
        (["app:server", "--set", "ping_interval=5"], "--set ping_interval: unknown option"),
        (["app:hub", "--hub", "--set", "call_timeout=5"], "--set call_timeout: unknown option"),
        (["app:server", "--hub"], "app:server is a Server, not a Hub"),
        (["--hub", "--set", "call_timeout=soon"], "--set call_timeout: expected a number"),
        (["--hub", "--unix", "x", "-p", "1"], "takes the place of"),
        (["app:server", "--key", "x"], "--key goes with --certificate"),
        (["app:server", "--client-ca", "x"], "--client-ca goes with --certificate"),
        (["app:server", "--set", "unix_mode=660"], "unix_mode needs unix"),
        (["app:server", "--unix", "x", "--set", "unix_mode=999"], "--set unix_mode: expected three octal digits"),
        (["app:server", "--token", "x"], "unrecognized arguments: --token"),
        (["app:server", "--token-file", "none"], "--token-file: cannot read 'none': No such file"),
        (["app:locked", "--token-file", "token"], "this server already has token= or authenticate="),
        (["app:server", "--certificate", "token"], "--certificate: cannot load the certificate and its key"),
        (["app:server", "--cert", "server.pem"], "--certificate must have a certificate and its private key"),
        (["app:server", "--set", "hosts=a b"], "a b"),
        (["app:server", "--set", "path=rpc"], "path: a path is a string that begins with '/'"),
        (["--hub", "--set", "path=rpc"], "path: a path is a string that begins with"),
        (["--hub", "--key", "server.key"], "--key goes with --certificate"),
        *((["app:server", "--set", each], words) for each, words in SET),
        *((["app:server", "--config", f"{name}.toml"], words) for name, words in FILES),
        (["app:server", "--config", "tls.toml", "--cert", "tls.pem"], "tls.toml: it sets tls, too"),
        (["app:locked", "--config", "users.toml"], "already has token= or authenticate="),
        (["app:server", "-p", "1", "--set", "port=2"], "port is given twice"),
        (["--hub", "--set", "workers=2"], "--set workers: unknown option 'workers' of a hub"),
        (["--hub", "--config", "none.toml"], "cannot read 'none.toml': No such file"),
        (["--hub", "--config", "token"], "token: Expected '=' after a key"),
        (["--hub", "--config", "slip.toml"], "slip.toml: unknown option 'prot' of a hub (did you mean 'port'?)"),
        (["--hub", "--config", "rules.toml"], "rules.toml: rules[0]: 'cal' is unknown"),
        (["--hub", "--config", "open.toml"], "rules need authenticated callers"),
        # Logging.
        (["app", "--set", "log_config=none.json"], "--set log_config: cannot read 'none.json': No such file"),
        (["app", "--set", "log_config=bad.json"], "--set log_config: bad.json: "),
        (["app", "--set", "log_config=bad.toml"], "--set log_config: bad.toml: "),
        (["app", "--set", "log_config=wrong.json"], "log_config: Unable to add handler 'nothing'"),
        (["app", "--set", 'logging={"root": {"handlers": ["nothing"]}}'], "logging: Unable to add handler 'nothing'"),
        (["app", "--set", "log_config=bad.ini"], "--set log_config: bad.ini: "),
        # NATS.
        (["app", "--nats", "nats://127.0.0.1"], "the name of the service is missing"),
        (["app", "--nats", "127.0.0.1"], "an address of NATS begins with nats:// or nats+tls://"),
        (["app", *NATS, "--set", "nats_service=b"], "and nats_service is 'b'"),
        (["app", *NATS, "--set", "nats_trust_identity=true"], "nats_trust_identity needs authenticate="),
        (["app", "--nats", "nats+tls://127.0.0.1/a", "--set", "nats_ca=none"], "nats_ca cannot be read"),
        (["app", *NATS, "--set", "nats_ca=none"], "nats_ca is for TLS"),
        (
            ["app", *NATS, "--set", "nats_user=a", "--set", "nats_nkey=b"],
            "a NATS login has one of",
        ),
        (["app", *NATS, "--set", "nats_inbox_prefix=$x"], "nats_inbox_prefix is a subject"),
        (["app", *NATS, "--set", "nats_key=x"], "nats_key is for TLS"),
        (["app", "--nats", "nats+tls://127.0.0.1/a", "--set", "nats_key=x"], "nats_key needs the certificate"),
        (["app", *NATS, "--set", "nats_only=true", "-p", "1"], "--port cannot be used with nats_only"),
        (["app", *NATS, "--set", "nats_direct=x:y:z"], "is host:port, not 'x:y:z'"),
        (["app", *NATS, "--nats-password", "x"], "unrecognized arguments: --nats-password"),
        (["app", "--set", "nats_creds=x"], "nats_creds needs nats"),
        (["app", "--set", "nats_service=x"], "nats_service needs nats"),
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
        "many.toml": "workers = 0",
        "both.toml": 'unix = "x"\nport = 1',
        "secret.toml": 'token_file = "no/such"',
        "tls.toml": '[tls]\ncertificate = "tls.pem"',
        "users.toml": '[[users]]\nname = "ada"\ntoken = "x"',
        "bad.json": "{",
        "bad.toml": "a =",
        "wrong.json": '{"root": {"handlers": ["nothing"]}}',
        "bad.ini": "[loggers]\nkeys=root\n",
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


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_a_function_that_cannot_be_a_method_is_one_line_with_its_place(
    future: str, folder: Path, refused: Refused
) -> None:
    body = "@server\ndef segment(photo: Image) -> None: ...\n"
    head = f"{future}from PIL import Image\nfrom rpcstream import Server\n"
    (folder / "cut.py").write_text(f"{head}server = Server()\n{body}")
    advice = "segment: parameter 'photo': the hint is the module PIL.Image; write Image.Image\n"
    line = head.count("\n") + 2
    expected = f"rpcstream-server: cannot import 'cut': {folder / 'cut.py'}, line {line}: {advice}"
    assert refused("cut.py", "-p", "0") == expected
    assert "Traceback" in refused("cut.py", "-p", "0", "-d")
    indented = "".join(f"    {text}\n" for text in ("server = Server()", *body.splitlines(), "return server"))
    (folder / "make.py").write_text(f"{head}def make():\n{indented}")
    assert refused("make.py:make", "-p", "0") == (
        f"rpcstream-server: make:make failed: {folder / 'make.py'}, line {line + 1}: {advice}"
    )
    (folder / "plain.py").write_text(f"{head}def segment(photo: Image) -> None: ...\n")
    assert refused("-f", "plain", "--pattern", "*", "-p", "0") == f"rpcstream-server: {folder / 'plain.py'}: {advice}"


def test_a_place_that_cannot_be_listened_at(refused: Refused, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for target in ("app:server", "--hub"):
            said = refused(target, "-p", str(port), status=1)
            assert said.startswith(f"rpcstream-server: cannot listen at 127.0.0.1:{port}")
            assert said.count("\n") == 1
    assert "cannot listen at 192.0.2.1:0" in refused("app:server", "-s", "192.0.2.1", "-p", "0", status=1)


def test_a_lifespan_that_fails_shows_its_own_error(
    refused: Refused, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.py").write_text(
        "import contextlib\nfrom rpcstream import Server\n@contextlib.asynccontextmanager\n"
        "async def life(server):\n    open('/no/model')\n    yield\nserver = Server(lifespan=life)\n"
    )
    with pytest.raises(SystemExit, match="1"):
        refused("model.py", "-p", "0")
    said = capsys.readouterr().err
    assert re.findall(r'File ".*?(\w+\.py)"', said) == ["model.py"], "only frames of the program are shown"
    assert said.endswith(
        "FileNotFoundError: [Errno 2] No such file or directory: '/no/model'\n"
        "the server was not started, because its lifespan failed\n"
    )


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
