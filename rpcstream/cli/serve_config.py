"""The configuration of `rpcstream-server`: flags, `--set NAME=VALUE` and a file are one set of options."""

import argparse
import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from ..config import MAX_TOKENS, ConfigError, Schema, Values, one_or_all, read_file, read_tokens, warn_of_readers
from ..hub.config import EXCLUSIVE, FIELDS, LOGGING, WHERE, ServerFile, User, authenticate_users
from ..limits import Limits
from ..option import FILE, FLAG, TEXT, Kind, Option, options_of
from ..server.options import GROUPS
from ..server.target import TargetError
from ..supervisor.options import WORKER_DEFAULTS, WorkerOptions
from .options import flag, is_given, option_fault, with_option_names

if TYPE_CHECKING:
    from ..nats.options import NatsLogin
    from ..server import Server


#: Flags that are options of the configuration with the same name.
FLAGS = (
    *("host", "port", "unix", "workers", "debug", "log_level", "access_log", "metrics", "docs", "nats", "token_file"),
)
#: Flags that name files of TLS, and their names in the table `tls` of the configuration.
_TLS_FLAGS = {"certificate": "certificate", "key": "key", "client_ca": "ca"}


def _direct(address: bool | str, folder: str) -> bool | str:
    return False if address == "off" else address


class ServeFile(ServerFile, WorkerOptions, total=False):
    """What the configuration of a server has besides what a hub has, too.

    Attributes:
        nats: the URL of the NATS server to join, with the name of the service behind a slash.
        nats_only: listen at no port.
        nats_direct: the address for messages over NATS's `max_payload`, or "off".
    """

    nats: Annotated[str, Option(None, TEXT)]
    nats_service: Annotated[str, Option(None, TEXT)]
    nats_only: Annotated[bool, Option(False, FLAG)]
    nats_creds: Annotated[str, Option(None, FILE)]
    nats_nkey: Annotated[str, Option(None, FILE)]
    nats_user: Annotated[str, Option(None, TEXT)]
    nats_password_file: Annotated[str, Option(None, FILE)]
    nats_inbox_prefix: Annotated[str, Option(None, TEXT)]
    nats_ca: Annotated[str, Option(None, FILE)]
    nats_certificate: Annotated[str, Option(None, FILE)]
    nats_key: Annotated[str, Option(None, FILE)]
    nats_direct: Annotated[bool | str, Option(None, Kind(str, finish=_direct))]
    nats_trust_identity: Annotated[bool, Option(False, FLAG)]


SERVE = Schema(options_of(ServeFile) | FIELDS, what="a server", prefix="", exclusive=EXCLUSIVE)

_ACCESS = ("token", "token_file", "users", "tls")


class ServeConfig:
    """The configuration of one run for a target.

    Attributes:
        process: how many workers there are, and how they are kept.
        logging: `log_level`, `log_config` and `logging`.
        where: where to listen.
        access: who may connect.
        nats: the service on NATS that is joined: the options without `nats_`, the URL as `url`.
        server: options that the servers of the target are made with.
    """

    def __init__(self, found: Values) -> None:
        self.process: WorkerOptions = _taken(found, *WORKER_DEFAULTS)  # type: ignore[assignment]
        self.logging = _taken(found, *LOGGING)
        self.where = _taken(found, *WHERE)
        self.access = _taken(found, *_ACCESS)
        of_nats = _taken(found, *(name for name in SERVE.names if name.startswith("nats")))
        self.nats = {name.removeprefix("nats_").replace("nats", "url"): value for name, value in of_nats.items()}
        groups: Mapping[str, type] = {**GROUPS, "limits": Limits}
        fields = {name: _taken(found, *(each.name for each in dataclasses.fields(groups[name]))) for name in groups}
        self.server = {**found, **{name: changed for name, changed in fields.items() if changed}}


def _taken(found: Values, *names: str) -> Values:
    """Take these options out of those that were found."""
    return {name: found.pop(name) for name in names if name in found}


def read_config(options: argparse.Namespace) -> ServeConfig:
    """Read the configuration for a target.

    Raises:
        ConfigError: an option is unknown or has a wrong value; the text says where it stands.
        OSError: the file cannot be read.
    """
    given = SERVE.of_arguments(given_options(options, SERVE))
    table: Values = {}
    if options.config is not None:
        folder = os.path.dirname(os.path.abspath(options.config))
        table = SERVE.of_table(read_file(options.config), options.config, folder)
    if "tls" in given and "tls" in table:
        raise ConfigError(f"{options.config}: it sets tls, too: remove --certificate, --key, and --client-ca")
    config = ServeConfig(SERVE.merged(given, table))
    if "unix_mode" in config.where and "unix" not in config.where:
        raise ConfigError("unix_mode needs unix")
    if config.nats.get("only") and (name := next(iter(given.keys() & {"host", "port", "unix"}), None)):
        raise ConfigError(f"argument {name} cannot be used with nats_only, which listens on no port")
    return config


