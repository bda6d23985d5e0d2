"""Looking for the next message before sleeping: when an end does so, and when it does not."""

from __future__ import annotations

from rpcstream.transports.awake import Watch

from ..kit import until_in_thread


def look_in_vain(watch: Watch) -> int:
    """Look until the watch refuses it; gives how often."""
    count = 0
    while watch.begin():
        count += 1
        while watch.goes_on():
            pass
        assert not watch.is_on
    return count


def test_an_end_that_looks_in_vain_sleeps_for_a_while() -> None:
    watch = Watch()
    assert 1 <= look_in_vain(watch) <= 3
    until_in_thread(watch.begin)
    assert watch.is_on
    assert 1 <= look_in_vain(watch) <= 3


def test_an_end_that_finds_messages_goes_on_looking() -> None:
    """It begins again at once, whether a message ends a look or comes while one is under way."""

    def finds(watch: Watch) -> bool:
        for _ in range(20):
            if not watch.begin():
                return False
            watch.found()
        return not watch.is_on

    def renews(watch: Watch) -> bool:
        return all(watch.begin() and watch.is_on for _ in range(20))

    # Where the machine stands still meanwhile, that is a look in vain.
    until_in_thread(lambda: finds(Watch()))
    until_in_thread(lambda: renews(Watch()))
