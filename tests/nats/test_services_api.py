"""NATS's services API: what instances say of themselves to nats-py, to ADR-32's schemas, and to the program `nats`."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

pytest.importorskip("nats")

from nats.micro.service import SEMVER_REGEX, ServiceInfo, ServicePing, ServiceStats

from rpcstream import __version__
from rpcstream.nats.link import NatsLink, Subscription
from rpcstream.nats.options import NatsOptions
from rpcstream.nats.services_api import BURST, RATE, ServiceDescription, ServicesApi, endpoint_name, semver
from rpcstream.nats.subjects import QUEUE, encoded
from rpcstream.observe.metrics import CallMetrics

from ..kit import until
from ..kit.nats_server import NatsServer
from ..kit.plain_nats import PlainClient, plain_client

pytestmark = pytest.mark.nats

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+$")]
Count = Annotated[int, Meta(ge=0)]


class Standard(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that all answers have (ADR-32, "Standard Field")."""

    type: Literal["io.nats.micro.v1.ping_response"]
    name: Name
    id: Annotated[str, Meta(min_length=1)]
    version: Annotated[str, Meta(pattern=SEMVER_REGEX.pattern)]
    metadata: dict[str, str]


class Endpoint(Struct, kw_only=True, forbid_unknown_fields=True):
    name: Name
    subject: Annotated[str, Meta(pattern=r"^[^\s*>]+$")]
    queue_group: Literal["rpc"]


class EndpointInfo(Endpoint, kw_only=True):
    metadata: dict[str, str]


class Info(Standard, kw_only=True):
    type: Literal["io.nats.micro.v1.info_response"]  # type: ignore[mutable-override]
    description: str
    endpoints: list[EndpointInfo]


class EndpointStats(Endpoint, kw_only=True):
    num_requests: Count
    num_errors: Count
    last_error: str
    processing_time: Count
    average_processing_time: Count
    data: Any = None


class Stats(Standard, kw_only=True):
    type: Literal["io.nats.micro.v1.stats_response"]  # type: ignore[mutable-override]
    started: datetime
    endpoints: list[EndpointStats]


SCHEMAS: dict[str, type[Standard]] = {"PING": Standard, "INFO": Info, "STATS": Stats}


class Clock:
    """Seconds, as the test sets them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Instance:
    """An instance of a service whose methods answer nothing; its services API answers."""

    def __init__(self, about: ServiceDescription, **options: Any) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self.about = about
        self.api = ServicesApi(about, endpoints=lambda: self.subscriptions, **options)

    async def join(self, link: NatsLink, *methods: str) -> None:
        self.subscriptions = {
            name: await link.subscribe(f"rpc.{self.about.name}.{encoded(name)}", lambda message: None, QUEUE)
            for name in methods
        }
        await self.api.start(link)
        await link.flush()


Connect = Callable[[], Any]


@pytest.fixture
async def connect(shared_nats: NatsServer) -> AsyncIterator[Connect]:
    """Makes links to the server, which the test's end closes."""
    links: list[NatsLink] = []

    async def connect() -> NatsLink:
        links.append(await NatsLink.connect(NatsOptions(servers=(f"127.0.0.1:{shared_nats.port}",))))
        return links[-1]

    yield connect
    for link in links:
        await link.close()


@pytest.fixture
async def client(shared_nats: NatsServer) -> AsyncIterator[PlainClient]:
    async with plain_client(shared_nats.url) as made:
        yield made


async def asked(client: PlainClient, subject: str, count: int) -> list[dict[str, Any]]:
    """The answers to a request, of so many instances."""
    inbox, answers = client.new_inbox(), list[dict[str, Any]]()
    subscription = await client.subscribe(inbox)
    await client.publish(subject, b"", reply=inbox)
    while len(answers) < count:
        answers.append(json.loads((await subscription.next_msg(20)).data))
    await subscription.unsubscribe()
    return sorted(answers, key=lambda answer: answer["id"])


def about(name: str, instance: str = "one", **more: Any) -> ServiceDescription:
    return ServiceDescription(name=name, instance=instance, version="1.2.3", **more)


