"""The pages of `rpcstream help TOPIC`: what `--help` has no room for.

Owns their texts, each line of at most 80 columns. Knows the names of the types of parameters; imported when help is
asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from .items import KINDS

#: By the name of the topic: what the page is about, and its text.
TOPICS: dict[str, tuple[str, str]] = {
    "values": (
        "parameters: items, types, files",
        f"""\
Parameters are items by name, or --positional VALUE ... (not both in one call).

  key=value        a number as JSON writes it, true, false, null;
                   anything else is text (007, nan)
  key:TYPE=value   TYPE is one of
                   {", ".join(KINDS)}
  key:=JSON        the same as key:json=JSON
  key=@file        text from a file (UTF-8); key:str=@x is the text "@x" itself
  key:=@file       JSON from a file
  key:bytes=text   the bytes of the text; key:bytes=@file those of a file,
                   as -f key=file
  key:image=file   as -i key=file
  key:ndarray=...  a .npy file (x.npy or @file) or JSON;
                   key:ndarray:float32=[1,2] says the dtype
  -                all parameters: a JSON object or array from standard input

A value without a type goes as METHOD takes it: text=1 is text for a str, and
points:ndarray=[1] is in the dtype that is wanted. What METHOD takes is asked
for once, and kept for an hour; --no-schema sends it as it looks.

A file called - is standard input. A VALUE may have a type too:
  rpcstream sum --positional 1 :int=2 :=[3]
Quote what the shell would take for itself: blanks, [], {{}}, *, $.""",
    ),
    "output": (
        "forms of a result: --format, -o, --list",
        """\
Results go to standard output; errors, complaints, progress and -v to standard
error.

--format auto      text on a terminal, json in a pipe (the default)
--format text      indented JSON; arrays, images and bytes are described, and on
                   a terminal with colours an image is shown as a small picture
--format table     a list of objects: a row each, a column for each key
--format json      JSON on one line; arrays, images and bytes as tagged objects
--format raw       text without quotes, bytes as they are, an array as .npy, an
                   image as its file

-o FILE saves an array as .npy, an image in the format of FILE's ending, bytes
as they are, anything else as JSON, and arrays and images too if FILE ends in
.json. FILE - is standard output. A result that does not fit the ending is saved
in its own form, with a complaint and exit status 2.

Control characters from the server are escaped on a terminal. NO_COLOR and
TERM=dumb switch colours off.

--list shows the methods of the server as signatures: --format json gives the
whole description, --format raw the names alone. METHOD --describe shows one.""",
    ),
    "addresses": (
        "forms of --uri",
        """\
  host, host:port            lines over TCP; [::1]:8545 for IPv6
  tcp://host:port            the same
  tls://host:port            lines over TLS
  unix:///run/x.sock         lines on a Unix socket
  http://host:port/path      HTTP, also https:// and http+unix:///run/x.sock
  ws://host:port/path        WebSocket, also wss://
  nats://host:port/service   a service on NATS, also nats+tls://; help nats

A server takes lines, HTTP and WebSocket at the same port. HTTP carries no
events, and each call over it is a request of its own.""",
    ),
    "tls": (
        "encrypted connections, certificates, tokens",
        """\
  --uri tls://HOST:PORT     lines over TLS; also https:// and wss://
  --ca FILE                 trust the authorities (or the one certificate) in
                            this PEM file, in place of the system's
  --certificate FILE        your own certificate, for servers that ask for one
  --key FILE                its private key, unless that is in the same file

The server's certificate and its name are always verified. For a self-signed
certificate give a copy of it as --ca.

A server asks for a token: RPCSTREAM_TOKEN, --token-file FILE, or --token TOKEN
(which other users of the machine can see). Over a network use a token with TLS
only.""",
    ),
    "nats": (
        "services on NATS, and logins",
        """\
  nats://HOST/SERVICE                   any instance of the service answers
  nats://HOST:PORT,HOST:PORT/SERVICE    several NATS servers of one cluster
  nats+tls://HOST/SERVICE               encrypted, or not at all; --ca,
                                        --certificate and --key as for tls://

