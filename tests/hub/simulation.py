"""A hub in memory and the peers that are connected to it, driven one step at a time.

Each of "a" to "d" may call, offer methods, publish and subscribe. Nothing here goes on by itself: what was begun goes
on when the loop turns.
"""

from __future__ import annotations

import gc
import json
import weakref
from contextlib import AsyncExitStack
from typing import Any

from rpcstream import Limits
from rpcstream.events.patterns import matches
from rpcstream.hub import Hub

from ..kit import TRANSPORTS, leftovers, live_sessions
from ..kit.loops import SteppedLoop
from .checked_peer import (
    CheckedPeer,
    ReceivedRequest,
    RequestRecord,
    SentRequest,
    can_be_cancelled,
    notification,
    result_of,
)

#: Small, so that a few calls are enough to reach them.
LIMITS = Limits(
    max_calls=8, stream_window=2, write_buffer=600, max_batch=10, max_message_size=60_000, max_queue=6, max_depth=20
)

#: Seconds that a request with a deadline waits, at most.
LIMIT = 5.0

#: Ways to answer a call: the right ones, then wrong ones.
RIGHT = ("right", "twice", "batch", "error", "long", "duplicate")
WRONG = (
    "foreign id",
    "another's id",
    "text id",
    "float id",
    "null id",
    "gave up",
    "malformed",
    "neither",
    "deep",
    "large",
)
MANNERS = (*RIGHT, *WRONG, "late", "items", "too many items", "progress", "nothing")

NAMES = "abcd"


