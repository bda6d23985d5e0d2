"""A certificate authority for one run of the tests, and a server's certificate by it, as files."""

from __future__ import annotations

import ssl
import tempfile
from functools import cache
from pathlib import Path

import trustme

from rpcstream.tls import TLS


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Removed when the program ends."""
    folder = tempfile.TemporaryDirectory(prefix="rpcstream-tests-")
    authority, here = trustme.CA(), Path(folder.name)
    authority.cert_pem.write_to_path(here / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(here / "server.pem")
    return folder


def authority() -> Path:
    """The file of the authority, for clients."""
    return Path(_folder().name) / "ca.pem"


def server_tls() -> TLS:
    return TLS(certificate=Path(_folder().name) / "server.pem")


def client_side() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority())
