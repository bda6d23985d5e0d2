"""TLS, tokens and addresses, and their mix-ups: each error names the option to change, in Python and in a shell."""

from __future__ import annotations

import contextlib
import datetime
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from rpcstream import TLS, ConnectFailed, ConnectionLost
from rpcstream.cli.call import main
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer
from ..kit.scripted import ScriptedServer
from .conftest import MakeClient


class Places(NamedTuple):
    """Servers by name (host and port), and certificate files by name."""

    servers: dict[str, str]
    files: dict[str, str]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    folder = tmp_path_factory.mktemp("faults")
    files = make_files(folder)
    here = TLS(certificate=files["here"])
    servers = {
        "plain": UsualServer(drain_timeout=0.1),
        "tls": UsualServer(drain_timeout=0.1, tls=here),
        "guarded": UsualServer(drain_timeout=0.1, token="right"),
        "mutual": UsualServer(drain_timeout=0.1, tls=TLS(certificate=files["here"], ca=files["ca"])),
        "expired": UsualServer(drain_timeout=0.1, tls=TLS(certificate=files["expired"])),
        "elsewhere": UsualServer(drain_timeout=0.1, tls=TLS(certificate=files["elsewhere"])),
        "self": UsualServer(drain_timeout=0.1, tls=TLS(certificate=files["self"])),
    }
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(serve_in_thread(server)) for name, server in servers.items()}
        foreign, closing = ScriptedServer(foreign_tls(files["here"])), ScriptedServer(lambda line: None)
        stack.callback(foreign.close)
        stack.callback(closing.close)
        # Nothing listens at the port 1 of this machine: it is reserved.
        running |= {"foreign": foreign.address, "closing": closing.address, "nothing": "127.0.0.1:1"}
        yield Places(running, files)


def make_files(folder: Path) -> dict[str, str]:
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca")
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    made = {
        "here": authority.issue_cert("127.0.0.1", "localhost"),
        "expired": authority.issue_cert("127.0.0.1", not_after=yesterday),
        "elsewhere": authority.issue_cert("example.org"),
        "self": other.issue_cert("127.0.0.1"),
    }
    for name, issued in made.items():
        issued.private_key_and_cert_chain_pem.write_to_path(folder / name)
    made["here"].cert_chain_pems[0].write_to_path(folder / "without-key")
    made["here"].private_key_pem.write_to_path(folder / "key")
    other.private_key_pem.write_to_path(folder / "other-key")
    (folder / "no-certificate").write_text("hello")
    return {path.name: str(path) for path in folder.iterdir()} | {"none": str(folder / "none")}


def foreign_tls(certificate: str) -> Callable[[Any], None]:
    """A script of a TLS server that answers text with an alert, as most do."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    def script(line: Any) -> None:
        line.socket.recv(5)
        line.socket.sendall(b"\x15\x03\x01\x00\x02\x02\x46")  # fatal: protocol_version

    return script


#: Each scheme without TLS, and the one with it.
SCHEMES = (("tcp", "tls"), ("http", "https"), ("ws", "wss"))
CA = {"ca": "ca"}
NOT_TRUSTED = "cannot be trusted: "
NOBODY = r" .is it running, and {address} right?.: "

#: What is given, and what is said. `{ca}` and the like stand for the option: `ca=` in Python, `--ca` in a shell.
MIX_UPS = [
    *[
        (f"{clear}://{name}", {}, f", before any answer; if the server expects TLS, begin {{address}} with {secret}://")
        for clear, secret in SCHEMES
        for name in ("foreign", "closing")
    ],
    *[
        (
            f"{secret}://plain",
            CA,
            f"could not connect: .*; if the server has no TLS, begin {{address}} with {clear}://",
        )
        for clear, secret in SCHEMES
    ],
    ("tcp://tls", {}, "the server expects TLS; begin {address} with tls://"),
    ("http://tls", {}, "400 Bad Request: this port expects TLS: .*; begin {address} with https://"),
    ("ws://tls", {}, "400 Bad Request: this port expects TLS: .*; begin {address} with wss://"),
    ("tcp://guarded", {}, "Not authenticated.*; give {token}"),
    ("http://guarded", {}, "401 Unauthorized: not authenticated: .*Bearer TOKEN; give {token}"),
    ("ws://guarded", {}, "Not authenticated.*; give {token}"),
    *[(f"{clear}://guarded", {"token": "wrong"}, "not accepted.*; is this the right {token}?") for clear, _ in SCHEMES],
    ("tls://mutual", CA, "asks for a certificate, and was shown none .{certificate}."),
    ("https://self", {}, NOT_TRUSTED + ".*; if you trust it, give the file of its authority with {tls}"),
    ("tls://self", CA, NOT_TRUSTED + ".*; if you trust it, give the file of its authority with {tls}"),
    ("wss://elsewhere", CA, NOT_TRUSTED + ".*mismatch.*; use a name from the certificate in {address}"),
    ("tls://expired", CA, NOT_TRUSTED + "certificate has expired; the server needs a new certificate"),
    ("tcp://nothing", {}, f"no server listens at this port{NOBODY}Connection refused"),
    ("wss://nothing", CA, f"no server listens at this port{NOBODY}Connection refused"),
    ("unix:///no/such/socket", {}, f"no server listens at this path{NOBODY}No such file"),
    ("http+unix:///no/such/socket", {}, f"no server listens at this path{NOBODY}No such file"),
    ("no-such-host.invalid", {}, "no host has this name .is {address} right?.: "),
]

#: The same, for what is noticed before anything is sent.
WRONG_OPTIONS = [
    ("tls://tls", {"ca": "none"}, "{ca} cannot be read: No such file or directory: '/.*/none'"),
    ("tls://tls", {"ca": "no-certificate"}, "{ca} must have certificates in PEM form.*: '/.*/no-certificate'"),
    ("https://tls", {"ca": "ca", "certificate": "none"}, "{certificate} cannot be read: No such file or directory: '/"),
    ("tls://tls", {"ca": "ca", "certificate": "no-certificate"}, "{certificate} must have a certificate and its"),
    ("wss://tls", {"certificate": "without-key"}, "{certificate} must have a certificate and its private key in"),
    (
        "tls://tls",
        {"certificate": "without-key", "key": "none"},
        "{certificate} and {key} cannot be read: No such file or directory",
    ),
    (
        "tls://tls",
        {"certificate": "without-key", "key": "ca"},
        "{certificate} and {key} must have a certificate and its private",
    ),
    (
        "tls://tls",
        {"certificate": "without-key", "key": "other-key"},
        "{certificate} and {key} must .*KEY_VALUES_MISMATCH",
    ),
    ("tls://tls", {"key": "key"}, "{key} needs the certificate that it belongs to: pass {certificate}"),
    ("tcp://plain", {"ca": "ca"}, "{tls} is for TLS"),
]


def given(places: Places, address: str, options: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The address and the options with the servers and files that their names stand for."""
    scheme, separator, name = address.rpartition("://")
    where = f"{scheme}{separator}{places.servers.get(name, name)}"
    return where, {key: value if key == "token" else places.files[value] for key, value in options.items()}


