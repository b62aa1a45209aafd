"""The documentation as its readers see it: pages, what is to be typed, what is named, links."""

import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
_FENCE = re.compile(r"^( *)(`{3,}|~{3,}|:{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^\n|\A)((?:^ {4}\S.*\n)+)", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|(?:src|srcset|href)=\"([^\"]+)\"")
_CODE = {"sh", "ini", "yaml", "dockerfile"}
_VARIES = (  # output that differs from run to run, and its stand-in
    (re.compile(r"20\d\d-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d{3})?Z"), r"(time\1)"),
    (re.compile(r"\b\d+ bytes"), "(bytes)"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), "(address)"),
    (re.compile(r"[ ─]+"), " "),
)
_FIGURE = re.compile(r"\d[\d,]*(\.\d+)?( [kMG]?B\b)?")
_ANYTHING = "…"


class Block(NamedTuple):
    """A part of a page between fences.

    Attributes:
        kind: what stands behind the fence, as "console".
        text: its lines, without what the fence is indented by.
        line: of the page, where it begins.
        varies: its figures do, says the line before it: <!-- figures vary -->
    """

    kind: str
    text: str
    line: int
    varies: bool = False


class Step(NamedTuple):
    """A command and what it prints."""

    command: str
    output: list[str]


class Page:
    """A Markdown file.

    Attributes:
        name: its path in the repository.
        text: all of it.
        blocks: its parts between fences, in order.
        prose: what is not between fences.
    """

    def __init__(self, file: Path) -> None:
        self.name = str(file.relative_to(ROOT))
        self.text = file.read_text()
        self.blocks = [
            Block(
                found[3].strip(),
                textwrap.dedent(found[4]),
                self.text.count("\n", 0, found.start()) + 1,
                self.text[: found.start()].rstrip().endswith("<!-- figures vary -->"),
            )
            for found in _FENCE.finditer(self.text)
        ]
        self._file = file
        self.prose = _FENCE.sub("", self.text)

    def __repr__(self) -> str:
        return self.name

    @property
    def is_typed(self) -> bool:
        """It has something to type or to run."""
        return any(block.kind in ("console", "python") for block in self.blocks)

    @property
    def needs_spark(self) -> bool:
        """Something in it starts Spark."""
        typed = "".join(block.text for block in self.blocks if block.kind in ("console", "python"))
        return (
            re.search(r"^\$ .*(streamd tune|spark)|open_session", typed, re.MULTILINE) is not None
        )

    def code(self) -> Iterator[str]:
        """What is set as code: spans in the text, and commands."""
        yield from _INLINE.findall(self.prose)
        for text in _INDENTED.findall(self.prose):
            yield from textwrap.dedent(text).splitlines()
        for block in self.blocks:
            if block.kind == "console":
                yield from (step.command for step in steps(block))
            elif block.kind in _CODE:
                yield from block.text.replace("\\\n", " ").splitlines()

    def links(self) -> Iterator[str]:
        """Targets of links and pictures that are in the repository."""
        for target in (one or other for one, other in _LINK.findall(_INLINE.sub("", self.prose))):
            if not re.match(r"[a-z]+:", target):
                yield target

    def leads_somewhere(self, link: str) -> bool:
        """There is such a file, and such a heading in it."""
        path, _, anchor = link.partition("#")
        target = (self._file.parent / path).resolve() if path else self._file
        if not target.exists():
            return False
        return not anchor or anchor in page(target).anchors

    @functools.cached_property
    def anchors(self) -> set[str]:
        """What links can end in `#` with."""
        headings = re.findall(r"^#+ +(.+?) *$", self.prose, re.MULTILINE)
        labels = re.findall(r"(?:id|name)=\"([\w-]+)\"", self.prose)
        return {_slug(heading) for heading in headings} | set(labels)


@functools.cache
def page(file: Path) -> Page:
    """The page of a file, read once."""
    return Page(file)


def documentation() -> list[Page]:
    """The README, and every page below docs."""
    files = sorted(f for f in (ROOT / "docs").rglob("*.md") if "_build" not in f.parts)
    return [page(ROOT / "README.md"), *map(page, files)]


def everything() -> list[Page]:
    """The documentation, and what else is for readers."""
    return [*documentation(), page(ROOT / "CONTRIBUTING.md"), page(ROOT / "SECURITY.md")]


def steps(block: Block) -> Iterator[Step]:
    """The commands of a console block: lines that begin with "$ ", and their output."""
    text = block.text.replace("\\\n", "")
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *output = part.splitlines()
        yield Step(command, output)


def is_as_shown(printed: list[str], shown: list[str], *, varies: bool = False) -> bool:
    """Output is what a page shows, but for times, sizes, addresses and width.

    Where the page has "…" there may be anything; where that is a line, any number of lines.

    Args:
        printed: lines.
        shown: lines of the page.
        varies: figures may be others, too.
    """
    if varies:  # so the text may be broken elsewhere
        printed, shown = ([_FIGURE.sub("(n)", " ".join(text))] for text in (printed, shown))
    pattern = ""
    for line in _steady(shown):
        if line == _ANYTHING:
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(map(re.escape, line.split(_ANYTHING))) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _steady(printed))) is not None


def _steady(lines: list[str]) -> list[str]:
    text = "\n".join(line.strip() for line in lines)
    for pattern, stand_in in _VARIES:
        text = pattern.sub(stand_in, text)
    return text.splitlines()


def _slug(heading: str) -> str:
    """As GitHub and MyST make anchors of headings."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w -]", "", text).lower().replace(" ", "-")
