"""The reference has every metric, with its kind and its labels, and no other."""

import re

from streamd.broker.declared.standing_selectors import parse_standing
from streamd.wire.stream import commands as c
from tests.support.metrics import Metrics
from tests.support.node import FakeNode
from tests.support.pages import ROOT
from tests.support.server import OK, Harness
from tests.support.tier import FakeTier

ENTRY = re.compile(
    r"^\* `(\w+)`: .+\n\n  (\w+)(?: · labels ([^·\n]+?))?(?: · family ([^·\n]+?))?(?: ·.*)?$",
    re.MULTILINE,
)
PARTS = ("_bucket", "_count", "_sum")


async def test_what_is_scraped_is_on_the_page(server: Harness) -> None:
    server.server.broker.tier = FakeTier()
    server.server.broker.node = FakeNode()
    peer = await server.peer()
    await peer.create("s")
    await server.host.settings.put_selector("s", parse_standing("g", "union", "TRUE"))
    assert await peer.code(c.CreateSuperStream, "super", ("a",), ("a",), ()) == OK
    await peer.declare("s")
    await peer.store([b"m"])
    await peer.subscribe("s", name="reader")
    metrics, rows = Metrics(server), ENTRY.findall((ROOT / "docs/reference/metrics.md").read_text())
    shown = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}
    assert len(shown) == len(rows) > 100
    groups = {group for *_, found in rows for group in re.findall(r"`(\w+)`", found)}
    await metrics.scrape()
    totals = await metrics.scrape()
    objects = await metrics.scrape("/per-object")
    detailed = await metrics.scrape(f"/detailed?family={'&family='.join(sorted(groups))}")
    found: dict[str, set[str]] = {}
    kinds: dict[str, str] = {}
    for scrape in (totals, objects, detailed):
        for line in re.findall(r"^# TYPE (\S+) (\S+)$", scrape.text, re.MULTILINE):
            kinds[line[0].replace("rabbitmq_detailed_", "rabbitmq_")] = line[1]
        for name, labels in scrape:
            plain = name.replace("rabbitmq_detailed_", "rabbitmq_")
            if plain not in shown:
                plain = next(plain.removesuffix(p) for p in PARTS if plain.endswith(p))
            found.setdefault(plain, set()).update({key for key, _ in labels} - {"le"})
    assert found.keys() == shown.keys()
    assert {name: kind for name, (kind, _) in shown.items()} == kinds
    assert {name: labels for name, (_, labels) in shown.items()} == found
    # Whatever has a group is told when it is asked for.
    asked = {name for name, _, _, group in rows if group}
    told = {name.replace("rabbitmq_detailed_", "rabbitmq_") for name, _ in detailed}
    assert {name for name in asked if not any(t.startswith(name) for t in told)} == set()