Who you are for NATS, one of
  --nats-creds FILE       a credentials file
  --nats-nkey FILE        a file with the seed of an nkey
  --nats-user NAME        a name; the password is in the variable
                          RPCSTREAM_NATS_PASSWORD, or in the file of
  --nats-password-file FILE
                          (without a password NAME is a token of NATS)
  --nats-inbox-prefix SUBJECT
                          where your permissions name other inboxes than _INBOX
Also as variables, RPCSTREAM_NATS_CREDS..., and in profiles, nats_creds...
--token is for the server that answers, not for NATS.

rpcstream-server TARGET --nats nats://HOST --service NAME joins a service:
  --nats-only             listen at no port
  --nats-direct HOST:PORT, or off
                          where clients connect for messages that are too large
                          for NATS
  --nats-trust-identity   tell the server's authenticate function who calls from
                          another account, as NATS says
  --nats-ca, --nats-certificate, --nats-key FILE
                          for nats+tls://
and the logins above. With --workers each of them is an instance.""",
    ),
    "streams": (
        "--stream and progress",
        """\
--stream METHOD shows each item of METHOD's stream as it comes, like a result:
in a pipe at once and on one line. Without it, the items come as one array.

-o x.png saves the items as x-0001.png, x-0002.png...; -o - and devices take
all of them. There is no time-out but --timeout, which is for the whole stream.
Ctrl-C, and a reader that goes away (| head), stop METHOD at the server.

What METHOD reports as its progress is shown on standard error if that is a
terminal; --progress and --no-progress decide otherwise.""",
    ),
    "events": (
        "--subscribe and --publish",
        """\
--subscribe PATTERN shows one event on a line, until Ctrl-C:

  rpcstream --subscribe ticks               the values of one topic
  rpcstream --subscribe 'sensors.*'         with the topic before each value
  rpcstream --subscribe '>' --format json   {"topic": ..., "value": ...}

In a PATTERN, * stands for one level between dots, > at the end for one or more.
In a pipe each event is JSON on a line: the value, or for a pattern an object
with topic and value. --format raw has the values alone; -o x.png saves them as
x-0001.png, x-0002.png...

--max-events N ends after N events with status 0, --timeout SECONDS after that
time with status 4. A lost connection ends it with status 3; with --reconnect it
goes on, and says that events may be missing. HTTP has no events: use the same
server's ws:// or host:port.

--publish TOPIC VALUE sends an event by a hub; prints to how many connections:

  rpcstream --publish sensors.roof 31.5 --retain
  rpcstream --publish chat text=hello from:str=7     an object
  rpcstream --publish chat ':=[1, 2]'                JSON; - reads it
  rpcstream --publish camera.1 -i ./cat.png          an image""",
    ),
    "measuring": (
        "--repeat, and -v with times",
        """\
--repeat N makes the same call N times and shows how long it takes:

  rpcstream sum a=1 b=2 --repeat 10000 --concurrency 8

With --concurrency C there are C threads, each of which has a connection of its
own and makes one call after the other. Times are those of calls that succeeded;
the first call of a connection takes the time to connect as well. Percentiles
are exact to 1 %.

Calls that failed are counted by kind, and the exit status is that of the worst
one. Ctrl-C shows what was measured so far. --timeout is for each call.
--format json gives the report as JSON: times in milliseconds.

-v shows of one call, in milliseconds from its beginning, when there was a
connection, when the message was sent, when the first byte of an answer came,
and when all of it was there. Over TLS, HTTP and WebSocket, and for streams, a
message counts as sent when the event loop has taken it.""",
    ),
    "stubs": (
        "--stubs and --check: typed clients",
        """\
--stubs writes types of the methods of a server, for type checkers and editors:

  rpcstream --stubs python --uri 10.0.0.5:8545 -o api.py
  rpcstream --stubs typescript -o api.ts
  rpcstream --stubs python openrpc.json        of a document; - reads it

