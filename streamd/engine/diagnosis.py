"""What is wrong with the server now, in sentences: for the command line, the console and others."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from segments.words import duration, percent, plural, size
from streamd.operations import server as s
from streamd.operations.server import TroubleKind as Kind
from streamd.operations.tier_reports import TierState, TierStatus

_LITTLE_FREE, _ENOUGH_FREE = 0.1, 20_000_000_000  # of the disk; bytes, however large it is
_MANY_FILES = 0.9  # of those that may be open
_AHEAD_MS = 3_600_000  # so far ahead of the clock no message can be


def of_server(
    facts: s.ServerFacts, tier: TierStatus, newest_ms: int, now_ms: int
) -> Iterator[s.Trouble]:
    """What is wrong with the server as a whole.

    Args:
        facts: see there.
        tier: see there.
        newest_ms: when the newest message of all streams was stored; 0 for none.
        now_ms: the wall clock.
    """
    free, total = facts.disk_free, facts.disk_total
    if free < facts.disk_floor:
        yield s.Trouble(
            Kind.FLOOR,
            f"publishers wait: only {size(free)} of the disk are free, and "
            f"{size(facts.disk_floor)} are to stay free (min_disk_free_bytes); free some space",
        )
    elif free < min(_LITTLE_FREE * total, _ENOUGH_FREE):
        yield s.Trouble(
            Kind.DISK,
            f"only {percent(free / total)} of the disk is free: {size(free)} of {size(total)}; "
            "streams take no messages when it is full",
        )
    for door in facts.doors:
        if not door.is_up:
            text = f"{door.name} is not served: its process has ended and is being restarted"
            yield s.Trouble(Kind.DOOR, text)
    if tier.state not in (TierState.OK, TierState.OFF):
        yield s.Trouble(Kind.TIER, f"the object store: {tier.sentence or tier.state}")
    if tier.confirm_sentence:
        yield s.Trouble(Kind.CONFIRMS, tier.confirm_sentence)
    if facts.files is not None and facts.files > _MANY_FILES * facts.max_files:
        yield s.Trouble(
            Kind.FILES,
            f"{facts.files:,} of {facts.max_files:,} files are open: connections are refused when "
            "there are no more; raise the limit (ulimit -n, LimitNOFILE)",
        )
    if newest_ms > now_ms + _AHEAD_MS:
        ahead = duration((newest_ms - now_ms) / 1_000)
        text = f"the newest message is {ahead} ahead of the clock: is the clock right?"
        yield s.Trouble(Kind.CLOCK, text)
    if facts.faults:
        yield s.Trouble(Kind.FAULTS, _faults(facts.faults))


def of_streams(troubles: Sequence[s.StreamTrouble]) -> Iterator[s.Trouble]:
    """What is wrong with streams."""
    for one in troubles:
        if one.reason:
            text = f"takes no messages: {one.reason}"
            yield s.Trouble(Kind.STREAM, text, one.vhost, one.stream)
        if one.lost:
            are = "is" if one.lost == 1 else "are"
            lost = f"{plural(one.lost, 'message')} {are} damaged and cannot be read"
            text = f"{lost}; the log says where"
            yield s.Trouble(Kind.DAMAGE, text, one.vhost, one.stream)


def of_consumers(behind: Iterable[s.Behind]) -> Iterator[s.Trouble]:
    """Consumers that are too far behind."""
    for one in behind:
        if one.seconds > s.BEHIND_SECONDS:
            how_far = f"{duration(one.seconds)} behind, {plural(one.messages, 'message')}"
            text = f"consumer {one.who} is {how_far}"
            yield s.Trouble(Kind.BEHIND, text, one.vhost, one.stream, one.who)


def _faults(faults: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{kind}: {count:,}" for kind, count in sorted(faults.items()) if count)
    total = sum(faults.values())
    were = "fault was" if total == 1 else "faults were"
    return f"{total:,} {were} contained since the start ({kinds}); the log says more"
