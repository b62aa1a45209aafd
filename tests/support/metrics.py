"""Scrapes of a server in memory, read by Prometheus's own parser."""

from collections.abc import Iterator

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.server import Harness

Labels = frozenset[tuple[str, str]]


class Scraped(dict[tuple[str, Labels], float]):
    """The values of one scrape, by name and labels.

    Attributes:
        text: as it was sent.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.kinds: dict[str, str] = {}
        for family in text_string_to_metric_families(text):
            self.kinds[family.name] = family.type
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self, f"twice: {key}"
                self[key] = sample.value

    def of(self, name: str, /, **labels: str) -> float:
        """The value with exactly these labels."""
        return self[name, frozenset(labels.items())]

    def like(self, name: str, /, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """The values with these labels among others."""
        wanted = set(labels.items())
        for (found, given), value in self.items():
            if found == name and wanted <= given:
                yield dict(given), value


class Metrics:
    """Requests to the metrics port of a server in memory."""

    def __init__(self, server: Harness, address: str = "127.0.0.1") -> None:
        transport = httpx.ASGITransport(server.server.metrics_app(), client=(address, 40_000))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def ask(self, path: str = "", **headers: str) -> httpx.Response:
        return await self.client.get(f"/metrics{path}", headers=headers)

    async def scrape(self, path: str = "") -> Scraped:
        answer = await self.ask(path)
        assert answer.status_code == 200, answer.text
        return Scraped(answer.text)

    async def scrape_unread(self, path: str) -> None:
        """Scrape, and look at nothing but the status: reading takes longer."""
        assert (await self.ask(path)).status_code == 200
