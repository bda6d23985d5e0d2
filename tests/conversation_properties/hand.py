"""What an end that is worked by hand may say: right answers, and all that peers get wrong by mistake or on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rpcstream import RpcError

from .book import Book, Line, Question
from .ends import RawEnd
from .service import FAILURE, answer_of

#: Ways to answer a call: "right", in a batch, with an error; and to nobody's use: twice, again after all is over, with
#: an id of another type, of another connection or of no call; for all calls at once; with more items than permitted.
MANNERS = ("right", "batch", "mixed", "error", "twice", "again", "text", "float", "true", "foreign", "forged", "null")
MANNERS += ("flood", "item")

#: Ids as they are written: some are equal, and yet no two are the same.
IDS = ("1", '"1"', "1.0", "2", "null", '"s"', "36893488147419103232")

#: What no peer should say, each with how many messages of it a call could have waited for.
WORDS = (
    ('{"jsonrpc":"2.0","method":"$/item","params":{"id":123456,"value":1}}', 1),
    ('{"jsonrpc":"2.0","method":"$/item","params":{"stream":"nobody\'s","value":1}}', 1),
    ('{"jsonrpc":"2.0","method":"$/item","params":{"id":true}}', 1),
    ('{"jsonrpc":"2.0","method":"$/credit","params":{"id":123456,"n":5}}', 0),
    ('{"jsonrpc":"2.0","method":"$/credit","params":{"id":1,"n":-5}}', 0),
    ('{"jsonrpc":"2.0","method":"$/end","params":{"stream":"nobody\'s"}}', 0),
    ('{"jsonrpc":"2.0","method":"$/progress","params":{"token":true,"value":"forged"}}', 0),
    ('{"jsonrpc":"2.0","method":"$/progress","params":{"token":"1","value":"forged"}}', 0),
    ('{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":123456}}', 0),
    ('{"jsonrpc":"2.0","method":"$/cancelRequest","params":[1]}', 0),
    ('{"jsonrpc":"2.0","method":"$/nothing","params":{"id":1}}', 0),
)

Key = tuple[str, Any]


class Hand(RawEnd):
    """An end that is told what to say.

    Args:
        others: the ends there are.
        asked_over: the line of the questions that are asked here, if that is another one.
    """

    def __init__(
        self, line: Line, book: Book, others: Callable[[], list[Hand]], asked_over: Line | None = None
    ) -> None:
        super().__init__(line)
        self._asked_over = asked_over or line
        self._book = book
        self._others = others
        self._requests: dict[Key, list[Question]] = {}
        self._cancelled: set[Key] = set()
        self._streams: dict[str, int] = {}
        self._uploads: dict[str, Question] = {}

    # -- answers ----------------------------------------------------------------------------------------------------

    def answer(self, place: int, manner: str) -> None:
        """Answer one of the calls that wait, in a manner of `MANNERS`."""
        if self.has_ended or not self.is_open:
            return
        among = self.answered if manner == "again" else self.asked
        if not among:
            if manner == "null":
                self._refuse_all("nothing is right")
            elif manner == "forged":
                self._to_nobody(_reply(10**6, "forged"))
            return
        message = among[place % len(among)]
        call_id, (_, number, *_) = message["id"], message["params"]
        question = self._book.of(number)
        right = self._right(message)
        match manner:
            case "right":
                self._answered(message, *right)
            case "mixed" if self.line.name != "z":
                self._answered(message, *right[:-1], f"[{right[-1]},{self._request('now', None, '2')}]")
            case "batch" | "mixed":
                self._answered(message, *right[:-1], f"[{right[-1]}]")
            case "error":
                question.told.append((7, f"error {number}"))
                self._answered(message, _error(call_id, 7, f"error {number}"))
            case "twice":
                self._answered(message, *right)
                self._to_nobody(right[-1])
            case "null":
                self._refuse_all(f"refused with {number}")
            case "flood":
                self._flood(message, question)
            case "item" if "stream" not in message:
                self._to_nobody(_word("$/item", id=call_id, value="forged"))
            case "again":
                self._to_nobody(right[-1])
            case _:
                self._to_nobody(_reply(self._wrong_id(call_id, manner), "forged"))

    def _right(self, message: dict[str, Any]) -> list[str]:
        """The right answer: for a stream an item, and the reply behind it."""
        who, number, *_ = message["params"]
        if "stream" not in message:
            return [_reply(message["id"], answer_of(message["method"], who, number))]
        item = _word("$/item", id=message["id"], value=["confirm", who, number])
        return [item, _reply(message["id"], None)]

    def _wrong_id(self, call_id: int, manner: str) -> Any:
        open_here = [message["id"] for message in self.asked]
        others = [message["id"] for other in self._others() if other is not self for message in other.asked]
        foreign = [other for other in others if other not in open_here]
        if manner == "foreign" and foreign:
            return foreign[0]
        return {"text": str(call_id), "float": float(call_id), "true": True}.get(manner, 10**6)

    def _refuse_all(self, reason: str) -> None:
        """One error for all calls that wait; where one is only on its way, or none is, that may be nobody."""
        self.line.to_nobody += not self.asked
        for question in self._asked_over.questions:
            if question.task is None or not question.is_over:  # of requests with one id it is not known which is over
                question.told.append((-1, reason))
                self.line.is_inexact = self.line.is_inexact or not self.asked
        self.say(_error(None, -1, reason))
        self.answered += self.asked
        self.asked.clear()

    def _flood(self, message: dict[str, Any], question: Question) -> None:
        """More items than were permitted, where items are wanted at all."""
        if "stream" in message:
            question.told.append((-32600, "Invalid Request"))
            self.line.is_inexact = True
            who, number, *_ = message["params"]
            self._answered(message, *[_word("$/item", id=message["id"], value=["confirm", who, number])] * 9)

    def _answered(self, message: dict[str, Any], *texts: str) -> None:
        self.asked.remove(message)
        self.answered.append(message)
        self.say(*texts)

    def _to_nobody(self, text: str) -> None:
        self.line.to_nobody += 1
        self.say(text)

    def words(self, place: int) -> None:
        text, count = WORDS[place % len(WORDS)]
        if self.is_open and not self.has_ended:
            self.line.to_nobody += count
            self.say(text)

    # -- requests ---------------------------------------------------------------------------------------------------

    def request(self, kind: str, limit: float | None, text: str, since: float) -> Question | None:
        """Ask the server; with the id that the text says."""
        if self.has_ended or not self.is_open:
            return None
        self.say(self._request(kind, limit, text, since))
        return self._requests[_key(json.loads(text))][-1]

    def _request(self, kind: str, limit: float | None, text: str, since: float = 0.0) -> str:
        name, number = self.line.name, self._book.number()
        code = FAILURE + number if kind == "fails" else None
        self._enter(Question(number, kind, self.line, answer_of(kind, name, number), code=code, limit=limit), text)
        self._book.questions[-1].since = since
        timeout = "" if limit is None else f'"timeout":{limit},'
        return f'{{"jsonrpc":"2.0","id":{text},{timeout}"method":"{kind}","params":["{name}",{number}]}}'

    def _enter(self, question: Question, text: str) -> None:
        self._book.enter(question)
        if self.line.is_crowded:  # a cancel that waits with requests in one read may mean one behind it
            question.was_cancelled = _key(json.loads(text)) in self._cancelled
        self._requests.setdefault(_key(json.loads(text)), []).append(question)

    def request_stream(self, n: int, credit: int) -> Question | None:
        """Ask for a stream of `n` items, and permit some."""
        if self.has_ended or not self.is_open:
            return None
        name, number = self.line.name, self._book.number()
        question = Question(number, "count", self.line, None)
        self._enter(question, f'"s{number}"')
        self._streams[f"s{number}"] = n
        message = {"jsonrpc": "2.0", "id": f"s{number}", "method": "count", "params": [name, number, n]}
        self.say(json.dumps({**message, "stream": credit}))
        return question

    def permit(self, question: Question, n: int) -> None:
        self.say(_word("$/credit", id=f"s{question.number}", n=n))

    def request_upload(self) -> Question | None:
        """Begin to send items."""
        if self.has_ended or not self.is_open:
            return None
        name, number = self.line.name, self._book.number()
        question = Question(number, "total", self.line, ["total", name, number, 0])
        self._enter(question, f'"u{number}"')
        self._uploads[f"t{number}"] = question
        params = [name, number, {"$type": "stream", "id": f"t{number}"}]
        self.say(json.dumps({"jsonrpc": "2.0", "id": f"u{number}", "method": "total", "params": params}))
        return question

    def item(self, question: Question) -> None:
        """Send one more item, permitted or not; one that is not ends the stream."""
        token = f"t{question.number}"
        if token not in self._uploads:
            return
        place = question.answer[3]
        if place >= self.credit[token]:  # as far as is known here
            question.told.append((-32600, "Invalid Request"))
            self.line.is_inexact = True
        question.answer[3] = place + 1
        self.say(_word("$/item", stream=token, value=[self.line.name, question.number, place]))

    def end_upload(self, question: Question) -> None:
        """Where more was asked than the server takes at once, it need not keep this for a request that waits."""
        token = f"t{question.number}"
        if token in self._uploads and (self.credit[token] or not self.line.is_crowded):
            del self._uploads[token]
            self.say(_word("$/end", stream=f"t{question.number}"))

    def cancel(self, text: str) -> None:
        """The answer to the request with this id is not wanted any more."""
        self.line.is_inexact = True
        self._cancelled.add(_key(json.loads(text)))
        for question in self._requests.get(_key(json.loads(text)), []):
            question.was_cancelled = True
        self.say(f'{{"jsonrpc":"2.0","method":"$/cancelRequest","params":{{"id":{text}}}}}')

    def _hear(self, message: dict[str, Any]) -> None:
        super()._hear(message)
        if "method" not in message:
            for question in self._requests.get(_key(message["id"]), []):
                if not question.is_answered:
                    question.is_answered = True
                    break

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> bool:
        """Leave nothing open; was there anything?"""
        if not self.is_open or self.has_ended:
            return False
        found = bool(self.asked)
        for message in list(self.asked):
            self._answered(message, *self._right(message))
        for question in list(self._uploads.values()):
            self.end_upload(question)
        for name, n in self._streams.items():
            if not self.replies.get(("str", name)) and self.items[name] < n:
                self.say(_word("$/credit", id=name, n=n))
        self._streams = {name: n for name, n in self._streams.items() if self.items[name] < n}
        return found

    @property
    def is_over(self) -> bool:
        """Nothing is to be expected any more."""
        questions = [question for questions in self._requests.values() for question in questions]
        return not self.is_open or self.has_ended or (not self.asked and all(each.is_over for each in questions))

    def check(self, now: float) -> None:
        """Was everything answered that was asked here, and nothing else?"""
        assert not self.was_left, f"the connection of {self.line.name} was closed without a reason"
        assert not set(self.replies) - set(self._requests), "answers to what was never asked"
        for key, questions in self._requests.items():
            left = _unanswered(self.replies.get(key, []), questions, now)
            assert left is not None, f"wrong answers, or too many: {self.replies[key]}, to {questions}"
            assert not left or self.line.was_touched, f"never answered: {left}"


def _unanswered(replies: list[dict[str, Any]], questions: list[Question], now: float) -> list[Question] | None:
    """The questions that none of the replies belongs to; None if a reply belongs to none of the questions."""
    if not replies:
        return questions
    reply, *others = replies
    for question in questions:
        if _may_answer(reply, question, now):
            left = _unanswered(others, [other for other in questions if other is not question], now)
            if left is not None:
                return left
    return None


def _may_answer(reply: dict[str, Any], question: Question, now: float) -> bool:
    if "result" in reply:
        return question.code is None and _fits(question, reply["result"])
    return question.may_end_with(RpcError(reply["error"]["code"], reply["error"]["message"]), now)


def _fits(question: Question, result: Any) -> bool:
    """Items that were not permitted may have been too early to be seen."""
    if question.kind == "total" and question.told:
        return bool(result[:3] == question.answer[:3])
    return bool(result == question.answer)


def _key(call_id: Any) -> Key:
    return type(call_id).__name__, call_id


def _reply(call_id: Any, result: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": call_id, "result": result})


def _error(call_id: Any, code: int, text: str) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": call_id, "error": {"code": code, "message": text}})


def _word(method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})