def given_options(options: argparse.Namespace, schema: Schema) -> Values:
    """The options that flags and `--set` give, as they would stand in a file.

    Raises:
        ConfigError: an option is unknown, has a wrong value or is given twice.
    """
    given: Values = {name: getattr(options, name) for name in FLAGS if getattr(options, name) is not None}
    if options.debug:
        given.setdefault("log_level", "info")
    tls = {name: getattr(options, each) for each, name in _TLS_FLAGS.items() if getattr(options, each) is not None}
    if tls:
        given["tls"] = tls
    told: dict[str, list[str]] = {}
    for pair in options.set or ():
        name, _, value = pair.partition("=")
        told.setdefault(name.strip(), []).append(value)
    for name, values in told.items():
        if name in given:
            raise ConfigError(f"argument {name} is given twice")
        given[name] = schema.from_texts(name, values, f"--set {name}")
    return given


@contextmanager
def config_errors(options: argparse.Namespace) -> Iterator[None]:
    """Raise TargetError for a mistake in the configuration, with the names of options as on the command line."""
    try:
        yield
    except OSError as error:
        raise TargetError(f"cannot read {options.config!r}: {error.strerror or error}") from None
    except ConfigError as error:
        raise TargetError(_with_flags(str(error), options)) from None
    except (ValueError, TypeError, ImportError) as error:
        raise TargetError(str(error)) from None


def _with_flags(text: str, options: argparse.Namespace) -> str:
    def written(found: re.Match[str]) -> str:
        name = found[1]
        if name == "tls":
            return "--certificate"
        return flag(name) if name in FLAGS and is_given(options, name) else f"--set {name}"

    return with_option_names(re.sub(r"\bargument ([a-z_]+)", written, text))


# -- who may connect --------------------------------------------------------------------------------------------------


def guard(server: "Server", options: argparse.Namespace, config: ServeConfig) -> None:
    """Have a server ask for the token, or know the users, of the configuration, and use its certificate.

    Raises:
        ValueError: the server has one of these already.
    """
    access = config.access
    file = access.get("token_file")
    if file is not None:
        warn_of_readers(file)
    is_guarded = not access.keys().isdisjoint(("token", "token_file", "users"))
    read = (lambda: read_access(read_config(options), options)) if is_guarded else None
    server.guard(tls=access.get("tls"), read_access=read, watched=file)


def read_access(
    config: ServeConfig, options: argparse.Namespace
) -> tuple[Mapping[str, Any], Callable[[Any], bool] | None]:
    """Who may connect, with the token's file as it is now; see `ReadAccess`.

    Raises:
        ConfigError: the file cannot be read.
    """
    access = config.access
    if "users" in access:
        users: tuple[User, ...] = access["users"]
        known = frozenset(users)
        return {"authenticate": authenticate_users(users)}, lambda identity: getattr(identity, "user", None) in known
    if "token_file" in access:
        place = "--token-file" if options.token_file is not None else "token_file"
        return {"token": one_or_all(read_tokens(access["token_file"], place, most=MAX_TOKENS))}, None
    return ({"token": access["token"]}, None) if "token" in access else ({}, None)


# -- NATS -------------------------------------------------------------------------------------------------------------


def join_nats(server: "Server", nats: Values) -> None:
    """Have the server join a service on NATS.

    Raises:
        TargetError: an option makes no sense, or a file cannot be read.
    """
    if "url" not in nats:
        raise TargetError(f"nats_{next(iter(nats))} needs nats, the address of NATS")
    from ..nats.options import login_from

    files = {name: nats[name] for name in ("ca", "certificate", "key") if name in nats}
    more: Values = {name: nats[name] for name in ("only", "direct", "trust_identity") if name in nats}
    try:
        login = login_from(_login(nats), os.environ)
        if files:
            if not nats["url"].lower().startswith("nats+tls://"):
                raise ValueError(f"{next(iter(files))}= is for TLS, and {nats['url']} is without: nats+tls://")
            from ..tls import TLS

            more["tls"] = TLS(**files)
        server.join_nats(nats["url"], service=nats.get("service"), login=login, **more)
    except (ValueError, OSError) as error:
        raise TargetError(option_fault(error, of_nats=True)) from None
    except ImportError as error:
        raise TargetError(str(error)) from None


def _login(nats: Values) -> "NatsLogin | None":
    from ..nats.options import NatsLogin

    login: Values = {name: nats[name] for name in ("creds", "nkey", "user", "inbox_prefix") if name in nats}
    if "password_file" in nats:
        warn_of_readers(nats["password_file"])
        login["password"] = read_tokens(nats["password_file"], "nats_password_file")[0]
    return NatsLogin(**login) if login else None
