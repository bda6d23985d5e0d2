"""A hub in memory and the ends that are connected to it: all that can happen between them, one thing at a time.

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
from rpcstream.hub.members import Member
from rpcstream.peer.session import Session
from rpcstream.transports.memory import join

from ..stepped_loop import SteppedLoop
from .ends import Ask, Asked, Book, End, can_be_cancelled, result_of, word

#: Small, so that a few calls are enough to reach them.
LIMITS = Limits(
    max_calls=8, stream_window=2, write_buffer=600, max_batch=10, max_message_size=60_000, max_queue=6, max_depth=20
)

#: Seconds that a request with a deadline waits, at most.
LIMIT = 5.0

#: What answers a call well; of the rest each is wrong in another way.
RIGHT = ("right", "twice", "batch", "error", "long", "duplicate")
MANNERS = (
    *RIGHT,
    "late",
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
    "items",
    "too many items",
    "progress",
    "nothing",
)

NAMES = "abcd"


class World:
    """What exists in one run."""

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.book = Book()
        self.hub = Hub(
            limits=LIMITS,
            drain_timeout=5.0,
            slow_call=1000.0,
            keepalive_timeout=60.0,
            ping_interval=20.0,
            event_queue=3,
        )
        self.sessions: list[Session] = []
        self.members: list[Member] = []
        self.ends: dict[str, End] = {}
        self.left: list[End] = []
        self._published = 0
        self._stack = AsyncExitStack()
        self._far: dict[End, Session] = {}
        self._keep()
        self._accept = self.loop.run_until_complete(self._stack.enter_async_context(self.hub.in_memory()))
        for name in NAMES:
            self.reconnect(name)

    def _keep(self) -> None:
        make = self.hub._make_session

        def kept(*args: Any) -> Session:
            self.sessions.append(make(*args))
            return self.sessions[-1]

        self.hub._make_session = kept  # type: ignore[method-assign]
        self.hub.directory.on_enter.append(self.members.append)

    def reconnect(self, name: str) -> None:
        """A new connection; the old one goes on as it can."""
        if name in self.ends:
            self.left.append(self.ends[name])
        end = self.ends[name] = End(name, self.book)
        if name in (left := {each.name: each.key for each in self.left}):
            end.key = left[name]
        self.loop.run_until_complete(self._join(end))
        self._far[end] = self.sessions[-1]

    async def _join(self, end: End) -> None:
        join(end, self._accept())

    # -- what callers do ----------------------------------------------------------------------------------------------

    def _ask(self, end: End, method: str, call_id: str, *, limited: bool, **options: Any) -> tuple[Ask, str]:
        waiting = sum(ask.is_open for ask in end.asks)
        first, _, plain = method.partition(".")
        ask = Ask(len(self.book.asks), call_id, plain if first in self.ends else method, limited, **options)
        ask.is_sure = waiting < LIMITS.max_calls - 1 and not end.was_held and not end.has_ended
        self.book.asks.append(ask)
        end.asks.append(ask)
        params = f'{{"token":{ask.token}}}'
        if ask.upload is not None:
            params = f'{{"token":{ask.token},"up":{{"$type":"stream","id":"{ask.upload}"}}}}'
        members = [f'"method":"{method}"', f'"params":{params}']
        if call_id:
            members.append(f'"id":{call_id}')
        if limited:
            members.append(f'"timeout":{LIMIT}')
        if ask.credit is not None:
            members.append(f'"stream":{ask.credit}')
        return ask, '{"jsonrpc":"2.0",' + ",".join(members) + "}"

    def call(self, name: str, method: str, call_id: str, *, limited: bool) -> None:
        end = self.ends[name]
        end.say(self._ask(end, method, call_id, limited=limited)[1])

    def batch(self, name: str, method: str, call_ids: list[str], *, limited: bool) -> None:
        end = self.ends[name]
        texts = [self._ask(end, method, call_id, limited=limited)[1] for call_id in call_ids]
        for ask in end.asks[-len(texts) :]:
            ask.is_sure = False  # its answer waits for those of the others
        end.say("[" + ",".join(texts) + "]")

    def stream(self, name: str, method: str, credit: int, *, limited: bool) -> None:
        end = self.ends[name]
        call_id = f'"stream-{len(end.asks)}"'
        end.say(self._ask(end, method, call_id, limited=limited, credit=credit)[1])

    def upload(self, name: str, method: str, *, limited: bool) -> None:
        end = self.ends[name]
        end.uploads += 1
        end.say(self._ask(end, method, f'"up-{len(end.asks)}"', limited=limited, upload=f"s{end.uploads}")[1])

    def say_of_stream(self, name: str, place: int, n: int) -> None:
        """Permit items, or send one, or end an upload."""
        end = self.ends[name]
        asks = [ask for ask in end.asks if ask.credit is not None or ask.upload is not None]
        if not asks or end.has_ended:
            return
        ask = asks[place % len(asks)]
        if ask.credit is not None:
            if n:
                ask.credit += n
                end.say(word("$/credit", id=json.loads(ask.call_id), n=n))
        elif n == 0:
            end.say(word("$/end", stream=ask.upload))
        elif ask.items == 0 and n == 6:  # more than is permitted
            end.say(word("$/item", stream=ask.upload, value=ask.token))
        else:
            self.send_item(end, ask)

    def converse(self, name: str, items: int, manner: str) -> None:
        """Send items of the stream that was begun last, as far as they are permitted, and perhaps its end."""
        self.settle()
        ask = self.book.asks[-1]
        provider = ask.provider
        asked = next((each for each in provider.asked if each.ask is ask), None) if provider is not None else None
        if provider is None or asked is None or provider is not self.ends[provider.name]:
            return
        place = provider.asked.index(asked)
        for _ in range(items):
            self.answer(provider.name, place, "items")
            if ask.upload is not None:
                self.loop.settle()
                self.send_item(self.ends[name], ask)
        if ask.upload is not None and ask.items == 0 and manner == "too many items":
            self.ends[name].say(word("$/item", stream=ask.upload, value=ask.token))
        self.loop.settle()
        self.answer(provider.name, place, manner)

    def send_item(self, end: End, ask: Ask) -> None:
        """An item of a stream that is an argument, if it is permitted."""
        if ask.items > 0:
            ask.items -= 1
            end.say(word("$/item", stream=ask.upload, value=ask.token))

    def cancel(self, name: str, place: int) -> None:
        end = self.ends[name]
        if end.asks:
            call_id = end.asks[place % len(end.asks)].call_id
            if call_id:
                for ask in end.asks:
                    ask.was_cancelled = ask.was_cancelled or ask.call_id == call_id
                end.say(f'{{"jsonrpc":"2.0","method":"$/cancelRequest","params":{{"id":{call_id}}}}}')

    # -- what providers do --------------------------------------------------------------------------------------------

    def answer(self, name: str, place: int, manner: str) -> None:
        end = self.ends[name]
        if manner == "late":
            if end.done:
                end.say(result_of(end.done[place % len(end.done)]))
            return
        if not end.asked:
            end.say('{"jsonrpc":"2.0","id":987654,"result":{"token":-1}}')
            return
        asked = end.asked[place % len(end.asked)]
        if manner in ("items", "too many items", "progress"):
            self._say_along(end, asked, manner)
            return
        if manner == "nothing":
            return
        end.say(*self._answers(end, asked, manner))
        if manner not in ("foreign id", "another's id", "text id", "float id"):
            end.asked.remove(asked)
            end.done.append(asked)

    def _say_along(self, end: End, asked: Asked, manner: str) -> None:
        assert asked.ask is not None
        if manner == "progress":
            end.say(*[word("$/progress", token=asked.call_id, value=asked.ask.token)] * 3)
        elif "up" in asked.params and asked.credit is None:
            asked.permitted += 2
            end.say(word("$/credit", stream=asked.params["up"]["id"], n=2))
        elif asked.credit is not None and (asked.credit > 0 or manner == "too many items"):
            asked.credit -= 1
            end.say(word("$/item", id=asked.call_id, value=asked.ask.token))

    def _answers(self, end: End, asked: Asked, manner: str) -> list[str]:
        """Lines; ids that are not the asked one's own carry the token -1, which nobody has."""
        right, wrong = result_of(asked), '{{"jsonrpc":"2.0","id":{},"result":{{"token":-1}}}}'
        if manner == "twice":
            return [right, wrong.format(asked.call_id)]
        if manner == "batch":
            return [f"[{right},{wrong.format(987654)}]"]
        if manner == "duplicate":
            return [right.replace('"id":', '"id":987654,"\\u0069d":')]
        if manner == "long":
            return [result_of(asked, ',"data":{"$type":"bytes","data":"' + "QUJD" * 8000 + '"}')]
        if manner == "another's id":
            others = {each.call_id for other in self.ends.values() if other is not end for each in other.asked}
            free = sorted(others - {each.call_id for each in end.asked})
            return [wrong.format(each) for each in free[:3]]
        if manner == "large":
            return [result_of(asked, ',"x":"' + "y" * 70_000 + '"')]
        if manner == "deep":
            return [result_of(asked, ',"x":' + "[" * 30 + "]" * 30)]
        error = {"error": (3, "it failed"), "gave up": (-32800, "Cancelled")}.get(manner)
        if error is not None:
            return [f'{{"jsonrpc":"2.0","id":{asked.call_id},"error":{{"code":{error[0]},"message":"{error[1]}"}}}}']
        return [
            {
                "right": right,
                "foreign id": wrong.format(987654),
                "text id": wrong.format(f'"{asked.call_id}"'),
                "float id": wrong.format(f"{asked.call_id}.0"),
                "null id": '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
                "malformed": f'{{"jsonrpc":"2.0","id":{asked.call_id},"error":{{"code":"x"}}}}',
                "neither": f'{{"jsonrpc":"2.0","id":{asked.call_id},"error":null}}',
            }[manner]
        ]

    def register(self, name: str, methods: list[str], *, shared: bool, with_key: bool) -> None:
        end = self.ends[name]
        if end.has_ended:
            return
        described = [{"name": method, "shared": shared} for method in methods]
        params: dict[str, Any] = {"name": name, "methods": described}
        if with_key and end.key is not None:
            params["key"] = end.key
        end.offered.update(methods)
        self.own(end, "rpc.register", params)

    def own(self, end: End, method: str, params: Any) -> str:
        """A call of a method of the hub's own."""
        call_id = f"own-{len(end.own)}-{self._published}"
        self._published += 1
        end.say(json.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}))
        return call_id

    def subscribe(self, name: str, topic: str, *, wanted: bool) -> None:
        end = self.ends[name]
        if wanted:
            end.topics.append(topic)
        self.own(end, "rpc.subscribe" if wanted else "rpc.unsubscribe", {"topic": topic})

    def publish(self, name: str, topic: str, *, retain: bool, long: bool) -> None:
        value = [topic, self._published, "z" * 2000 if long else ""]
        self.own(self.ends[name], "rpc.publish", {"topic": topic, "value": value, "retain": retain})

    # -- what happens to connections ----------------------------------------------------------------------------------

    def end(self, name: str, how: str) -> None:
        self.ends[name].end(how)
        self.reconnect(name)

    def advance(self, seconds: float) -> None:
        self.loop.jump(seconds)
        self.settle()

    def settle(self) -> None:
        self.loop.settle()
        for end in self._all:
            for message in end.own.values():
                if isinstance(result := message.get("result"), dict) and "key" in result:
                    end.key = result["key"]
        for ask in self.book.asks:
            if ask.due is None and ask.limited:  # the hub has it now, at the latest
                ask.due = self.loop.time() + LIMIT
        self.check()

    @property
    def _all(self) -> list[End]:
        return [*self.ends.values(), *self.left]

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Nobody has what is not his; nobody waits for what cannot come."""
        assert not self.book.wrong, self.book.wrong
        now = self.loop.time()
        for end in self._all:
            self._check_events(end)
            if end.was_held or end.is_gone or end.has_ended:
                continue
            for ask in end.asks:
                if ask.is_open and ask.is_sure:
                    assert ask.due is None or now < ask.due, f"{ask} hangs past its deadline"
                    assert ask.provider is None or not ask.provider.has_ended, f"{ask} hangs, its provider is gone"
                    assert not ask.was_cancelled or not can_be_cancelled(ask.call_id), f"{ask} was cancelled"

    def _check_events(self, end: End) -> None:
        last: dict[str, int] = {}
        for topic, value in end.events:
            if topic.startswith("rpc.hub."):
                continue
            assert value[0] == topic
            assert any(matches(pattern, topic) for pattern in end.topics), (topic, end.topics)
            last[topic] = value[1]
        end.events.clear()

    def finish(self) -> None:
        """Keep nothing back any more: everything comes to its end, and has come to the right one."""
        for end in self._all:
            if not end.reads:
                end.read(True)
        self.settle()
        for name in NAMES:  # providers go first: with them goes all that they were asked
            if any(end.offered for end in (self.ends[name],)):
                self.own(self.ends[name], "rpc.unregister", {})
                self.settle()
                self._answer_all(self.ends[name])
        for end in self.left:
            end.end("abort")
        for _ in range(3):
            self.settle()
            for end in self.ends.values():
                self._answer_all(end)
        self.settle()
        for end in self.ends.values():
            if not end.is_gone and not end.has_ended:
                missing = [ask for ask in end.asks if ask.is_open]
                assert not missing, f"never answered: {missing}"
        self.check()
        for member in self.members:
            assert (member.waiting, member.waiting_size) == (0, 0), member
        for session in self.sessions:
            assert not (kept := _kept(session)), f"kept at {session}: {kept}"

    def _answer_all(self, end: End) -> None:
        for asked in list(end.asked):
            end.say(result_of(asked))
            end.asked.remove(asked)

    def close(self) -> list[weakref.ref[Session]]:
        """End everything; gives what should be gone then."""
        for end in self._all:
            end.end("close")
        self.loop.settle()
        directory = self.hub.directory
        assert not directory.members
        assert not directory.by_name
        assert not directory.routes
        assert not len(self.hub.topics)
        assert not self.hub.topics._subscribers
        assert len(self.hub.topics._patterns) == 0
        closing = self.loop.create_task(self._stack.aclose())
        for _ in range(40):
            self.loop.settle()
            if closing.done():
                break
            self.loop.jump(1.0)
        closing.result()
        assert not any(map(_kept, self.sessions))
        gone = list(map(weakref.ref, self.sessions))
        for kept in (self.sessions, self.members, self.ends, self.left, self._far):
            kept.clear()
        gc.collect()
        return gone


def _kept(session: Session) -> str:
    """What a session keeps of what should be over."""
    work, flows = session.work, session.flows
    kept = [
        len(session.pending),
        flows.senders,
        flows.receivers,
        flows.waiting,
        work.running,
        work.members,
        work.elsewhere,
        work.load,
        session.busy,
    ]
    return str(kept) if any(kept) else ""
