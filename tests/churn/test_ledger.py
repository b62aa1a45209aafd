"""The judge of searches: right answers pass, and each way to be wrong is seen."""

import pytest

from tests.churn.doors import Broken
from tests.churn.ledger import Found, Ledger, Sent


def everything(_sent: Sent) -> bool:
    return True


def stored(ledger: Ledger, *names: str) -> list[Sent]:
    sent = [ledger.note_sent(name, "o1", "EU", name.encode()) for name in names]
    ledger.note_confirmed(sent)
    return sent


def found(*pairs: tuple[int, str]) -> list[Found]:
    return [Found(offset, name.encode()) for offset, name in pairs]


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger("s")
    stored(ledger, "a", "b", "c")
    return ledger


def judge(ledger: Ledger, *pairs: tuple[int, str], first: int | None = 0) -> None:
    moment = ledger.moment()
    ledger.judge("find", moment, found(*pairs), first, everything)


ALL = (0, "a"), (1, "b"), (2, "c")


def test_what_is_right_passes(ledger: Ledger) -> None:
    judge(ledger, *ALL)
    ledger.note_sent("d", "o1", "EU", b"d")  # it need not be there, and may be
    judge(ledger, *ALL)
    judge(ledger, *ALL, (3, "d"))


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (ALL[:2], "1 messages are missing"),
        (ALL[1:], "1 messages are missing"),
        ((*ALL, (3, "c")), "twice"),
        ((*ALL, (3, "x")), "never published"),
        ((ALL[1], ALL[0], ALL[2]), "order"),
    ],
)
def test_what_is_wrong_is_seen(
    ledger: Ledger, pairs: tuple[tuple[int, str], ...], reason: str
) -> None:
    with pytest.raises(Broken, match=reason):
        judge(ledger, *pairs)


def test_what_was_not_asked_for(ledger: Ledger) -> None:
    with pytest.raises(Broken, match="not what was asked for"):
        ledger.judge("find", ledger.moment(), found(*ALL), 0, lambda sent: sent.identity != "b")


def test_offsets_stay(ledger: Ledger) -> None:
    judge(ledger, *ALL)
    with pytest.raises(Broken, match="is found at 3"):
        judge(ledger, *ALL[:2], (3, "c"))


def test_what_was_confirmed_before_stands_before(ledger: Ledger) -> None:
    judge(ledger, *ALL)
    stored(ledger, "d")
    with pytest.raises(Broken, match="where b'c' was"):
        judge(ledger, (0, "a"), (1, "b"), (2, "d"))


def test_truncation(ledger: Ledger) -> None:
    judge(ledger, *ALL)
    ledger.note_cutting(2)
    judge(ledger, *ALL)  # not yet
    with pytest.raises(Broken, match="it begins at 3"):
        ledger.note_cut(ledger.epoch, 2, 3)
    ledger.note_cut(ledger.epoch, 2, 1)
    judge(ledger, *ALL[1:], first=1)
    with pytest.raises(Broken, match="cut before 1"):
        judge(ledger, *ALL, first=1)
    with pytest.raises(Broken, match="missing"):
        judge(ledger, *ALL[2:], first=1)
    with pytest.raises(Broken, match="never cut behind 2"):
        judge(ledger, first=3)


def test_deletion(ledger: Ledger) -> None:
    judge(ledger, *ALL)
    moment = ledger.moment()
    with ledger.deleting():
        assert not ledger.is_expected(moment)
        stored(ledger, "lost")
    assert not ledger.is_expected(ledger.moment())
    stored(ledger, "d")
    assert ledger.is_expected(ledger.moment())
    ledger.judge("find", moment, [], 0, everything)  # there was a delete meanwhile
    judge(ledger, (0, "d"))
    with pytest.raises(Broken, match="nobody has deleted it"):
        judge(ledger, (0, "d"), first=None)
    with pytest.raises(Broken, match="before and after a delete"):
        judge(ledger, (0, "a"), (1, "d"))
    with pytest.raises(Broken, match="missing"):
        judge(ledger, (1, "lost"))


def test_a_delete_without_a_known_effect(ledger: Ledger) -> None:
    with pytest.raises(OSError, match="killed"), ledger.deleting():
        raise OSError("killed")
    stored(ledger, "d")
    judge(ledger, *ALL, (3, "d"))


def test_the_newest_of_each_key(ledger: Ledger) -> None:
    judge(ledger, *ALL)
    moment = ledger.moment()
    ledger.judge_latest("latest", moment, found((2, "c")), 0, ["o1"])
    for wrong in (found((1, "b")), [], found((2, "c"), (1, "b"))):
        with pytest.raises(Broken):
            ledger.judge_latest("latest", moment, wrong, 0, ["o1"])
