"""What is copied from a search does the same elsewhere: each is run against a server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from clients import Client, Message, connect
from segments.selector import parse_selector
from streamd.console.search_form import SearchForm
from streamd.console.snippets import Where, selector_of, snippets
from tests.support.browser import beside
from tests.support.process import ServerProcess

ARGUMENTS = {
    "stream-filter-property": "region",
    "stream-filter-derive": "true",
    "stream-key-properties": "order_id",
    "stream-chunk-max-records": "7",
}
DECLARED: dict[str, Any] = {
    "stream-filter-property": "region",
    "stream-key-properties": "order_id",
}
NAME = 'it\'s "odd" $x'
HOST = "other/host"
EMPTY = SearchForm("", "", "", "", "", "first", "", "", "50", "", is_live=False)


def order(number: int) -> Message:
    tag = "ab"[number % 2] if number < 59 else "b"
    properties = {"order_id": number % 20, "region": "EU" if number % 2 else "US", "TAGS": tag}
    return Message(b"order %d" % number, application_properties=properties)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with 60 orders in a stream of each of two virtual hosts."""
    found = ServerProcess(tmp_path_factory.mktemp("snippets") / "data", "--http-port", "0")

    async def publish(client: Client) -> None:
        await client.create(NAME, arguments=ARGUMENTS)
        async with client.producer(NAME) as producer:
            await producer.send_all(order(number) for number in range(60))

    async def fill() -> None:
        ada = f"rabbitmq-stream://ada:guess-it@localhost:{found.port}/{host}"
        async with connect(found.uri) as own, connect(ada) as other:
            await publish(own)
            await publish(other)

    with found:
        api = httpx.Client(
            base_url=f"http://127.0.0.1:{found.http_port}/api", auth=("guest", "guest")
        )
        host = quote(HOST, safe="")
        for path, body in (
            (f"vhosts/{host}", {}),
            ("users/ada", {"password": "guess-it", "tags": ""}),
            (f"permissions/{host}/ada", {"configure": ".*", "write": ".*", "read": ".*"}),
        ):
            assert api.put(f"/{path}", json=body).is_success
        api.close()
        beside(fill())
        yield found


CASES = [
    ("guest", "/", EMPTY._replace(sql="region = 'EU' AND x IS NULL", start="offset", offset="31"),
     [n for n in range(31, 60) if n % 2]),
    ("ada", HOST, EMPTY._replace(key="19", tags="a || b", filter="EU", start="time", time="0"),
     [19, 39, 59]),
]  # fmt: skip


@pytest.mark.parametrize(("user", "vhost", "form", "expected"), CASES)
def test_each_finds_the_same(
    server: ServerProcess,
    tmp_path: Path,
    user: str,
    vhost: str,
    form: SearchForm,
    expected: list[int],
) -> None:
    where = Where("localhost", server.port, server.amqp_port, user, vhost, NAME)
    texts = {made.name: made.text for made in snippets(where, form, form.request(DECLARED))}
    environment = {**os.environ, "STREAMD_PASSWORD": "guess-it" if user == "ada" else ""}
    assert texts["command"].startswith("streamd find ")
    command = texts["command"].replace("streamd", f"{sys.executable} -m streamd", 1)
    found = subprocess.run(
        ["bash", "-c", command], env=environment, check=True, capture_output=True, text=True
    )
    assert [json.loads(line)["offset"] for line in found.stdout.splitlines()] == expected
    assert "cut by" not in found.stderr
    for client in ("rstream", "pika"):
        program = tmp_path / f"with_{client}.py"
        program.write_text(texts[client])
        command_line = [sys.executable, "-u", str(program)]
        with subprocess.Popen(command_line, env=environment, stdout=subprocess.PIPE) as running:
            try:
                assert running.stdout is not None
                lines = [running.stdout.readline().split(b" ")[0] for _ in expected]
            finally:
                running.kill()
        assert [int(line) for line in lines] == expected, client
        compile(texts[client], str(program), "exec")


@pytest.mark.parametrize(
    "start", [{"start": "newest"}, {"start": "time", "time": "1700000000123"}, {"is_live": True}]
)
@pytest.mark.parametrize("user", ["guest", "it's"])
@pytest.mark.parametrize("asked", [{}, {"sql": "a = '\u202e'"}, {"key": "-1\n"}, {"tags": "*"}])
def test_all_can_be_read(start: dict[str, Any], user: str, asked: dict[str, str]) -> None:
    form = EMPTY._replace(**asked, **start)
    where = Where('evil"; import os', 1, 2, user, "/", "-s\n\u202e")
    command, *programs = snippets(where, form, form.request(DECLARED))
    for program in programs:
        compile(program.text, program.name, "exec")
        assert "localhost" in program.text
    for made in (command, *programs):
        assert "evil" not in made.text
        assert all(character.isprintable() or character == "\n" for character in made.text)
    assert "\n" not in command.text
    said = subprocess.run(
        ["bash", "-c", f"set -- {command.text}; printf '%s\\0' \"$@\""],
        check=True,
        capture_output=True,
        env={},
    )
    assert said.stdout.split(b"\0")[-2].decode() == where.stream


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (EMPTY, ""),
        (EMPTY._replace(sql="a = 1 OR b"), "a = 1 OR b"),
        (EMPTY._replace(tags="x"), "TAGS IN ('x')"),
        (EMPTY._replace(key="it's"), "order_id = 'it''s'"),
        (EMPTY._replace(key="4711"), "order_id = '4711' OR order_id = 4711"),
        (EMPTY._replace(key="true"), "order_id = 'true' OR order_id = TRUE"),
        (EMPTY._replace(key="1", where="a b"), "[a b] = '1' OR [a b] = 1"),
        (
            EMPTY._replace(sql="a OR b", key="k", filter="EU"),
            "(a OR b) AND (region = 'EU') AND (order_id = 'k')",
        ),
    ],
)
def test_one_selector_says_it_all(form: SearchForm, expected: str) -> None:
    selector = selector_of(form, form.request(DECLARED))
    assert selector == expected
    if selector:
        parse_selector("union", selector)
