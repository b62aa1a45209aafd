"""What the filters of a stream let through, tested with the filters themselves."""

from pathlib import Path

from segments import ChunkMatcher, Log, LogPolicy, bloom
from segments.spark.observed import observe
from segments.spark.replay import Workload
from tests.support.logs import append

LONGER, AT_THE_LIMIT, SHORT = b"l" * 300, b"m" * 255, b"s"
VALUES = (LONGER, AT_THE_LIMIT, SHORT, b"r" * 1000)


def test_values_of_every_length(tmp_path: Path) -> None:
    """As trailers have them, where longer ones are a prefix and a hash."""
    log = Log.open(str(tmp_path), LogPolicy(filter_size=16))
    held = [(VALUES[n % 3], f"other {n}".encode()) for n in range(60)]
    for values in held:
        append(log, [b"x" * 100] * 2, list(values))
    log.close()
    for value in VALUES:
        matcher = ChunkMatcher([value])
        passed = [matcher.matches(1, 16, bloom.build(values, 16)) for values in held]
        found = observe(str(tmp_path), Workload((bloom.history_form(value),), (1.0,)))
        if value in VALUES[:3]:  # one that no chunk holds may be either
            lacking = [
                is_passed for is_passed, has in zip(passed, held, strict=True) if value not in has
            ]
            assert found.false_positive_rate == sum(lacking) / len(lacking)
            assert found.delivered_bytes == sum(passed) * found.delivered_bytes / sum(passed)
            assert round(found.delivered_bytes / sum(passed), 3) == 208.0
        assert found.chunks == 60
