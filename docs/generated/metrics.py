"""All metrics, from the collectors in streamd/metrics."""

from collections.abc import Iterable

from docs.generated.text import code, entry, inline, sentence
from streamd.metrics.families import Family
from streamd.metrics.scrape import SCRAPE_SECONDS
from streamd.metrics.server_metrics import CLUSTER, IDENTITY, OWN, RABBITMQ
from streamd.metrics.stream_metrics import (
    BY_NAME,
    COLUMNS,
    DISK_ALARM,
    KNOWN,
    MATCHES,
    QUEUE_INFO,
    WRITTEN,
    Column,
)


def markdown() -> str:
    """All metrics: of the server, of streams, of consumers; ours and RabbitMQ's."""
    ours = [column for column in COLUMNS if column.family.name.startswith("streamd_")]
    theirs = [column for column in COLUMNS if column not in ours]
    of_names = [*(family for family, _ in BY_NAME), MATCHES]
    parts = [
        "## Ours: the server\n",
        _list([*(metric.family for metric in OWN), SCRAPE_SECONDS, KNOWN]),
        "\n## Ours: streams\n",
        _columns(ours),
        "\n## Ours: consumers by name, and standing selectors\n",
        _list(of_names),
        "\n## RabbitMQ's: the server\n",
        _list([metric.family for metric in (*IDENTITY, *RABBITMQ)] + [WRITTEN, DISK_ALARM]),
        "\n## RabbitMQ's: streams\n",
        _columns(theirs, QUEUE_INFO),
        "\n## RabbitMQ's: virtual hosts and exchanges\n",
        _list([metric.family for metric in CLUSTER]),
    ]
    return "\n".join(parts)


def _list(families: Iterable[Family]) -> str:
    return "\n".join(map(_entry, families))


def _columns(columns: Iterable[Column], *more: Family) -> str:
    return "\n".join(
        [*(_entry(column.family, _total(column)) for column in columns), *map(_entry, more)]
    )


def _entry(family: Family, total: str = "") -> str:
    facts = [family.kind]
    if family.labels:
        facts.append(f"labels {', '.join(map(code, family.labels))}")
    if family.groups:
        facts.append(f"family {', '.join(map(code, family.groups))}")
    if total:
        facts.append(total)
    return entry(code(family.name), inline(sentence(family.help)), " · ".join(facts))


def _total(column: Column) -> str:
    if not column.has_total:
        return "not in `/metrics`"
    if column.total is not None:
        return "in `/metrics` the sum, with streams that are deleted"
    return "in `/metrics` the highest" if column.is_highest else "in `/metrics` the sum"
