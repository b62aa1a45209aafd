"""The documentation is true: its commands and programs run, and print what it shows.

`console` blocks are typed in order, in one fresh folder for a page, beside a server of its own.
`python` blocks are parts of files in `examples/` or `tests/interop/`, or programs that are run; one
whose first line is a comment with a file name, `# late.py`, is saved under that name instead, to be
typed later. Behind a line `<!-- figures vary -->` other figures may be printed than the page shows.
Where a page names the ports 5552, 5672, 15672 and 15692, those of the server beside it are meant. A
line `streamd serve --tier …` ends that server and starts it anew with these options.
"""

import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from segments.__main__ import main as segments_main
from streamd import __version__
from streamd.cli import main
from streamd.config import Config, describe, load
from tests.support.pages import (
    ROOT,
    Block,
    Page,
    documentation,
    everything,
    is_as_shown,
    steps,
)
from tests.support.process import ServerProcess
from tests.support.warm import warm_commands

EXAMPLES = "".join(
    file.read_text()
    for file in sorted([*(ROOT / "examples").iterdir(), *(ROOT / "tests/interop").glob("*/*")])
    if file.suffix in (".py", ".java", ".go", ".js")
)
FOREIGN = {"--help"}  # options of others that stand alone in a text
OTHER_VARIABLES = {"STREAMD_URI", "STREAMD_NEW_PASSWORD"}
# There is no Celery to try the first; test_testing.py runs the second, tests/interop the third.
OTHER_EXAMPLES = {"celery_tasks.py", "test_with_streamd.py", "amqp10_filter_and_sql.py"}
IN_SPARK = (pytest.mark.sample, pytest.mark.timeout(900))  # as many sessions as commands
TYPED = ("console", "python")
NOT_TYPED = {"bash", "shell", "pycon", "py"}  # would look like them, and not be tried


def pages_to_type() -> Iterator[object]:
    for page in documentation():
        if page.needs_spark:
            yield pytest.param(page, id=f"{page.name}_in_spark", marks=IN_SPARK)
        elif page.is_typed:
            yield pytest.param(page, id=page.name)


def ids(page: Page) -> str:
    return page.name


def is_part_of_an_example(text: str) -> bool:
    """It stands there, line by line; a page may show it without its indentation."""
    return any(textwrap.indent(text, " " * width) in EXAMPLES for width in (0, 2, 4, 8, 12))


@pytest.mark.parametrize("page", documentation(), ids=ids)
def test_programs_in_other_languages_are_parts_of_some_that_are_run(page: Page) -> None:
    programs = [block for block in page.blocks if block.kind in ("java", "go", "javascript")]
    assert [block.text for block in programs if not is_part_of_an_example(block.text)] == []


class Wrong(Exception):
    """A page is wrong; says what was typed, what it prints, and what the page shows."""

    def __init__(self, typed: str, printed: list[str], shown: list[str]) -> None:
        super().__init__("\n  ".join([typed, "prints:", *printed, "the page shows:", *shown]))