def pattern(text: str, spell: Callable[[str], str]) -> str:
    names = ("address", "ca", "certificate", "key", "tls", "token")
    return text.replace("?", r"\?").format(**{name: spell(name) for name in names})


def in_shell(name: str) -> str:
    return {"address": "--uri", "tls": "--ca"}.get(name, f"--{name}")


def in_python(arguments: dict[str, str]) -> dict[str, Any]:
    """The options of a client for those of the command line."""
    files = {name: file for name, file in arguments.items() if name != "token"}
    others: dict[str, Any] = {name: text for name, text in arguments.items() if name == "token"}
    return others | ({"tls": TLS(**files)} if files else {})


def row_name(value: Any) -> str:
    return "" if isinstance(value, dict) else str(value)[:20]


@pytest.mark.parametrize(("address", "options", "said"), [*MIX_UPS, *WRONG_OPTIONS], ids=row_name)
def test_what_is_said(
    places: Places, make_client: MakeClient, capfd: Any, address: str, options: dict[str, str], said: str
) -> None:
    where, arguments = given(places, address, options)
    with pytest.raises(Exception, match=pattern(said, "{}=".format)):
        make_client(where, timeout=20, **in_python(arguments)).call("echo", 1)
    status = main(["echo", "value:int=1", "--uri", where, *(f"--{name}={text}" for name, text in arguments.items())])
    out, err = capfd.readouterr()
    assert status in ((2,) if (address, options, said) in WRONG_OPTIONS else (1, 3))
    assert (out, err.count("\n")) == ("", 1)
    assert re.search(pattern(said, in_shell), err)


TLS_SCHEMES: Any = pytest.mark.parametrize("scheme", ["tls", "https", "wss"])


@TLS_SCHEMES
def test_certificates_of_both_ends(places: Places, make_client: MakeClient, scheme: str) -> None:
    address, files = f"{scheme}://{places.servers['mutual']}", places.files
    localhost = f"{scheme}://localhost:{address.rpartition(':')[2]}"
    for where, options in (
        (address, {"certificate": files["here"]}),
        (localhost, {"certificate": files["without-key"], "key": files["key"]}),
    ):
        client = make_client(where, tls=TLS(ca=files["ca"], **options))
        for value in (1, "x" * 2_000_000):
            assert client.call("echo", value) == value
    for options, said in (
        ({}, "asks for a certificate, and was shown none"),
        ({"certificate": files["self"]}, r"does not take the certificate .*: unknown ca"),
    ):
        with pytest.raises((ConnectFailed, ConnectionLost), match=said):
            make_client(address, tls=TLS(ca=files["ca"], **options)).call("echo", 1)


@TLS_SCHEMES
def test_a_handshake_that_stalls(
    places: Places, scripted: Callable[..., str], make_client: MakeClient, scheme: str
) -> None:
    ended = threading.Event()

    def script(line: Any) -> None:
        while line.socket.recv(4096):
            pass
        ended.set()

    address, ca = f"{scheme}://{scripted(script)}", places.files["ca"]
    with pytest.raises(ConnectFailed, match=r"within 0\.1 s"):
        make_client(address, tls=ca, connect_timeout=0.1).call("echo", 1)
    assert ended.wait(20)  # and the connection is not left behind


@pytest.mark.parametrize(
    ("address", "options", "said"),
    [
        *[
            (f"{scheme}://tls", {}, r"certificate cannot be trusted: .*local issuer")
            for _, scheme in SCHEMES
            if scheme != "https"  # it keeps no connection
        ],
        ("tls://mutual", CA, "asks for a certificate, and was shown none"),
    ],
    ids=row_name,
)
def test_with_reconnect_a_certificate_that_is_refused_is_told_at_once(
    places: Places, make_client: MakeClient, address: str, options: Any, said: str, caplog: Any
) -> None:
    where, arguments = given(places, address, options)
    client = make_client(where, reconnect=True, **in_python(arguments))
    for _ in range(3):
        with pytest.raises((ConnectFailed, ConnectionLost), match=said) as caught:
            client.call("echo", 1)
        assert options or getattr(caught.value, "is_permanent")  # noqa: B009
    assert sum(record.name == "rpcstream.client" and record.levelname == "WARNING" for record in caplog.records) == 1