class HubSimulation:
    """The hub and the peers of one run."""

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.record = RequestRecord()
        self.hub = Hub(
            limits=LIMITS,
            drain_timeout=5.0,
            slow_call=1000.0,
            keepalive_timeout=60.0,
            ping_interval=20.0,
            event_queue=3,
        )
        self.peers: dict[str, CheckedPeer] = {}
        self.former_peers: list[CheckedPeer] = []
        self._published = 0
        self._stack = AsyncExitStack()
        serving = TRANSPORTS["memory"].serving(self.hub, None)
        self._there = self.loop.run_until_complete(self._stack.enter_async_context(serving))
        for name in NAMES:
            self.reconnect(name)

    def reconnect(self, name: str) -> None:
        """Connect a peer anew; its old connection goes on as it can."""
        if name in self.peers:
            self.former_peers.append(self.peers[name])
        peer = self.peers[name] = CheckedPeer(name, self.record)
        if name in (left := {each.name: each.key for each in self.former_peers}):
            peer.key = left[name]
        self.loop.run_until_complete(self._there.join(lambda: peer))

    # -- what callers do ----------------------------------------------------------------------------------------------

    def _ask(
        self, peer: CheckedPeer, method: str, call_id: str, *, limited: bool, **options: Any
    ) -> tuple[SentRequest, str]:
        waiting = sum(sent.is_open for sent in peer.sent_requests)
        first, _, plain = method.partition(".")
        sent = SentRequest(
            len(self.record.sent_requests), call_id, plain if first in self.peers else method, limited, **options
        )
        sent.is_sure = waiting < LIMITS.max_calls - 1 and not peer.was_held and not peer.has_ended
        self.record.sent_requests.append(sent)
        peer.sent_requests.append(sent)
        params = f'{{"token":{sent.token}}}'
        if sent.upload is not None:
            params = f'{{"token":{sent.token},"up":{{"$type":"stream","id":"{sent.upload}"}}}}'
        members = [f'"method":"{method}"', f'"params":{params}']
        if call_id:
            members.append(f'"id":{call_id}')
        if limited:
            members.append(f'"timeout":{LIMIT}')
        if sent.credit is not None:
            members.append(f'"stream":{sent.credit}')
        return sent, '{"jsonrpc":"2.0",' + ",".join(members) + "}"

    def call(self, name: str, method: str, call_id: str, *, limited: bool) -> None:
        peer = self.peers[name]
        peer.say(self._ask(peer, method, call_id, limited=limited)[1])

    def batch(self, name: str, method: str, call_ids: list[str], *, limited: bool) -> None:
        peer = self.peers[name]
        texts = [self._ask(peer, method, call_id, limited=limited)[1] for call_id in call_ids]
        for sent in peer.sent_requests[-len(texts) :]:
            sent.is_sure = False  # its answer waits for those of the others
        peer.say("[" + ",".join(texts) + "]")

    def stream(self, name: str, method: str, credit: int, *, limited: bool) -> None:
        peer = self.peers[name]
        call_id = f'"stream-{len(peer.sent_requests)}"'
        peer.say(self._ask(peer, method, call_id, limited=limited, credit=credit)[1])

    def upload(self, name: str, method: str, *, limited: bool) -> None:
        peer = self.peers[name]
        peer.uploads += 1
        peer.say(
            self._ask(peer, method, f'"up-{len(peer.sent_requests)}"', limited=limited, upload=f"s{peer.uploads}")[1]
        )

    def say_of_stream(self, name: str, place: int, n: int) -> None:
        """Permit items, or send one, or end an upload."""
        peer = self.peers[name]
        sent_requests = [sent for sent in peer.sent_requests if sent.credit is not None or sent.upload is not None]
        if not sent_requests or peer.has_ended:
            return
        sent = sent_requests[place % len(sent_requests)]
        if sent.credit is not None:
            if n:
                sent.credit += n
                peer.say(notification("$/credit", id=json.loads(sent.call_id), n=n))
        elif n == 0:
            peer.say(notification("$/end", stream=sent.upload))
        elif sent.items == 0 and n == 6:  # more than is permitted
            peer.say(notification("$/item", stream=sent.upload, value=sent.token))
        else:
            self.send_item(peer, sent)

    def converse(self, name: str, items: int, manner: str) -> None:
        """Send permitted items of the stream that was begun last, and its end where the manner says so."""
        self.settle()
        sent = self.record.sent_requests[-1]
        provider = sent.provider
        received = (
            next((each for each in provider.received_requests if each.sent is sent), None)
            if provider is not None
            else None
        )
        if provider is None or received is None or provider is not self.peers[provider.name]:
            return
        place = provider.received_requests.index(received)
        for _ in range(items):
            self.answer(provider.name, place, "items")
            if sent.upload is not None:
                self.loop.settle()
                self.send_item(self.peers[name], sent)
        if sent.upload is not None and sent.items == 0 and manner == "too many items":
            self.peers[name].say(notification("$/item", stream=sent.upload, value=sent.token))
        self.loop.settle()
        self.answer(provider.name, place, manner)

    def send_item(self, peer: CheckedPeer, sent: SentRequest) -> None:
        """An item of a stream that is an argument, if it is permitted."""
        if sent.items > 0:
            sent.items -= 1
            peer.say(notification("$/item", stream=sent.upload, value=sent.token))

    def cancel(self, name: str, place: int) -> None:
        peer = self.peers[name]
        if peer.sent_requests:
            call_id = peer.sent_requests[place % len(peer.sent_requests)].call_id
            if call_id:
                for sent in peer.sent_requests:
                    sent.was_cancelled = sent.was_cancelled or sent.call_id == call_id
                peer.say(f'{{"jsonrpc":"2.0","method":"$/cancelRequest","params":{{"id":{call_id}}}}}')

    # -- what providers do --------------------------------------------------------------------------------------------

    def answer(self, name: str, place: int, manner: str) -> None:
        peer = self.peers[name]
        if manner == "late":
            if peer.done:
                peer.say(result_of(peer.done[place % len(peer.done)]))
            return
        if not peer.received_requests:
            peer.say('{"jsonrpc":"2.0","id":987654,"result":{"token":-1}}')
            return
        received = peer.received_requests[place % len(peer.received_requests)]
        if manner in ("items", "too many items", "progress"):
            self._say_along(peer, received, manner)
            return
        if manner == "nothing":
            return
        peer.say(*self._answers(peer, received, manner))
        if manner not in ("foreign id", "another's id", "text id", "float id"):
            peer.received_requests.remove(received)
            peer.done.append(received)

    def _say_along(self, peer: CheckedPeer, received: ReceivedRequest, manner: str) -> None:
        assert received.sent is not None
        if manner == "progress":
            peer.say(*[notification("$/progress", token=received.call_id, value=received.sent.token)] * 3)
        elif "up" in received.params and received.credit is None:
            received.permitted += 2
            peer.say(notification("$/credit", stream=received.params["up"]["id"], n=2))
        elif received.credit is not None and (received.credit > 0 or manner == "too many items"):
            received.credit -= 1
            peer.say(notification("$/item", id=received.call_id, value=received.sent.token))

    def _answers(self, peer: CheckedPeer, received: ReceivedRequest, manner: str) -> list[str]:
        """The lines of an answer; one with a wrong id has the token -1, which no request has."""
        right, wrong = result_of(received), '{{"jsonrpc":"2.0","id":{},"result":{{"token":-1}}}}'
        if manner == "twice":
            return [right, wrong.format(received.call_id)]
        if manner == "batch":
            return [f"[{right},{wrong.format(987654)}]"]
        if manner == "duplicate":
            return [right.replace('"id":', '"id":987654,"\\u0069d":')]
        if manner == "long":
            return [result_of(received, ',"data":{"$type":"bytes","data":"' + "QUJD" * 8000 + '"}')]
        if manner == "another's id":
            others = {
                each.call_id for other in self.peers.values() if other is not peer for each in other.received_requests
            }
            free = sorted(others - {each.call_id for each in peer.received_requests})
            return [wrong.format(each) for each in free[:3]]
        if manner == "large":
            return [result_of(received, ',"x":"' + "y" * 70_000 + '"')]
        if manner == "deep":
            return [result_of(received, ',"x":' + "[" * 30 + "]" * 30)]
        error = {"error": (3, "it failed"), "gave up": (-32800, "Cancelled")}.get(manner)
        if error is not None:
            return [f'{{"jsonrpc":"2.0","id":{received.call_id},"error":{{"code":{error[0]},"message":"{error[1]}"}}}}']
        return [
            {
                "right": right,
                "foreign id": wrong.format(987654),
                "text id": wrong.format(f'"{received.call_id}"'),
                "float id": wrong.format(f"{received.call_id}.0"),
                "null id": '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
                "malformed": f'{{"jsonrpc":"2.0","id":{received.call_id},"error":{{"code":"x"}}}}',
                "neither": f'{{"jsonrpc":"2.0","id":{received.call_id},"error":null}}',
            }[manner]
        ]

    def register(self, name: str, methods: list[str], *, shared: bool, with_key: bool) -> None:
        peer = self.peers[name]
        if peer.has_ended:
            return
        described = [{"name": method, "shared": shared} for method in methods]
        params: dict[str, Any] = {"name": name, "methods": described}
        if with_key and peer.key is not None:
            params["key"] = peer.key
        peer.offered.update(methods)
        self.call_hub(peer, "rpc.register", params)

    def call_hub(self, peer: CheckedPeer, method: str, params: Any) -> str:
        """Call one of the hub's own methods."""
        call_id = f"own-{len(peer.hub_replies)}-{self._published}"
        self._published += 1
        peer.say(json.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}))
        return call_id

    def subscribe(self, name: str, topic: str, *, wanted: bool) -> None:
        peer = self.peers[name]
        if wanted:
            peer.topics.append(topic)
        self.call_hub(peer, "rpc.subscribe" if wanted else "rpc.unsubscribe", {"topic": topic})

    def publish(self, name: str, topic: str, *, retain: bool, long: bool) -> None:
        value = [topic, self._published, "z" * 2000 if long else ""]
        self.call_hub(self.peers[name], "rpc.publish", {"topic": topic, "value": value, "retain": retain})

    # -- what happens to connections ----------------------------------------------------------------------------------

    def end(self, name: str, how: str) -> None:
        self.peers[name].end(how)
        self.reconnect(name)

    def advance(self, seconds: float) -> None:
        self.loop.jump(seconds)
        self.settle()

    def settle(self) -> None:
        self.loop.settle()
        for peer in self._all_peers:
            for message in peer.hub_replies.values():
                if isinstance(result := message.get("result"), dict) and "key" in result:
                    peer.key = result["key"]
        for sent in self.record.sent_requests:
            if sent.due is None and sent.limited:  # the hub has it now, at the latest
                sent.due = self.loop.time() + LIMIT
        self.check()

    @property
    def _all_peers(self) -> list[CheckedPeer]:
        return [*self.peers.values(), *self.former_peers]

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that no answer went to another peer, and that no call waits for an answer that cannot come."""
        assert not self.record.wrong, self.record.wrong
        now = self.loop.time()
        for peer in self._all_peers:
            self._check_events(peer)
            if peer.was_held or peer.is_gone or peer.has_ended:
                continue
            for sent in peer.sent_requests:
                if sent.is_open and sent.is_sure:
                    assert sent.due is None or now < sent.due, f"{sent} hangs past its deadline"
                    assert sent.provider is None or not sent.provider.has_ended, f"{sent} hangs, its provider is gone"
                    assert not sent.was_cancelled or not can_be_cancelled(sent.call_id), f"{sent} was cancelled"

    def _check_events(self, peer: CheckedPeer) -> None:
        last: dict[str, int] = {}
        for topic, value in peer.events:
            if topic.startswith("rpc.hub."):
                continue
            assert value[0] == topic
            assert any(matches(pattern, topic) for pattern in peer.topics), (topic, peer.topics)
            last[topic] = value[1]
        peer.events.clear()

    def finish(self) -> None:
        """Let every call come to its end, and assert that it was a right one."""
        for peer in self._all_peers:
            if not peer.reads:
                peer.read(True)
        self.settle()
        for name in NAMES:  # providers go first: with them goes all that they were asked
            if any(peer.offered for peer in (self.peers[name],)):
                self.call_hub(self.peers[name], "rpc.unregister", {})
                self.settle()
                self._answer_all(self.peers[name])
        for peer in self.former_peers:
            peer.end("abort")
        for _ in range(3):
            self.settle()
            for peer in self.peers.values():
                self._answer_all(peer)
        self.settle()
        for peer in self.peers.values():
            if not peer.is_gone and not peer.has_ended:
                missing = [sent for sent in peer.sent_requests if sent.is_open]
                assert not missing, f"never answered: {missing}"
        self.check()
        for session in live_sessions():
            assert not (kept := leftovers(session)), f"kept at {session}: {kept}"

    def _answer_all(self, peer: CheckedPeer) -> None:
        for received in list(peer.received_requests):
            peer.say(result_of(received))
            peer.received_requests.remove(received)

    def close(self) -> list[weakref.ref[Any]]:
        """Close everything; returns references to the sessions, which should be gone then."""
        for peer in self._all_peers:
            peer.end("close")
        self.loop.settle()
        stats = self.hub.stats()
        assert not any(stats[name] for name in ("connections", "clients", "methods_offered", "subscriptions"))
        assert not dict(self.hub.topics)
        closing = self.loop.create_task(self._stack.aclose())
        for _ in range(40):
            self.loop.settle()
            if closing.done():
                break
            self.loop.jump(1.0)
        closing.result()
        gone = list(map(weakref.ref, live_sessions()))
        assert not any(leftovers(session) for ref in gone if (session := ref()) is not None)
        self.peers.clear()
        self.former_peers.clear()
        gc.collect()
        return gone
