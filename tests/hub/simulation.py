"""A hub in memory and the peers at it, driven one step at a time; they compare what comes with what was sent.

Every request has a token of its own among its params, and every right answer, item and progress brings it back. So a
message that reaches the wrong peer is noticed, however equal the ids are. Each of "a" to "d" may call and offer
methods. Nothing here goes on by itself: what was begun goes on when the loop turns.
"""

from __future__ import annotations

import gc
import json
import weakref
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgspec

from rpcstream import Limits, Logs
from rpcstream.hub import Hub

from ..kit import TRANSPORTS, RawPeer, leftovers, live_sessions, notification
from ..kit.loops import SteppedLoop

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_values = msgspec.json.Decoder(list[msgspec.Raw]).decode

#: Values that JSON parsers read differently: a hub has to pass them on as they are written.
EXACT = '[1.10,-0.0,1180591620717411303424,1E5,"\\u0041\\/"]'

#: Small, so that a few calls are enough to reach them.
LIMITS = Limits(
    max_calls=8, stream_window=2, write_buffer=600, max_batch=10, max_message_size=60_000, max_queue=6, max_depth=20
)

#: Seconds that a request with a deadline waits, at most.
LIMIT = 5.0

NAMES = "abcd"

#: Ways to answer a call: the right ones; wrong ones; and those that answer another call, or none.
RIGHT = ("right", "twice", "batch", "error", "long", "duplicate")
WRONG = ("null id", "gave up", "malformed", "neither", "deep", "large")
FOREIGN = ("foreign id", "another's id", "text id", "float id")
MANNERS = (*RIGHT, *WRONG, *FOREIGN, "late", "items", "too many items", "progress", "nothing")