async def test_instances_answer_at_all_three_levels(connect: Connect, client: PlainClient) -> None:
    for number in ("one", "two"):
        instance = Instance(about("levels", number, description="Looks at images."))
        await instance.join(await connect(), "detect", "img.resize", "with blank")
    for verb, schema in SCHEMAS.items():
        kind = await asked(client, f"$SRV.{verb}.levels", 2)
        assert [answer["id"] for answer in kind] == ["one", "two"]
        own = await asked(client, f"$SRV.{verb}.levels.two", 1)
        assert own[0]["id"] == "two"
        everyone = await asked(client, f"$SRV.{verb}", 2)
        for answer in (*kind, *own, *everyone):
            msgspec.convert(answer, schema)
            assert answer["name"] == "levels"
            assert answer["version"] == "1.2.3"


async def test_info_names_each_method_and_its_subject(connect: Connect, client: PlainClient) -> None:
    instance = Instance(about("named", description="Looks at images.", takes_binary=False))
    await instance.join(await connect(), "detect", "img.resize", "with blank", "größe")
    (answer,) = await asked(client, "$SRV.INFO.named", 1)
    info = ServiceInfo.from_dict(answer)
    assert [(each.name, each.subject, each.metadata) for each in info.endpoints] == [
        ("detect", "rpc.named.detect", {"method": "detect"}),
        ("img_resize", "rpc.named.img.resize", {"method": "img.resize"}),
        ("with_blank", "rpc.named.with%20blank", {"method": "with blank"}),
        ("gr__e", "rpc.named.größe", {"method": "größe"}),
    ]
    assert info.description == "Looks at images."
    assert info.metadata == {
        "rpcstream": __version__,
        "openrpc": "rpc.discover",
        "binary": "0",
        "stats": "requests",
    }


async def test_nats_py_reads_the_documents(connect: Connect, client: PlainClient) -> None:
    instance = Instance(about("read"))
    await instance.join(await connect(), "detect")
    (ping,) = await asked(client, "$SRV.PING.read", 1)
    assert ServicePing.from_dict(ping).id == "one"
    (answer,) = await asked(client, "$SRV.STATS.read", 1)
    answer["endpoints"][0].setdefault("data", None)  # nats-py wants it there, and ADR-32 does not
    stats = ServiceStats.from_dict(answer)
    assert stats.started == instance.about.started.replace(tzinfo=None)
    assert stats.endpoints[0].num_requests == 0


async def test_without_metrics_the_requests_are_those_that_nats_delivered(
    connect: Connect, client: PlainClient
) -> None:
    instance = Instance(about("counted"))
    await instance.join(first := await connect(), "a", "b")
    for _ in range(3):
        await client.publish("rpc.counted.a", b"{}")
    (answer,) = await asked(client, "$SRV.STATS.counted", 1)
    assert {each["name"]: each["num_requests"] for each in answer["endpoints"]} == {"a": 3, "b": 0}
    assert answer["metadata"]["stats"] == "requests"

    for _ in range(2):
        await client.publish("rpc.counted.a", b"{}")
    await client.flush()
    await until(lambda: instance.subscriptions["a"].received == 5)
    await first.close()
    await instance.join(await connect(), "a", "b", "c")  # as after a lost connection
    await client.publish("rpc.counted.a", b"{}")
    (answer,) = await asked(client, "$SRV.STATS.counted", 1)
    assert {each["name"]: each["num_requests"] for each in answer["endpoints"]} == {"a": 6, "b": 0, "c": 0}


async def test_with_metrics_stats_are_those_of_all_calls(connect: Connect, client: PlainClient) -> None:
    metrics = CallMetrics({"a", "b"}.__contains__, [-32602])
    instance = Instance(about("measured"), metrics=metrics)
    await instance.join(await connect(), "a", "b")
    metrics.ended("a", 0, 0.002)
    metrics.ended("a", -32602, 0.001)
    metrics.ended("a", 7, 0.001)
    metrics.refused("a", -32602)
    (answer,) = await asked(client, "$SRV.STATS.measured", 1)
    msgspec.convert(answer, SCHEMAS["STATS"])
    first, second = answer["endpoints"]
    assert first == {
        "name": "a",
        "subject": "rpc.measured.a",
        "queue_group": "rpc",
        "num_requests": 4,
        "num_errors": 3,
        "last_error": "-32602: Invalid params",
        "processing_time": 4_000_000,
        "average_processing_time": 1_000_000,
        "data": {"errors": {"-32602": 2, "7": 1}},
    }
    assert (second["num_requests"], second["average_processing_time"], second["last_error"]) == (0, 0, "")
    assert answer["metadata"]["stats"] == "calls"


