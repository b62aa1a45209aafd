"""The page on protocols: its tables are the code's, and readers can open what the code cites."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamd.wire.stream import subscribe_properties as words
from streamd.wire.stream.codes import ResponseCode
from tests.internals import tables
from tests.wire.amqp091.test_messages import STORED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "protocols.md").read_text()
FOLDERS = ("streamd", "segments", "clients", "tests", "benchmarks", "examples")
STANDARDS = (
    r"AMQP 0-9-1 specification, \d",
    r"OASIS AMQP 1\.0 part \d \(\w+\)",
    r"WHATWG Fetch, \"",
    r"W3C Fetch Metadata Request Headers",
    r"PyPI package \w+, \w+\.\w+",
    r"Wing and Gong, ",  # an article
    r"Linux manual page \w+\([25]\)",
)
REPOSITORY = re.compile(r"(?<![\w./-])([A-Za-z][\w-]*/[\w.-]+), (?=[\w-]+/|\w+\.)")
FILE = re.compile(
    r"(?<![\w./*-])[\w*-][\w./*-]*\.(?:erl|java|jj|hrl|json|adoc|md|xml|xrl|yrl|in)\b"
)


def cited() -> Iterator[tuple[str, str]]:
    """Where something is cited, and the text of it in one line."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__):
                text = re.sub(r"^\s*# ?", "", path.read_text(), flags=re.MULTILINE)
                for found in re.findall(
                    r"\bSources?(?: of [\w -]+)?: (.*?)(?:\n\s*\n|\"{3})", text, re.DOTALL
                ):
                    yield str(path.relative_to(ROOT)), " ".join(found.split())


CITED = list(cited())


def paths(text: str) -> Iterator[tuple[str, str]]:
    """Repository and path of each file that is cited."""
    starts = [*REPOSITORY.finditer(text)]
    for number, found in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(text)
        for file in FILE.findall(text[found.end() : end]):
            yield found[1], file


def test_there_are_citations() -> None:
    assert len(CITED) > 50


@pytest.mark.parametrize(("where", "text"), CITED)
def test_what_is_cited_can_be_opened(where: str, text: str) -> None:
    """Each is a path in a public repository, a standard, or a page of ours."""
    found = list(paths(text))
    files = [name for name in FILE.findall(text) if not (ROOT / name).exists()]
    assert [name for _, name in found if not (ROOT / name).exists()] == files, where
    assert all("/" in name or name == "README.md" for name in files), f"{where}: only a file name"
    assert found or any(re.search(standard, text) for standard in STANDARDS), where
    for page in re.findall(r"docs/[\w/-]+\.md", text):
        assert (ROOT / page).exists() or any(name == page for _, name in found), where


def test_the_page_lists_what_is_cited() -> None:
    expected: dict[str, set[str]] = {}
    for where, text in CITED:
        if not where.startswith("tests/"):
            for repository, name in paths(text):
                expected.setdefault(repository, set()).add(name)
    shown: dict[str, set[str]] = {}
    for repository, name in re.findall(r"^\| ([\w-]+/[\w-]+) \| `(\S+)` \|$", PAGE, re.MULTILINE):
        shown.setdefault(repository, set()).add(name)
    assert shown == expected


def test_the_commands() -> None:
    rows = [
        line for line in PAGE.splitlines() if re.match(r"\| (\d+|0x\w{4}) \| `\w+` \| \d", line)
    ]
    assert rows == list(tables.commands())


def test_the_rights() -> None:
    text = PAGE.split("| Command or method | Needs |\n|---|---|\n")[1].split("\n\n")[0]
    assert text.splitlines() == list(tables.rights())


def test_the_codes() -> None:
    assert re.findall(r"^\| (\d+) \| `(\w+)` \|$", PAGE, re.MULTILINE) == [
        (str(int(code)), code.name) for code in ResponseCode
    ]


def test_the_properties_of_subscriptions() -> None:
    names = {v for name, v in vars(words).items() if name.isupper() and name[0] != "_"}
    for name in names - {words.FILTER_PREFIX, words.UNFILTERED_ONLY, words.NOTHING}:
        assert f"`{name}`" in PAGE


def test_the_message_shown_is_what_a_stream_keeps() -> None:
    text = PAGE.split("<!-- message -->\n```text\n")[1].split("```")[0]
    pieces = re.findall(r"^((?:[0-9a-f]{2} )*[0-9a-f]{2})  ", text, re.MULTILINE)
    assert bytes.fromhex("".join(pieces)) == STORED
    assert f"keeps {len(STORED)} bytes" in PAGE
