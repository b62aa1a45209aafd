"""When something is learned: soon where it helps, and hardly ever where it does not."""

from segments.pace import Advice, Pace


def test_what_helps_is_learned_soon() -> None:
    pace = Pace()
    assert pace.advice(0, 1) is Advice.LEARN
    for _ in range(10):
        assert pace.advice(100_000, 0) is Advice.NOTHING
        assert pace.advice(0, 15) is Advice.NOTHING
        assert pace.advice(0, 1) is Advice.LEARN


def test_what_helps_a_little_is_learned_ever_more_seldom() -> None:
    pace = Pace()
    found = [pace.advice(90, 10) for _ in range(100_000)]
    assert Advice.FORGET not in found
    assert 50 < found.count(Advice.LEARN) < 100  # of a million messages that were not known


def test_what_does_not_help_is_forgotten() -> None:
    pace = Pace()
    found = [pace.advice(5, 5) for _ in range(100_000)]  # a million messages
    assert 5 < found.count(Advice.FORGET) < 15
    assert found.count(Advice.LEARN) <= 3 * found.count(Advice.FORGET) + 3
    while pace.advice(0, 1) is not Advice.LEARN:
        pass
    assert pace.advice(1 << 20, 16) is Advice.LEARN  # and is in favour again