In Python a client is cast to what was written:

  from typing import cast
  from rpcstream import Client
  from api import Api
  api = cast(Api, Client("10.0.0.5:8545"))     AsyncApi for an AsyncClient

In TypeScript: new Client<Api>(url), with Client from the package rpcstream.

The same document gives the same bytes. --check FILE writes nothing: it ends
with status 1, and shows the difference, where FILE is not what would be
written now.

  rpcstream --stubs python --check api.py""",
    ),
    "shell": (
        "--shell: lines in place of command lines",
        """\
rpcstream --shell [options for the connection] reads lines, on one connection:

  rpcstream> sum a=1 b=2
  rpcstream> --stream count upto=3
  rpcstream> help sum

A line is what stands behind `rpcstream` on a command line, with the same items,
options and quotes. Tab completes methods, parameters, options and files, with
  pip install "rpcstream[shell]"
The history is kept in ~/.local/state/rpcstream/history, for this user alone; a
line that begins with a blank is left out.

Ctrl-C gives up a call, Ctrl-D and exit leave. A script from standard input
(rpcstream --shell < lines) ends with the exit status of its last line.""",
    ),
    "profiles": (
        "variables, the configuration file, --profile",
        """\
Options that stay the same can stand in variables or in a file.

variables: RPCSTREAM_ADDRESS (or _HOST and _PORT), RPCSTREAM_TOKEN, _TOKEN_FILE,
_CA, _CERT, _KEY, _TIMEOUT, _CONNECT_TIMEOUT, _RETRIES, _RETRY;
RPCSTREAM_PROFILE and RPCSTREAM_CONFIG for --profile and --config.

~/.config/rpcstream/config.toml (on Windows in %APPDATA%):

  timeout = 30                # for all profiles
  profile = "lab"             # the one that is taken where none is named

  [profiles.lab]
  address = "tls://gpu.lab.example:8545"
  ca = "lab-ca.pem"           # relative to the folder of this file
  token_file = "lab.token"

  rpcstream --profile lab vectorize description='A cat' -i photo=./cat.png

An option takes precedence over a variable, that over the profile, that over the
rest of the file. A token that stands beside an address in the file is shown to
no other address.""",
    ),
    "exit-codes": (
        "exit statuses",
        """\
  0    a result (or the notification was sent)
  1    an error reply
  2    wrong use: an item, an option, a file; or a result that does not fit
       its file
  3    no connection, or a lost one
  4    a time-out, here or at the server
  130  interrupted by Ctrl-C
  141  the reader of the output has exited""",
    ),
}

_INDEX = """\
rpcstream help TOPIC shows one of these pages:

{names}

rpcstream --help has the options, rpcstream METHOD --describe tells about a
method of the server. (A method that is called help is called by rpcstream -- help.)"""


def topic_of(arguments: Sequence[str]) -> str | None:
    """The topic that a command line asks help for: "" for the list of topics, None if it is no such command line.

    `help` is a method if options or parameters come with it.
    """
    if not arguments or arguments[0] != "help" or len(arguments) > 2:
        return None
    topic = arguments[1] if len(arguments) > 1 else ""
    return None if "=" in topic or topic.startswith("-") else topic


def help_text(topic: str) -> str | None:
    """The page of a topic, or the list of topics for ""; None where there is no such topic."""
    if topic:
        return TOPICS[topic][1] if topic in TOPICS else None
    return _INDEX.format(names="\n".join(f"  {name:12} {summary}" for name, (summary, _) in TOPICS.items()))


def unknown_topic(topic: str) -> str:
    """A sentence about a topic that there is not."""
    from ..nearest import did_you_mean, nearest

    near = did_you_mean(nearest(topic, TOPICS))
    return (
        f"there is no help about {topic!r}{near}; `rpcstream help` lists the topics (METHOD --describe shows a method)"
    )