class Reader:
    """A reader who types the commands of a page, beside a running server.

    Args:
        server: the page's.
        folder: where everything is typed.
        commands: folder of `streamd` and `python`.
        path: of the tools, instead of the usual one.
    """

    def __init__(self, server: ServerProcess, folder: Path, commands: Path, path: str = "") -> None:
        scripts = f"{commands}:{Path(sys.executable).parent}"
        outside = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
        self._folder = folder
        self._environment = outside | {
            "STREAMD_URI": server.uri,
            "PATH": f"{scripts}:{path or os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self._server = server
        self._ports = {
            "5552": server.port,
            "5672": server.amqp_port,
            "15672": server.http_port,
            "15692": server.metrics_port,
        }
        (folder / "examples").symlink_to(ROOT / "examples")

    def read(self, block: Block) -> None:
        """Do what a block says.

        Raises:
            Wrong: it prints something else.
        """
        if block.kind == "python":
            self._read_program(block)
            return
        for step in steps(block):
            if step.command == ". .venv/bin/activate":
                continue
            if step.command.startswith("streamd serve"):  # one is running
                if "--tier" in step.command:
                    self._start_anew(step.command)
                printed = [self._server.ready_line]
            else:
                printed = self.type(step.command)
            if not is_as_shown(printed, step.output, varies=block.varies):
                raise Wrong(step.command, printed, step.output)

    def _start_anew(self, command: str) -> None:
        """Start the server with the options of a command, in place of the one that runs."""
        _, _, *options = shlex.split(command.replace("$PWD", str(self._folder)))
        self._server.end()
        if "--data" in options:
            at = options.index("--data")
            self._server.data = self._folder / options[at + 1]
            del options[at : at + 2]
        self._server.start(*options)

    def type(self, command: str) -> list[str]:
        """What a command prints; `export` holds for those after it."""
        if variable := re.fullmatch(r"export (\w+)=(\S+)", command):
            self._environment[variable[1]] = self._here(variable[2])
            return []
        example = re.match(r"python examples/\w+\.py(?! rabbitmq-stream:)", command)
        if example:
            command = f"{example[0]} {self._argument_of(command)}{command[example.end() :]}"
        result = subprocess.run(
            self._here(command),
            shell=True,
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return result.stdout.splitlines()

    def _read_program(self, block: Block) -> None:
        if is_part_of_an_example(block.text):
            return
        name = re.match(r"# (\w+\.py)\n", block.text)
        file = self._folder / (name[1] if name else f"line_{block.line}.py")
        file.write_text(self._here(block.text))
        if name is None:
            printed = self.type(f"python {file.name} && echo done")
            if printed[-1:] != ["done"]:
                raise Wrong(block.text, printed, ["(no error)"])

    def _here(self, text: str) -> str:
        text = text.replace("connect()", f'connect("{self._server.uri}")')
        return re.sub(
            r"\b(5552|5672|15672|15692)\b", lambda found: str(self._ports[found[0]]), text
        )

    def _argument_of(self, command: str) -> object:
        if "_in_spark" in command:
            return ""
        if "rstream" in command:
            return self._server.port
        return self._server.amqp_uri if "pika" in command else self._server.uri


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with warm_commands(tmp_path_factory.mktemp("commands")) as folder:
        yield folder


@pytest.mark.parametrize("page", list(pages_to_type()))
def test_what_is_typed_prints_what_is_shown(page: Page, commands: Path, tmp_path: Path) -> None:
    http = ("--http-port", "0") if "15672" in page.text else ()
    http += ("--metrics-port", "0") if "15692" in page.text else ()
    with ServerProcess(tmp_path / "data", *http) as server:
        path = without_java(tmp_path) if page.needs_spark else ""
        found = first_wrong(page, Reader(server, tmp_path, commands, path))
    if found:
        pytest.fail(found, pytrace=False)


def first_wrong(page: Page, reader: Reader) -> str:
    for block in page.blocks:
        if block.kind in TYPED:
            try:
                reader.read(block)
            except Wrong as error:
                return f"{page.name}, line {block.line}: {error}"
    return ""


@pytest.mark.parametrize("page", documentation()[1:], ids=ids)
def test_every_block_says_what_it_is(page: Page) -> None:
    assert NOT_TYPED.isdisjoint(block.kind for block in page.blocks)


def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            child = command.get_command(context, word)
            assert child is not None
            yield from walk(f"{name} {word}", child)


COMMANDS = dict([*walk("streamd", main), *walk("python -m segments", segments_main)])
OPTIONS = {
    name: {
        word
        for parameter in command.params
        for word in (*parameter.opts, *parameter.secondary_opts)
    }
    for name, command in COMMANDS.items()
}
ANY_OPTION = {"-h", "--help", *FOREIGN}.union(*OPTIONS.values())


def named_command(code: str) -> tuple[str, str]:
    """The command that code begins with or has after a program that runs it, and what follows."""
    for found in re.finditer(r"(?<![\w./-])(?:streamd|python -m segments)(?= |$)", code):
        name, rest = found[0], code[found.end() :]
        while word := re.match(r" ([a-z]+)(?![\w=./-])", rest):
            if f"{name} {word[1]}" not in COMMANDS:
                break
            name, rest = f"{name} {word[1]}", rest[word.end() :]
        is_bare = name in ("streamd", "python -m segments")
        if not is_bare or (found.start() == 0 and rest.startswith(" -")):
            return name, rest
    return "", ""


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*(?![\w*…])", text))


@pytest.mark.parametrize("page", everything(), ids=ids)
def test_every_option_that_is_named_exists(page: Page) -> None:
    for code in page.code():
        name, rest = named_command(code)
        if name:
            own = re.split(r" (?:[|;&]|&&) ", rest)[0]
            known = (
                OPTIONS[name] | {"--help"} | (OPTIONS["streamd"] if name == "streamd" else set())
            )
            assert options_in(own) <= known, f"{name} has no such option: {code}"
        elif code.startswith("--"):
            assert options_in(code) <= ANY_OPTION, f"no command has such an option: {code}"


@pytest.mark.parametrize("page", everything(), ids=ids)
def test_every_command_that_is_named_exists(page: Page) -> None:
    for code in page.code():
        words = re.match(r"(streamd|python -m segments)((?: [a-z]+\b(?![\w=./-]))+)", code)
        if words:
            name, rest = named_command(code)
            assert name, f"there is no such command: {code}"
            is_group = isinstance(COMMANDS[name], click.Group)
            assert not (is_group and re.match(r" [a-z]", rest)), (
                f"{name} has no such command: {code}"
            )


@pytest.mark.parametrize("page", everything(), ids=ids)
def test_every_variable_that_is_named_exists(page: Page) -> None:
    known = {f"STREAMD_{setting.name.upper()}" for setting in describe()} | OTHER_VARIABLES
    assert set(re.findall(r"\bSTREAMD_[A-Z_]*[A-Z]\b", page.text)) <= known


@pytest.mark.parametrize("page", everything(), ids=ids)
def test_wheels_that_are_named_are_of_this_version(page: Page) -> None:
    assert set(re.findall(r"streamd_server-(\d[\d.]*\d)", page.text)) <= {__version__}


@pytest.mark.parametrize("page", everything(), ids=ids)
def test_every_target_of_make_exists(page: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        found[1] for code in page.code() if (found := re.match(r"(?:\$ )?make ([a-z-]+)", code))
    }
    assert named <= targets


@pytest.mark.parametrize("page", everything(), ids=ids)
def test_links_inside_lead_somewhere(page: Page) -> None:
    assert [link for link in page.links() if not page.leads_somewhere(link)] == []


@pytest.mark.parametrize("page", documentation(), ids=ids)
def test_settings_files_are_read(page: Page, tmp_path: Path) -> None:
    for number, block in enumerate(block for block in page.blocks if block.kind == "toml"):
        found, text = tomllib.loads(block.text), block.text
        if block.text.lstrip("# \n").startswith("["):  # a table: of another program
            options = found.get("tool", {}).get("pytest", {}).get("ini_options", {})
            text = "\n".join(options.get("streamd_settings", ()))
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        assert not found or not text or load(file, {}) != Config()


class TestHarness:
    """What is wrong on a page is found."""

    @pytest.fixture
    def reader(self, server: ServerProcess, commands: Path, tmp_path: Path) -> Reader:
        return Reader(server, tmp_path, commands)

    def test_a_wrong_output_is_named_with_its_command(self, reader: Reader) -> None:
        block = Block("console", "$ echo right\nright\n$ echo one\ntwo\n", 1)
        with pytest.raises(Wrong, match=r"echo one\n  prints:\n  one\n  the page shows:\n  two"):
            reader.read(block)

    def test_a_program_that_fails(self, reader: Reader) -> None:
        with pytest.raises(Wrong, match="ZeroDivisionError"):
            reader.read(Block("python", "1 / 0\n", 1))

    @pytest.mark.parametrize(
        ("shown", "is_right"),
        [
            (["a 2026-11-21T09:00:00.000Z", "b 17 bytes"], True),
            (["a …", "b 1 bytes"], True),
            (["…", "b   1 bytes"], True),
            (["a 2026-11-21T09:00:00.000Z", "…", "b 17 bytes", "…"], True),
            (["a 2026-11-21T09:00:00.000Z"], False),
            (["b 17 bytes", "…"], False),
            (["…", "c 17 bytes"], False),
            ([], False),
        ],
    )
    def test_what_may_differ(self, shown: list[str], is_right: bool) -> None:
        assert is_as_shown(["a 2025-01-01T00:00:00.123Z", "b 3 bytes"], shown) is is_right


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("harness") / "data") as process:
        yield process


def test_every_example_is_typed_on_some_page() -> None:
    typed = {
        found
        for page in documentation()
        for code in page.code()
        for found in re.findall(r"^python examples/(\w+\.py)", code)
    }
    assert typed | OTHER_EXAMPLES == {file.name for file in (ROOT / "examples").glob("*.py")}


def without_java(folder: Path) -> str:
    """A PATH with all there is but Java: Spark then uses the one from pip."""
    tools = folder / ".tools"
    tools.mkdir()
    for place in reversed(os.environ["PATH"].split(":")):
        for tool in Path(place).glob("*"):
            if not tool.name.startswith("java"):
                (tools / tool.name).unlink(missing_ok=True)
                (tools / tool.name).symlink_to(tool)
    return str(tools)


def test_nothing_says_to_install_what_is_not_ours() -> None:
    """In package indexes, streamd is another project; ours comes from a checkout or a wheel."""
    folders = ("streamd", "segments", "clients", "examples", "benchmarks")
    files = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(f for folder in folders for f in (ROOT / folder).rglob("*.py")),
    ]
    assert len(files) > 100, "or this test looks at the wrong place"
    index_name = re.compile(
        r"(pip|pipx|uvx|uv)( \w+)*( -\S+)* ['\"]?streamd\b(?!-server)|streamd\["
    )
    found = {str(file.relative_to(ROOT)) for file in files if index_name.search(file.read_text())}
    assert found == set()


def test_the_table_of_false_positives() -> None:
    """Two bits for each value, of all but the first; see segments/bloom.py."""
    text = (ROOT / "docs" / "concepts" / "filtering.md").read_text()
    header, *rows = re.findall(r"^\| (?:different|\d).*", text, re.MULTILINE)
    sizes = [int(size) for size in re.findall(r"(\d+) bytes", header)]
    for row in rows:
        count, *shown = re.findall(r"[\d.]+", row)
        for size, share in zip(sizes, shown, strict=True):
            unset = (1 - 1 / (8 * size - 1)) ** (2 * int(count))
            decimals = len(share.partition(".")[2])
            assert f"{100 * (1 - unset) ** 2:.{decimals}f}" == share, (count, size)
    assert len(rows) == 6