@dataclass(eq=False)
class SentRequest:
    """A request that a peer has sent, and what became of it.

    Attributes:
        call_id: as JSON, as it was sent; "" for a notification.
        method: as its provider calls it.
        limited, due: whether it has a deadline, and its loop time, s; is_sure: nothing at its caller delays the answer.
        credit: items that its caller has permitted, and that have not come.
        upload, room: the stream that is an argument, and the items of it that may be sent.
        provider, there: the peer that it came to, and its id there.
        granted, up, permitted: as `credit`, `upload` and `room`, at the provider.
    """

    token: int
    call_id: str
    method: str
    limited: bool
    is_sure: bool
    credit: int | None = None
    upload: str | None = None
    due: float | None = None
    room: int = 0
    provider: CheckedPeer | None = None
    there: int = 0
    granted: int | None = None
    up: str | None = None
    permitted: int = 0
    is_answered: bool = False
    was_cancelled: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it waits for its answer."""
        return self.call_id != "" and not self.is_answered

    @property
    def can_be_cancelled(self) -> bool:
        """Whether a cancel may name its id."""
        return type(json.loads(self.call_id)) in (str, int) and len(self.call_id) < 18

    def result(self, more: str = "") -> str:
        """The right answer, as JSON."""
        return f'{{"jsonrpc":"2.0","id":{self.there},"result":{{"token":{self.token},"exact":{EXACT}{more}}}}}'


class CheckedPeer(RawPeer):
    """A peer that knows what may come to it.

    Attributes:
        sent: the requests that it sent; `asked`: those that came to it and are not answered; `done`: those that are.
        offered: methods that it has ever offered on this connection; `key`: that of its name.
        reads: it reads; `was_held`: it has not been reading for a while, so nothing is known about times.
        has_ended: it sends nothing more.
    """

    def __init__(self, name: str, run: HubSimulation, key: str | None) -> None:
        super().__init__()
        self.name = name
        self.run = run
        self.key = key
        self.sent: list[SentRequest] = []
        self.asked: list[SentRequest] = []
        self.done: list[SentRequest] = []
        self.offered: set[str] = set()
        self.reads = True
        self.was_held = self.has_ended = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        while self.inbox:
            line = self.inbox.popleft()
            for raw in _values(line) if line.startswith(b"[") else [line]:
                self._hear(bytes(raw).decode())

    def _hear(self, line: str) -> None:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params")
        if method is None:
            is_right = self._answered(line, message)
        elif method == "rpc.ping":
            is_right = True
            self.say({"jsonrpc": "2.0", "id": message["id"], "result": "pong"})
        elif method == "$/item":
            is_right = self._item(params)
        elif method == "$/progress":
            token = bytes(_members(_members(line)["params"])["token"]).decode()
            sent = self.run.find(params["value"])
            is_right = sent in self.sent and sent is not None and sent.call_id == token and sent.is_open
        elif method == "$/credit":
            is_right = self._credit(params)
        else:
            is_right = method.startswith("$/") or self._asked(message, params)
        if not is_right:
            self.run.wrong.append(f"{self.name} got what is not its own: {line[:300]}")

    def _answered(self, line: str, message: dict[str, Any]) -> bool:
        call_id, result = bytes(_members(line)["id"]).decode(), message.get("result")
        if call_id.startswith('"own-'):
            self.key = result["key"] if isinstance(result, dict) and "key" in result else self.key
            return True
        sent = next((each for each in self.sent if each.call_id == call_id and each.is_open), None)
        if sent is None or not ("error" in message or (result["token"] == sent.token and EXACT in line)):
            return False
        sent.is_answered = True
        return True

    def _asked(self, message: dict[str, Any], params: Any) -> bool:
        sent = self.run.find(params.get("token")) if isinstance(params, dict) else None
        if sent is None or not (message["method"] in self.offered and message["method"] == sent.method):
            return False
        if sent.provider is not None or ("id" in message) != (sent.call_id != ""):
            return False
        sent.provider = self
        if "id" in message:
            sent.there, sent.granted, sent.up = message["id"], message.get("stream"), params.get("up", {}).get("id")
            self.asked.append(sent)
        return True

    def _item(self, params: dict[str, Any]) -> bool:
        sent = self.run.find(params["value"])
        if sent is None:
            return False
        if "stream" in params:
            sent.permitted -= 1
            return sent in (*self.asked, *self.done) and sent.up == params["stream"] and sent.permitted >= 0
        if sent not in self.sent or json.loads(sent.call_id) != params["id"] or not sent.credit or sent.is_answered:
            return False
        sent.credit -= 1
        return True

    def _credit(self, params: dict[str, Any]) -> bool:
        for sent in self.asked:
            if type(params.get("id")) is int and params["id"] == sent.there:
                assert sent.granted is not None
                sent.granted += params["n"]
        for sent in self.sent:
            if sent.upload is not None and sent.upload == params.get("stream"):
                sent.room += params["n"]
        return True

    def say(self, *messages: Any) -> None:
        """Send these messages, with one write."""
        if not self.has_ended and not self.transport.is_closing():
            self.send(*messages)

    def end_with(self, how: str) -> None:
        """End what is sent: "half" (a half-close), "empty" (an empty line), "close" or "abort"."""
        if self.transport.is_closing() or (self.has_ended and how in ("half", "empty")):
            return
        self.has_ended = True
        if how == "half":
            self.transport.write_eof()
        elif how == "empty":
            self.transport.write(b"\n")
        else:
            self.is_over = True
            (self.transport.close if how == "close" else self.transport.abort)()

    def read(self, wanted: bool) -> None:
        """Resume or pause reading."""
        self.reads, self.was_held = wanted, self.was_held or not wanted
        if not self.transport.is_closing():
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()


class HubSimulation:
    """The hub and the peers of one run; all requests by their tokens, and what was wrong."""

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.sent: list[SentRequest] = []
        self.wrong: list[str] = []
        self.hub = Hub(
            limits=LIMITS, drain_timeout=5.0, logs=Logs(slow_call=1000.0), keepalive_timeout=60.0, ping_interval=20.0
        )
        self.peers: dict[str, CheckedPeer] = {}
        self.all_peers: list[CheckedPeer] = []
        self._own_calls = 0
        self._stack = AsyncExitStack()
        serving = TRANSPORTS["memory"].serving(self.hub, None)
        self._there = self.loop.run_until_complete(self._stack.enter_async_context(serving))
        for name in NAMES:
            self.reconnect(name)

    def reconnect(self, name: str) -> None:
        """Connect a peer anew; its old connection goes on as it can."""
        peer = CheckedPeer(name, self, self.peers[name].key if name in self.peers else None)
        self.peers[name] = peer
        self.all_peers.append(peer)
        self.loop.run_until_complete(self._there.join(lambda: peer))

    def find(self, token: Any) -> SentRequest | None:
        return self.sent[token] if type(token) is int and 0 <= token < len(self.sent) else None

    def _ask(self, peer: CheckedPeer, method: str, call_id: str, *, limited: bool, **options: Any) -> str:
        """A request as JSON; empty if a call with its id is open."""
        if call_id and any(each.is_open and each.call_id == call_id for each in peer.sent):
            return ""
        waiting = sum(each.is_open for each in peer.sent)
        client, _, plain = method.partition(".")
        plain = plain if client in self.peers else method
        is_sure = waiting < LIMITS.max_calls - 1 and not peer.was_held and not peer.has_ended
        sent = SentRequest(len(self.sent), call_id, plain, limited, is_sure, **options)
        self.sent.append(sent)
        peer.sent.append(sent)
        up = f',"up":{{"$type":"stream","id":"{sent.upload}"}}' if sent.upload is not None else ""
        members = [f'"method":"{method}"', f'"params":{{"token":{sent.token}{up}}}']
        members += [f'"id":{call_id}'] * bool(call_id) + [f'"timeout":{LIMIT}'] * limited
        members += [f'"stream":{sent.credit}'] * (sent.credit is not None)
        return '{"jsonrpc":"2.0",' + ",".join(members) + "}"

    def call(self, name: str, method: str, call_id: str, *, limited: bool, **options: Any) -> None:
        call_id = f'"stream-{len(self.sent)}"' if options else call_id
        if text := self._ask(self.peers[name], method, call_id, limited=limited, **options):
            self.peers[name].say(text)

    def batch(self, name: str, method: str, call_ids: list[str], *, limited: bool) -> None:
        peer, before = self.peers[name], len(self.sent)
        texts = [text for each in call_ids if (text := self._ask(peer, method, each, limited=limited))]
        for sent in self.sent[before:]:
            sent.is_sure = False  # its answer waits for those of the others
        if texts:
            peer.say("[" + ",".join(texts) + "]")

    def say_of_stream(self, name: str, place: int, n: int) -> None:
        """Permit items, or send one, or end an upload."""
        peer = self.peers[name]
        streams = [each for each in peer.sent if each.credit is not None or each.upload is not None]
        if not streams or peer.has_ended:
            return
        sent = streams[place % len(streams)]
        if sent.credit is not None:
            if n:
                sent.credit += n
                peer.say(notification("$/credit", id=json.loads(sent.call_id), n=n))
        elif n == 0:
            peer.say(notification("$/end", stream=sent.upload))
        elif sent.room > 0 or n == 6:  # one too many
            sent.room = max(sent.room - 1, 0)
            peer.say(notification("$/item", stream=sent.upload, value=sent.token))

    def cancel(self, name: str, place: int) -> None:
        peer = self.peers[name]
        found = [each for each in peer.sent if each.is_open or place > 15]
        if found and (call_id := found[place % len(found)].call_id):
            for sent in peer.sent:
                sent.was_cancelled = sent.was_cancelled or sent.call_id == call_id
            peer.say(f'{{"jsonrpc":"2.0","method":"$/cancelRequest","params":{{"id":{call_id}}}}}')

    def answer(self, name: str, place: int, manner: str) -> None:
        peer = self.peers[name]
        if manner == "late":
            if peer.done:
                peer.say(peer.done[place % len(peer.done)].result())
        elif not peer.asked:
            peer.say('{"jsonrpc":"2.0","id":987654,"result":{"token":-1}}')
        elif manner in ("items", "too many items", "progress"):
            self._say_along(peer, peer.asked[place % len(peer.asked)], manner)
        elif manner != "nothing":
            sent = peer.asked[place % len(peer.asked)]
            peer.say(*self._answers(peer, sent, manner))
            if manner not in FOREIGN:
                peer.asked.remove(sent)
                peer.done.append(sent)

    def _say_along(self, peer: CheckedPeer, sent: SentRequest, manner: str) -> None:
        if manner == "progress":
            peer.say(*[notification("$/progress", token=sent.there, value=sent.token)] * 3)
        elif sent.up is not None:
            sent.permitted += 2
            peer.say(notification("$/credit", stream=sent.up, n=2))
        elif sent.granted is not None and (sent.granted > 0 or manner == "too many items"):
            sent.granted -= 1
            peer.say(notification("$/item", id=sent.there, value=sent.token))

    def _answers(self, peer: CheckedPeer, sent: SentRequest, manner: str) -> list[str]:
        """The lines of an answer; one with a wrong id has the token -1, which no request has."""
        there, right, wrong = sent.there, sent.result(), '{{"jsonrpc":"2.0","id":{},"result":{{"token":-1}}}}'
        error = f'{{"jsonrpc":"2.0","id":{there},"error":%s}}'
        others = {each.there for other in self.peers.values() if other is not peer for each in other.asked}
        elsewhere = others - {each.there for each in peer.asked}
        return {
            "right": [right],
            "twice": [right, wrong.format(there)],
            "batch": [f"[{right},{wrong.format(987654)}]"],
            "duplicate": [right.replace('"id":', '"id":987654,"\\u0069d":')],
            "long": [sent.result(',"data":{"$type":"bytes","data":"' + "QUJD" * 8000 + '"}')],
            "error": [error % '{"code":3,"message":"it failed"}'],
            "null id": ['{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}'],
            "gave up": [error % '{"code":-32800,"message":"Cancelled"}'],
            "malformed": [error % '{"code":"x"}'],
            "neither": [error % "null"],
            "deep": [sent.result(',"x":' + "[" * 30 + "]" * 30)],
            "large": [sent.result(',"x":"' + "y" * 70_000 + '"')],
            "foreign id": [wrong.format(987654)],
            "another's id": [
                wrong.format(each) for each in sorted(elsewhere - {each.there for each in peer.asked})[:3]
            ],
            "text id": [wrong.format(f'"{there}"')],
            "float id": [wrong.format(f"{there}.0")],
        }[manner]

    def register(self, name: str, methods: list[str], *, shared: bool, with_key: bool) -> None:
        peer = self.peers[name]
        if not peer.has_ended:
            peer.offered.update(methods)
            key = {"key": peer.key} if with_key and peer.key is not None else {}
            described = [{"name": method, "shared": shared} for method in methods]
            self.call_hub(peer, "rpc.register", {"name": name, "methods": described, **key})

    def call_hub(self, peer: CheckedPeer, method: str, params: Any) -> None:
        self._own_calls += 1
        peer.say({"jsonrpc": "2.0", "id": f"own-{self._own_calls}", "method": method, "params": params})

    def end(self, name: str, how: str) -> None:
        self.peers[name].end_with(how)
        self.reconnect(name)

    def advance(self, seconds: float) -> None:
        self.loop.jump(seconds)
        self.settle()

    def settle(self) -> None:
        self.loop.settle()
        for sent in self.sent:
            if sent.due is None and sent.limited:  # the hub has it now, at the latest
                sent.due = self.loop.time() + LIMIT
        self.check()

    def check(self) -> None:
        """Assert that no answer went to another peer, and that no call waits for an answer that cannot come."""
        assert not self.wrong, self.wrong
        now = self.loop.time()
        for peer in self.all_peers:
            if peer.was_held or peer.is_over or peer.has_ended:
                continue
            for sent in peer.sent:
                if sent.is_open and sent.is_sure:
                    assert sent.due is None or now < sent.due, f"{sent} hangs past its deadline"
                    assert sent.provider is None or not sent.provider.has_ended, f"{sent} hangs, its provider is gone"
                    assert not sent.was_cancelled or not sent.can_be_cancelled, f"{sent} was cancelled"

    def finish(self) -> None:
        """Let every call come to its end, and assert that it was a right one."""
        for peer in self.all_peers:
            if not peer.reads:
                peer.read(True)
        self.settle()
        for peer in self.peers.values():  # providers go first: with them goes all that they were asked
            if peer.offered:
                self.call_hub(peer, "rpc.unregister", {})
                self.settle()
                self._answer_all(peer)
        for peer in self.all_peers:
            if peer is not self.peers[peer.name]:
                peer.end_with("abort")
        for _ in range(3):
            self.settle()
            for peer in self.peers.values():
                self._answer_all(peer)
        self.settle()
        for peer in self.peers.values():
            if not peer.is_over and not peer.has_ended:
                missing = [sent for sent in peer.sent if sent.is_open]
                assert not missing, f"never answered: {missing}"
        for session in live_sessions():
            assert not (kept := leftovers(session)), f"kept at {session}: {kept}"

    def _answer_all(self, peer: CheckedPeer) -> None:
        peer.say(*[sent.result() for sent in peer.asked])
        peer.asked.clear()

    def close(self) -> list[weakref.ref[Any]]:
        """Close everything; returns references to the sessions, which should be gone then."""
        for peer in self.all_peers:
            peer.end_with("close")
        self.loop.settle()
        stats = self.hub.stats()
        assert not any(stats[name] for name in ("connections", "clients", "methods_offered"))
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
        self.all_peers.clear()
        self.sent.clear()
        gc.collect()
        return gone
