"""Each check of a cluster's history finds what it is there for, and nothing else."""

from collections.abc import Callable

import pytest

from segments.gaps import OFFSET_GAP
from tests.crash import history
from tests.crash.history import Found, History

ONE, TWO, THREE = (Found(number - 1, "p", number) for number in (1, 2, 3))
Check = Callable[[], None]


def _other_message() -> None:
    told = History()
    told.take(ONE)
    told.take(ONE._replace(publisher="q"))


def _lost_and_another_message() -> None:
    told = History()
    told.take(ONE)
    told.gone.add(ONE.offset)
    told.take(ONE._replace(number=2))


WRONG: dict[str, Check] = {
    "lost at the end": lambda: history.confirmed_once([ONE], {"p": 2}),
    "lost before others": lambda: history.confirmed_once([ONE, THREE], {"p": 1}),
    "all lost": lambda: history.confirmed_once([], {"p": 1}),
    "doubled": lambda: history.confirmed_once([ONE, TWO, TWO], {"p": 2}),
    "another order": lambda: history.confirmed_once([TWO, ONE], {"p": 2}),
    "lost without a name": lambda: history.confirmed_at_all([ONE, THREE], {1, 2}),
    "doubled with a name": lambda: history.ascending([ONE, ONE]),
    "another order with a name": lambda: history.ascending([ONE, THREE, TWO]),
    "two messages of an offset": _other_message,
    "another message where one was lost": _lost_and_another_message,
    "read and gone": lambda: history.nothing_read_is_gone([ONE], {0: ONE, 1: TWO}),
    "uploaded and gone": lambda: history.uploaded_is_kept([ONE], {0: ONE, 1: TWO}, 2),
    "a hole": lambda: history.gaps_are_whole([ONE, THREE]),
    "offsets go back": lambda: history.gaps_are_whole([TWO, ONE]),
    "passed over": lambda: history.passes_over_nothing([ONE, TWO, THREE], {0, 2}, 2),
    "a stored offset goes back": lambda: history.stored_stays(1, 2),
    "declared and not there": lambda: history.declared_is_there({"a"}, {"a", "b"}, set()),
    "deleted and there": lambda: history.declared_is_there({"a"}, set(), {"a"}),
}


def _same_message() -> None:
    told = History()
    told.take(ONE)
    told.gone.add(ONE.offset)
    told.take(ONE)
    assert not told.there()


RIGHT: dict[str, Check] = {
    "more than was confirmed": lambda: history.confirmed_once([ONE, TWO, THREE], {"p": 2}),
    "two publishers": lambda: history.confirmed_once(
        [ONE, Found(1, "q", 1), TWO._replace(offset=2)], {"p": 2, "q": 1}
    ),
    "doubled without a name": lambda: history.confirmed_at_all([ONE, ONE, TWO], {1, 2}),
    "not sent again": lambda: history.ascending([ONE, THREE]),
    "the same message": _same_message,
    "not uploaded and gone": lambda: history.uploaded_is_kept([ONE], {0: ONE, 1: TWO}, 1),
    "a gap": lambda: history.gaps_are_whole([ONE, Found(OFFSET_GAP + 1, "p", 2)]),
    "not stored yet": lambda: history.passes_over_nothing([ONE, TWO, THREE], {0, 1}, 1),
    "stored later": lambda: history.stored_stays(2, 2),
    "not answered": lambda: history.declared_is_there({"a", "c"}, {"a"}, {"b"}),
}


@pytest.mark.parametrize("check", WRONG.values(), ids=WRONG)
def test_a_check_finds(check: Check) -> None:
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("check", RIGHT.values(), ids=RIGHT)
def test_a_check_lets_pass(check: Check) -> None:
    check()


def test_a_message_says_who_has_published_it() -> None:
    assert history.found(7, b"12 p \0\0") == Found(7, "p", 12)
    assert history.found(7, b"12") == Found(7, "", 12)
