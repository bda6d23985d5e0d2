"""Binary frames through a hub: payloads are passed on as they are, to ends that read frames; others get base64."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from rpcstream.hub import Hub

from .conftest import CALL, FramePeer, OpenHub, RunningHub, frame_of

#: Two payloads, of which the first is padded.
FIRST, SECOND = bytes(range(256)) * 20 + b"odd", b"\n@\x00{}" * 1000

#: How `{"$bin": 0}` may be written.
SAME_PLACE = ['{"$bin":0}', '{ "$bin"\t:\r\n 0 }', '{"\\u0024bin":0}', '{"$\\u0062\\u0069\\u006E":0}', '{"$bin":-0}']


def bin_(number: int) -> dict[str, int]:
    return {"$bin": number}


def text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


async def pair(running_hub: RunningHub, *, frames: str = "both") -> tuple[FramePeer, FramePeer]:
    """A provider of `work` and a caller, of which those read frames that `frames` names."""
    provider = await running_hub.frame_peer(declares=frames in ("both", "provider"))
    caller = await running_hub.frame_peer(declares=frames in ("both", "caller"))
    await provider.offers("p", "work")
    return provider, caller


def call(call_id: Any = 1, method: str = "work", params: Any = None, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params or [bin_(0)], **more}


# -- what is passed on ------------------------------------------------------------------------------------------------


async def test_a_call_and_its_reply(running_hub: RunningHub) -> None:
    provider, caller = await pair(running_hub)
    caller.say_frame(call("x", params={"b": [{"data": bin_(1)}], "a": bin_(0)}), FIRST, SECOND)
    request, payloads = await provider.frame()
    there = request.pop("id")
    # In the order in which they stand there, with numbers of their own.
    assert request == {"jsonrpc": "2.0", "method": "work", "params": {"b": [{"data": bin_(0)}], "a": bin_(1)}}
    assert payloads == [SECOND, FIRST]
    provider.say_frame({"jsonrpc": "2.0", "id": there, "result": [bin_(1), bin_(0), 1.10]}, SECOND, FIRST)
    reply, payloads = await caller.frame()
    assert reply == {"jsonrpc": "2.0", "id": "x", "result": [bin_(0), bin_(1), 1.1]}
    assert payloads == [FIRST, SECOND]


@pytest.mark.parametrize("place", SAME_PLACE)
async def test_ends_without_frames_get_base64(running_hub: RunningHub, place: str) -> None:
    provider, caller = await pair(running_hub, frames="")
    caller.say_frame(CALL % ("7", "work", f'[{place},"text"]'), FIRST)
    request = await provider.hear()
    assert request["params"] == [text(FIRST), "text"]
    provider.say_frame(f'{{"jsonrpc":"2.0","result":{{"data":{place}}},"id":{request["id"]}}}', SECOND)
    assert await caller.hear() == {"jsonrpc": "2.0", "id": 7, "result": {"data": text(SECOND)}}


@pytest.mark.parametrize("place", SAME_PLACE)
async def test_each_way_to_write_a_place(running_hub: RunningHub, place: str) -> None:
    provider, caller = await pair(running_hub)
    caller.say_frame(CALL % ("7", "work", f'["{{}}\\"$bin\\u0001",{place}]'), FIRST)
    request, payloads = await provider.frame()
    assert (request["params"], payloads) == (['{}"$bin\x01', bin_(0)], [FIRST])


@pytest.mark.parametrize("frames", ["provider", "caller"])
async def test_one_end_reads_frames(running_hub: RunningHub, frames: str) -> None:
    provider, caller = await pair(running_hub, frames=frames)
    caller.say_frame(call(), FIRST)
    if frames == "provider":
        request, payloads = await provider.frame()
        assert (request["params"], payloads) == ([bin_(0)], [FIRST])
    else:
        request = await provider.hear()
        assert request["params"] == [text(FIRST)]
    provider.say_frame({"jsonrpc": "2.0", "id": request["id"], "result": bin_(0)}, SECOND)
    if frames == "caller":
        reply, payloads = await caller.frame()
        assert (reply["result"], payloads) == (bin_(0), [SECOND])
    else:
        assert (await caller.hear())["result"] == text(SECOND)


async def test_an_end_that_declares_itself_later(running_hub: RunningHub) -> None:
    provider, caller = await pair(running_hub, frames="")
    caller.say_frame(call(), FIRST)
    assert (await provider.hear())["params"] == [text(FIRST)]
    await provider.declare()
    caller.say_frame(call(), FIRST)
    assert (await provider.frame())[1] == [FIRST]


async def test_items_and_progress(running_hub: RunningHub) -> None:
    provider, caller = await pair(running_hub)
    upload = {"$type": "stream", "id": "s"}
    caller.say_frame(call("x", params=[bin_(0), upload], stream=5), FIRST)
    request, payloads = await provider.frame()
    assert (request["params"][0], payloads) == (bin_(0), [FIRST])
    for method, name in (("$/progress", "token"), ("$/item", "id")):
        params = {"value": {"a": bin_(0)}, name: request["id"], "more": bin_(1)}
        provider.say_frame({"jsonrpc": "2.0", "method": method, "params": params}, SECOND, FIRST)
        message, payloads = await caller.frame()
        assert message["params"] == {name: "x", "value": {"a": bin_(0)}}
        assert payloads == [SECOND]
    there = request["params"][1]["id"]
    provider.say({"jsonrpc": "2.0", "method": "$/credit", "params": {"stream": there, "n": 1}})
    assert (await caller.hear())["params"] == {"stream": "s", "n": 1}
    caller.say_frame({"jsonrpc": "2.0", "method": "$/item", "params": {"stream": "s", "value": bin_(0)}}, FIRST)
    message, payloads = await provider.frame()
    assert (message["params"], payloads) == ({"stream": there, "value": bin_(0)}, [FIRST])
    provider.say_frame(
        {"jsonrpc": "2.0", "id": request["id"], "error": {"code": 5, "message": "m", "data": bin_(0)}}, FIRST
    )
    message, payloads = await caller.frame()
    assert (message["error"]["data"], payloads) == (bin_(0), [FIRST])


async def test_notifications_and_events(running_hub: RunningHub) -> None:
    provider, caller = await pair(running_hub)
    plain = await running_hub.frame_peer(declares=False)
    for peer, topic in ((provider, "t"), (plain, "*")):
        await peer.result("rpc.subscribe", {"topic": topic})
    caller.say_frame({"jsonrpc": "2.0", "method": "work", "params": {"a": bin_(0)}}, FIRST)
    message, payloads = await provider.frame()
    assert (message, payloads) == ({"jsonrpc": "2.0", "method": "work", "params": {"a": bin_(0)}}, [FIRST])
    caller.say_frame(call(1, "rpc.notify", {"params": [1, bin_(0)], "client": "p", "method": "m"}), SECOND)
    message, payloads = await provider.frame()
    assert (message, payloads) == ({"jsonrpc": "2.0", "method": "m", "params": [1, bin_(0)]}, [SECOND])
    assert (await caller.hear())["result"] is True
    caller.say_frame(call(2, "rpc.publish", ["t", bin_(0), True]), FIRST)
    assert (await caller.hear())["result"] == 2
    message, payloads = await provider.frame()
    assert (message["params"], payloads) == ({"topic": "t", "value": bin_(0)}, [FIRST])
    assert (await plain.hear())["params"] == {"topic": "t", "value": text(FIRST)}
    # Kept for those that come later.
    for declares in (True, False):
        late = await running_hub.frame_peer(declares=declares)
        await late.result("rpc.subscribe", {"topic": "t"})
        if declares:
            message, payloads = await late.frame()
            assert (message["params"]["value"], payloads) == (bin_(0), [FIRST])
        else:
            assert (await late.hear())["params"]["value"] == text(FIRST)


async def test_other_members_are_passed_on_or_left_out_with_their_payloads(running_hub: RunningHub) -> None:
    provider, caller = await pair(running_hub)
    caller.say_frame(call(timeout=50, params=[bin_(1)], mine={"x": bin_(0)}), FIRST, SECOND)
    request, payloads = await provider.frame()
    assert sorted(map(json.dumps, (request["mine"]["x"], request["params"][0]))) == ['{"$bin": 0}', '{"$bin": 1}']
    assert payloads[request["mine"]["x"]["$bin"]] == FIRST
    provider.say_frame({"jsonrpc": "2.0", "id": request["id"], "mine": bin_(0), "result": bin_(1)}, FIRST, SECOND)
    reply, payloads = await caller.frame()
    assert (reply, payloads) == ({"jsonrpc": "2.0", "id": 1, "result": bin_(0)}, [SECOND])


async def test_batches_go_as_base64(running_hub: RunningHub) -> None:
    provider, caller = await pair(running_hub)
    caller.say([call(1, params=[1]), call(2, params=[2])])
    for payload in (FIRST, SECOND):
        there = (await provider.hear())["id"]
        provider.say_frame({"jsonrpc": "2.0", "id": there, "result": bin_(0)}, payload)
    assert [each["result"] for each in await caller.hear()] == [text(FIRST), text(SECOND)]


# -- what is no place of a payload ------------------------------------------------------------------------------------


async def test_what_only_looks_like_a_place_stays_as_it_is_in_text(running_hub: RunningHub) -> None:
    """Also where it is long, so that its strings are cut out."""
    provider, caller = await pair(running_hub)
    for value in ([bin_(0)], [bin_(0), "x" * 20_000], [{"data": bin_(7), "$bin": 0}, '{"$bin":0}']):
        caller.say(call(params=value))
        request = await provider.hear()
        assert request["params"] == value
        provider.say({"jsonrpc": "2.0", "id": request["id"], "result": value})
        assert (await caller.hear())["result"] == value


WRONG = {
    "data of the user that looks like a place": '[{"$bin":0},{"$bin":0}]',
    "of the same number, one with escapes": '[{"$bin":0},{"\\u0024bin":0}]',
    "no payload": '[{"$bin":0},{"$bin":1}]',
    "no place": "[1]",
    "a place in an object that is not read": '[{"a":{"$bin":0},"a":1}]',
    "one of two members with one name": '[{"a":{"$bin":0},"a":{"$bin":0}}]',
    "the same with escapes": '[{"a":{"$bin":0},"a":{"$\\u0062in":0}}]',
    "a name that comes again": '[{"$bin":0,"$bin":0}]',
    "a name that comes again, elsewhere": '[{"$bin":5,"$bin":0},{"b":1,"b":{"x":{"$bin":0,"y":1}}}]',
    "a place that another place hides": '[{"a":{"$bin":0},"a":{"$bin":5,"$bin":0}}]',
    "besides others": '[{"$bin":0},{"$bin":1,"x":2}]',
    "a number that is none": '[{"$bin":0.0}]',
    "a number over all": '[{"$bin":18446744073709551616}]',
    "a text": '[{"$bin":"0"}]',
}


@pytest.mark.parametrize("params", WRONG.values(), ids=WRONG)
async def test_what_two_readers_may_read_differently_goes_nowhere(running_hub: RunningHub, params: str) -> None:
    """As a request, a notification, what is published, and a reply."""
    provider, caller = await pair(running_hub)
    await provider.result("rpc.subscribe", {"topic": "t"})
    for message in (
        CALL % ("1", "work", params),
        '{"jsonrpc":"2.0","method":"work","params":%s}' % params,  # noqa: UP031 (it has braces)
        CALL % ("1", "rpc.publish", f'["t",{params}]'),
        CALL % ("1", "rpc.notify", f'["p","m",{params}]'),
    ):
        caller.say_frame(message, FIRST)
        assert (await caller.hear())["error"]["code"] == -32600, message
    caller.say(call(2, params=[1]))
    there = (await provider.hear())["id"]
    provider.say_frame('{"jsonrpc":"2.0","id":%d,"result":%s}' % (there, params), FIRST)  # noqa: UP031
    reply = await caller.hear()
    assert (reply["id"], reply["error"]["code"]) == (2, -32603)
    await provider.silence()
    await caller.silence()


async def test_the_name_of_places_in_strings_is_text(running_hub: RunningHub) -> None:
    provider, caller = await pair(running_hub)
    values = ["$bin", '{"$bin":0}', {"x$bin": 1, '"$bin': 2, "$bin\\": 3}, '\\"$bin":0}', "\x00$bin\x1f"]
    caller.say_frame(call(params=[*values, bin_(0)]), FIRST)
    request, payloads = await provider.frame()
    assert (request["params"], payloads) == ([*values, bin_(0)], [FIRST])
    provider.say_frame({"jsonrpc": "2.0", "id": request["id"], "result": [bin_(0), *values]}, FIRST)
    assert (await caller.frame())[0]["result"] == [bin_(0), *values]


@pytest.mark.parametrize("frames", ["both", ""])
async def test_line_ends_in_the_json_of_a_frame_end_no_message(running_hub: RunningHub, frames: str) -> None:
    provider, caller = await pair(running_hub, frames=frames)
    caller.say_frame('\n{"jsonrpc":\r\n"2.0","id":1,\n"method":"work",\n"params":[\n{"$bin":\n0}]\n}\n', FIRST)
    if frames:
        assert (await provider.frame())[1] == [FIRST]
    else:
        assert (await provider.hear())["params"] == [text(FIRST)]


async def test_frames_are_refused_where_they_are_switched_off(open_hub: OpenHub) -> None:
    running_hub = await open_hub(Hub(binary=False, drain_timeout=5))
    caller = await running_hub.frame_peer(declares=False)
    assert await caller.result("rpc.hello", {"binary": 1}) == {"binary": 0}
    caller.transport.write(frame_of(call(), FIRST))
    assert (await caller.hear())["error"]["code"] == -32700
    assert await caller.line() is None


# -- over HTTP --------------------------------------------------------------------------------------------------------


async def test_a_caller_over_http(running_hub: RunningHub) -> None:
    """Its body and the reply are frames, or text; items of its stream are text."""
    provider = await running_hub.frame_peer()
    await provider.offers("p", "work")
    body = frame_of(call("x"), FIRST)
    for frames in (True, False):
        accept = "application/x-rpcstream, application/json" if frames else "application/json"
        post = running_hub.post(body, Accept=accept, Content_Type="application/x-rpcstream")
        asked = asyncio.ensure_future(post)
        request, payloads = await provider.frame()
        assert (request["params"], payloads) == ([bin_(0)], [FIRST])
        params = {"token": request["id"], "value": bin_(0)}
        provider.say_frame({"jsonrpc": "2.0", "method": "$/progress", "params": params}, FIRST)  # not asked for
        provider.say_frame({"jsonrpc": "2.0", "id": request["id"], "result": bin_(0)}, SECOND)
        reply = await asked
        if frames:
            peer = FramePeer()
            peer.data_received(reply)
            message, payloads = await peer.frame()
            assert (message, payloads) == ({"jsonrpc": "2.0", "id": "x", "result": bin_(0)}, [SECOND])
        else:
            assert json.loads(reply) == {"jsonrpc": "2.0", "id": "x", "result": text(SECOND)}


async def test_a_stream_over_http(running_hub: RunningHub) -> None:
    provider = await running_hub.frame_peer()
    await provider.offers("p", "work")
    asked = asyncio.ensure_future(running_hub.post(CALL % ("7", "work", "[1]"), Accept="application/x-ndjson"))
    there = (await provider.hear())["id"]
    params = {"id": there, "value": bin_(0)}
    provider.say_frame({"jsonrpc": "2.0", "method": "$/item", "params": params}, FIRST)
    provider.say_frame({"jsonrpc": "2.0", "id": there, "result": bin_(0)}, SECOND)
    lines = [json.loads(line) for line in (await asked).splitlines() if line.startswith(b"{")]
    assert lines == [
        {"jsonrpc": "2.0", "method": "$/item", "params": {"id": 7, "value": text(FIRST)}},
        {"jsonrpc": "2.0", "id": 7, "result": text(SECOND)},
    ]
