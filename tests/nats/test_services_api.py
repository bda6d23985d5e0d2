"""NATS's services API: what instances say of themselves to nats-py and to ADR-32's schemas."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest

pytest.importorskip("nats")

from nats.micro.service import SEMVER_REGEX, ServiceInfo, ServicePing, ServiceStats

from rpcstream import Info, RpcError, __version__

from ..kit import UsualServer, until
from ..kit.nats_raw_client import RawClient
from .service import ADD, Service

pytestmark = pytest.mark.nats

#: The fields of answers, and of the endpoints in them (ADR-32).
STANDARD, ENDPOINT = {"type", "name", "id", "version", "metadata"}, {"name", "subject", "queue_group"}
COUNTS = {"num_requests", "num_errors", "last_error", "processing_time", "average_processing_time"}
FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "PING": (STANDARD, set()),
    "INFO": (STANDARD | {"description", "endpoints"}, ENDPOINT | {"metadata"}),
    "STATS": (STANDARD | {"started", "endpoints"}, ENDPOINT | COUNTS),
}


def check(verb: str, answer: dict[str, Any]) -> None:
    """Fail if an answer is not as ADR-32 says."""
    fields, of_endpoints = FIELDS[verb]
    assert answer.keys() == fields
    assert answer["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
    assert SEMVER_REGEX.fullmatch(answer["version"])
    assert {type(each) for each in answer["metadata"].values()} <= {str}
    datetime.fromisoformat(answer.get("started", "2000-01-01"))
    for each in answer.get("endpoints", ()):
        assert each.keys() == of_endpoints
        assert re.fullmatch(r"[A-Za-z0-9_-]+", each["name"])
        assert re.fullmatch(r"[^\s*>]+", each["subject"])
        assert each["queue_group"] == "rpc"
        assert all(type(each[name]) is int and each[name] >= 0 for name in COUNTS & each.keys() - {"last_error"})


async def until_shown(service: Service, count: int = 1) -> None:
    """Wait until so many instances answer: they do so a moment after they have joined."""

    def is_shown() -> bool:
        connections = service.nats.monitor("/connz?subs=1")["connections"]
        subjects = [each for connection in connections for each in connection.get("subscriptions_list", ())]
        return sum(each.startswith(f"$SRV.STATS.{service.name}.") for each in subjects) == count

    await until(is_shown)


async def asked(raw: RawClient, subject: str, count: int = 1) -> list[dict[str, Any]]:
    """The answers to a request, of so many instances, each as ADR-32 says."""
    raw.publish(f"$SRV.{subject}", b"", "answers.here")
    answers = [(await raw.next()).json for _ in range(count)]
    for answer in answers:
        check(subject.partition(".")[0], answer)
    return sorted(answers, key=lambda answer: answer["id"])


async def stats_of(raw: RawClient, service: Service) -> dict[str, Any]:
    """What is told of each method."""
    await until_shown(service)
    [answer] = await asked(raw, f"STATS.{service.name}")
    return {each.pop("name"): each for each in answer["endpoints"]}


async def test_instances_answer_at_all_three_levels(service: Service) -> None:
    async with (
        service.serving(UsualServer(info=Info(version="1.2.3"))),
        service.serving(UsualServer(info=Info(version="1.2.3"))),
        service.raw("answers.*") as raw,
    ):
        await until_shown(service, 2)
        raw.publish(f"$SRV.INFO.{service.name}", b"")  # without a subject for the answer: ignored
        for verb, read in (("PING", ServicePing), ("INFO", ServiceInfo), ("STATS", ServiceStats)):
            kind = await asked(raw, f"{verb}.{service.name}", 2)
            [own] = await asked(raw, f"{verb}.{service.name}.{kind[1]['id']}")
            for answer in (*kind, own, *await asked(raw, verb, 2)):
                assert (answer["name"], answer["version"]) == (service.name, "1.2.3")
                for each in answer.get("endpoints", ()):
                    each.setdefault("data", None)  # nats-py wants it there, and ADR-32 does not
                assert read.from_dict(answer).id == answer["id"]
            assert len({each["id"] for each in kind}) == 2
            assert own["id"] == kind[1]["id"]


async def test_info_names_each_method_and_its_subject(service: Service) -> None:
    server = UsualServer(info=Info(description="Looks at images."))
    for name in ("img.resize", "with blank", "größe"):
        server.add(lambda: None, name=name)
    async with service.serving(server), service.raw("answers.*") as raw:
        await until_shown(service)
        [answer] = await asked(raw, f"INFO.{service.name}")
    endpoints = [(each["name"], each["subject"], each["metadata"]) for each in answer["endpoints"]]
    for name, tokens, method in (
        ("add", "add", "add"),
        ("img_resize", "img.resize", "img.resize"),
        ("with_blank", "with%20blank", "with blank"),
        ("gr__e", "größe", "größe"),
    ):
        assert (name, service.root + tokens, {"method": method}) in endpoints
    assert answer["description"] == "Looks at images."
    assert answer["metadata"] == {"rpcstream": __version__, "openrpc": "rpc.discover"}


async def test_with_metrics_stats_are_those_of_all_calls(service: Service) -> None:
    server = UsualServer(metrics=True)
    async with service.serving(server), service.client() as client, service.raw("answers.*") as raw:
        await client.call("add", 1, 2)
        for method, params in (("fail", [7]), ("fail", [7]), ("fail", [-32602]), ("add", [1])):
            with pytest.raises(RpcError):
                await client.call(method, *params)
        told = await stats_of(raw, service)
    fail, add = told["fail"], told["add"]
    spent = fail["processing_time"]
    assert spent > 0
    assert fail == {
        "subject": f"{service.root}fail",
        "queue_group": "rpc",
        "num_requests": 3,
        "num_errors": 3,
        "last_error": "-32602: Invalid params",
        "processing_time": spent,
        "average_processing_time": spent // 3,
    }
    assert (add["num_requests"], add["num_errors"]) == (2, 1)
    echo = told["echo"]
    assert (echo["num_requests"], echo["average_processing_time"], echo["last_error"]) == (0, 0, "")


async def test_a_flood_of_requests_is_left_unanswered(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    server = UsualServer(info=Info(description="x" * 900_000))
    async with service.serving(server), service.raw("answers.*") as raw:
        await until_shown(service)
        for _ in range(60):
            raw.publish(f"$SRV.INFO.{service.name}", b"", "answers.here")
        raw.publish(f"{service.root}add", ADD, "answers.here")  # comes behind them
        while b'"result":3' not in (await raw.next()).data:
            pass
        assert "left unanswered" in caplog.text


VERSIONS = {
    **{"1.2.3-rc.1+build.5": "1.2.3-rc.1+build.5", "2.1": "0.0.0", "v1.2.3": "0.0.0"},
    **{"1.2.3\n": "0.0.0", "\u0661.2.3": "0.0.0", "the last one": "0.0.0"},
}


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_version_of_another_form_becomes_one_of_semver(service: Service, version: str) -> None:
    async with service.serving(UsualServer(info=Info(version=version))), service.raw("answers.*") as raw:
        await until_shown(service)
        [answer] = await asked(raw, f"PING.{service.name}")
    assert answer["version"] == VERSIONS[version]