async def test_documents_of_many_methods_are_cut_to_a_message_and_say_so(connect: Connect, client: PlainClient) -> None:
    link = await connect()
    instance = Instance(about("many"))
    await instance.join(link, "detect")
    one = instance.subscriptions["detect"]
    instance.subscriptions = {f"group.a_method_with_a_long_name.{number}" * 3: one for number in range(10_000)}
    for verb in ("INFO", "STATS"):
        (answer,) = await asked(client, f"$SRV.{verb}.many", 1)
        msgspec.convert(answer, SCHEMAS[verb])
        kept = len(answer["endpoints"])
        assert int(answer["metadata"]["endpoints_left_out"]) == 10_000 - kept
        size = len(json.dumps(answer, separators=(",", ":")))
        assert link.max_payload * 0.99 < size <= link.max_payload


def test_a_document_that_fits_exactly_is_whole() -> None:
    class Fake:
        subject, received = "rpc.x.a", 0

    api = ServicesApi(about("x"), endpoints=lambda: {str(number): Fake() for number in range(100)})
    whole = api.info(1 << 20)
    for size in range(len(whole) - 500, len(whole) + 200):
        cut = api.info(size)
        answer = json.loads(cut)
        assert len(cut) <= size
        left_out = int(answer["metadata"].get("endpoints_left_out", 0))
        assert len(answer["endpoints"]) + left_out == 100
    assert left_out == 0


async def test_a_flood_of_requests_is_left_unanswered(
    connect: Connect, client: PlainClient, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    instance = Instance(about("flooded", description="x" * 900_000), clock=clock)
    await instance.join(await connect(), "detect")
    size = len(json.dumps((await asked(client, "$SRV.INFO.flooded", 1))[0], separators=(",", ":")))
    answered = -(-BURST // size)  # the last of them exceeds what is left
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    for _ in range(50):
        await client.publish("$SRV.INFO.flooded", b"", reply=inbox)
    await client.publish("rpc.flooded.detect", b"")  # comes behind them
    await until(lambda: instance.subscriptions["detect"].received == 1)
    for _ in range(answered - 1):
        await subscription.next_msg(20)
    assert "left unanswered" in caplog.text

    clock.now = 2 * size / RATE
    await client.publish("$SRV.PING.flooded", b"", reply=inbox)
    assert json.loads((await subscription.next_msg(20)).data)["type"].endswith("ping_response")
    assert subscription.pending_msgs == 0  # none of the others was answered


async def test_a_request_without_a_reply_subject_is_ignored(connect: Connect, client: PlainClient) -> None:
    instance = Instance(about("silent"))
    await instance.join(await connect(), "detect")
    await client.publish("$SRV.INFO.silent", b"")
    assert (await asked(client, "$SRV.PING.silent", 1))[0]["id"] == "one"


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.2.3", "1.2.3"),
        ("1.2.3-rc.1+build.5", "1.2.3-rc.1+build.5"),
        ("0", "0.0.0"),
        ("2.1", "2.1.0"),
        ("v1.2.3", "1.2.3"),
        ("2026.05.01", "0.0.0+2026.05.01"),
        ("the last one", "0.0.0+the-last-one"),
        ("", "0.0.0"),
    ],
)
def test_a_version_of_another_form_becomes_one_of_semver(version: str, said: str) -> None:
    assert semver(version) == said
    told = ServicesApi(ServiceDescription(name="x", instance="y", version=version), endpoints=dict)
    metadata = json.loads(told.ping(1000))["metadata"]
    assert metadata.get("version", said) == (version if version != said else said)


@given(st.text(max_size=30))
def test_every_version_and_name_gets_a_form_that_adr_32_permits(text: str) -> None:
    assert SEMVER_REGEX.match(semver(text))
    assert re.fullmatch(r"[A-Za-z0-9_-]+", endpoint_name(text))


async def test_the_program_nats_lists_and_shows_the_service(shared_nats: NatsServer, connect: Connect) -> None:
    program = shutil.which("nats")
    if program is None:
        pytest.skip("the command line of NATS, natscli, is not installed")
    metrics = CallMetrics({"detect"}.__contains__, [])
    instance = Instance(about("shown", description="Looks at images."), metrics=metrics)
    await instance.join(await connect(), "detect")
    metrics.ended("detect", 0, 0.5)

    async def run(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            program, "--server", shared_nats.url, "micro", *arguments, stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0].decode()

    assert re.search(r"shown .* 1\.2\.3 .* one .* Looks at images\.", await run("list"))
    shown = await run("info", "shown")
    assert "rpc.shown.detect" in shown
    assert "Queue Group: rpc" in shown
    assert re.search(r"detect .* 1 .* 500ms", await run("stats", "shown"))
