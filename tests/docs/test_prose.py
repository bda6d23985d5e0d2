"""The English of the pages: short sentences in the active voice, without the turns of phrase of a translation.

`python -m tests.docs.test_prose [PAGE ...]` lists what is to be rewritten, of all pages or of the given ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .blocks import DOCS, PAGES, ROOT

#: Words of a sentence. Code between backticks and a link's text count as the words that a reader sees.
LONGEST = 30

#: The share of sentences that may be in the passive voice.
PASSIVE_SHARE = 0.3

#: What reads as translated, and what to write instead.
TURNS = {
    r"\bas of (?!Python|version|\d)": "from ... on, since",
    r"\blikewise\b": "too, also",
    r"\bthat of (?:the|a|an|its|their)\b": "name the thing again",
    r"\bthose of (?:the|a|an|its|their)\b": "name the things again",
    r"\bof which the\b": "a sentence of its own",
    r"\bsome (?:\d|two|three|four|five|ten|hundred|thousand|tens|hundreds|thousands)\b": "about",
    r"\bso many\b": "say the number",
    r"\b(?:stands|stand|stood) in\b": "is in",
    r"\bfor no longer\b": "for up to",
    r"\bno longer\b": "say what is true today",
    r"\bnowadays\b": "say what is true today",
    r"\bwho wants? to\b": "you",
    r"\bone (?:may|must|can|should|has to)\b": "you",
    r"\bbeside (?:it|them) lies?\b": "next to",
    r"\bat one's\b": "your",
    r"\bis waited for\b": "name who waits",
    r"\bare waited for\b": "name who waits",
    r"\bwhat is (?:explicit|larger|longer|over|wrong) \w+s\b": "name the thing",
    r"\bin place of\b": "instead of",
    r"\bthe very same\b": "the same",
    r"\btime-outs?\b": "timeout",
    r"\bfor whom\b": "when to use it",
    r"\bthe former\b": "name it",
    r"\bthe latter\b": "name it",
    r"\b(?:come|came) meanwhile\b": "arrive in the meantime",
    r"\bmostly\b": "usually",
    r"\ba twentieth of\b": "5 %",
    r"\btwo thirds\b|\bhalf as\b": "say the number",
    r"\bbehind (?:it|them) (?:stands?|comes?)\b": "after",
    r"\bhas to be\b": "must be",
    r"\b(?:go|goes|going|went) on\b": "continue",
    r"\banew\b": "again",
    r"\bbesides\b[.,;:]": "also",
    r"\b(?:time|timeout|limit)s? (?:is|are) over\b": "has passed",
    r"\bfor ever\b": "forever",
    r"\b(?:methods|functions|types|programs?|routes?|objects?) of yours\b": "your own",
    r"\bsome (?:KiB|MiB|milliseconds|seconds|µs|lines)\b": "a few",
    r"\b(?:hence|thereof|whereby|thereby|therein|whereupon)\b": "so, with it",
    r"\btells? of\b": "reports",
    r"\bfrom .{2,30} on\b(?= |[.,;:])": "since, after, or more",
    r"\bis there\b(?! no| any| a)": "exists, has started",
    r"\bso (?:much|few)\b": "say the number",
    r"\bfew hundredths\b|\ba tenth\b": "say the percentage",
    r"\bpictures?\b": "image",
    r"\b(?:is|are) to be\b": "must be",
}

#: Pages that are not rewritten yet. A page leaves the list when it passes; none is added.
UNFINISHED: set[str] = set()

_PARTICIPLES = (
    r"\w+ed|made|given|sent|taken|kept|read|written|shown|known|done|found|lost|held|built|bound|begun|broken|cut|drawn|driven|"
    r"called|got|heard|laid|left|meant|met|paid|put|run|said|seen|set|split|told|thrown|understood|woken|won"
)
_PASSIVE = re.compile(
    rf"\b(?:is|are|was|were|be|been|being)\s+(?:not\s+|never\s+|always\s+|\w+ly\s+)?(?:{_PARTICIPLES})\b", re.I
)
_END = re.compile(r"(?<=[.!?;])[\"')*_]*\s+")


def sentences_of(text: str) -> Iterator[str]:
    """The sentences of a page, those in lists and tables too, without its code."""
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^#+ .*$|^\|[-|: ]+\|$|^!\[.*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>\s]+>", "", text)
    for block in re.split(r"\n\s*\n|\n\s*(?=[*-] |\d+\. )", text):
        for part in re.split(r"(?<!\\)\|", block) if block.lstrip().startswith("|") else [block]:
            plain = " ".join(part.strip().removeprefix("* ").split())
            yield from (each for each in _END.split(re.sub(r"`[^`]*`", _as_one_word, plain)) if each.strip())


def _as_one_word(code: re.Match[str]) -> str:
    return re.sub(r"[\s.!?:;]+", "_", code[0])


def words_in(sentence: str) -> int:
    return len(re.findall(r"[\w`][^\s]*", sentence))


def faults_of(text: str) -> Iterator[str]:
    sentences = list(sentences_of(text))
    for sentence in sentences:
        if (count := words_in(sentence)) > LONGEST:
            yield f"{count} words: {sentence}"
        for turn, better in TURNS.items():
            if found := re.search(turn, sentence, re.IGNORECASE):
                yield f"{found[0]!r} (better: {better}): {sentence}"
    passive = [sentence for sentence in sentences if _PASSIVE.search(sentence)]
    if len(passive) > PASSIVE_SHARE * len(sentences):
        yield f"{len(passive)} of {len(sentences)} sentences are in the passive voice, such as: {passive[0]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_is_in_plain_english(page: Path) -> None:
    if str(page.relative_to(DOCS)) in UNFINISHED:
        pytest.skip("not rewritten yet")
    faults = list(faults_of(page.read_text(encoding="utf-8")))
    assert not faults, "\n".join(faults)


def test_the_list_of_unfinished_pages_names_pages() -> None:
    assert [name for name in UNFINISHED if not (DOCS / name).is_file()] == []


if __name__ == "__main__":
    for path in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        found = list(faults_of(path.read_text(encoding="utf-8")))
        print(f"{path.relative_to(ROOT)}: {len(found)}", *found if sys.argv[1:] else (), sep="\n    ")
