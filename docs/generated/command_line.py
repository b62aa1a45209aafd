"""The commands with their options, from click."""

import inspect
import re
from collections.abc import Iterator

import click

from docs.generated.text import code, entry, inline
from segments.__main__ import main as segments_main
from streamd.cli import main as streamd_main
from streamd.config import describe

PROGRAMS: dict[str, click.Command] = {
    "streamd": streamd_main,
    "python -m segments": segments_main,
}
_DEFAULT = re.compile(r"\s*\[default: (.*)\]$", re.DOTALL)
_NO_BREAKS = "\b"  # before a paragraph of help, click's sign to keep its lines


def markdown() -> str:
    """All commands, each with a heading."""
    parts = (_command(words, level, command) for words, level, command in commands())
    return "\n".join(line for part in parts for line in part)


def summary() -> str:
    """A table of the commands that do something."""
    rows = [
        f"| {_link(words)} | {inline(_paragraphs(command.help or '')[0])} |"
        for words, _, command in commands()
        if not isinstance(command, click.Group)
    ]
    return "\n".join(["| Command | Does |", "|---|---|", *(" ".join(r.split()) for r in rows)])


def commands() -> Iterator[tuple[str, int, click.Command]]:
    """What is typed, how deep it is among the commands, and the command."""
    for program, command in PROGRAMS.items():
        yield program, 0, command
        yield from _below(program, command, 1)


def _below(
    words: str, command: click.Command, level: int
) -> Iterator[tuple[str, int, click.Command]]:
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            yield f"{words} {name}", level, child
            yield from _below(f"{words} {name}", child, level + 1)


def _command(words: str, level: int, command: click.Command) -> Iterator[str]:
    yield f"\n{'###' if level > 1 else '##'} {code(words)}\n"
    context = click.Context(command, info_name=words)
    usage = " ".join(command.collect_usage_pieces(context))
    summary, *rest = _paragraphs(command.help or "")
    yield f"{inline(summary)}\n"
    yield f"```text\n{words} {usage}\n```\n"
    for paragraph in rest:
        yield f"{_shown(paragraph)}\n"
    if isinstance(command, click.Group):
        yield f"Commands: {', '.join(map(_link, _names(words, command)))}.\n"
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    of_settings = {f"--{setting.name.replace('_', '-')}" for setting in describe()}
    is_server = words == "streamd serve"
    for option in options:
        if not (is_server and option.opts[0] in of_settings):
            yield _option(option)
    if is_server:
        named = ", ".join(code(o.opts[0]) for o in options if o.opts[0] in of_settings)
        yield f"Each [setting](settings.md) has an option: {named}.\n"


def _names(words: str, group: click.Group) -> list[str]:
    return [f"{words} {name}" for name in group.list_commands(click.Context(group))]


def _link(words: str) -> str:
    target = re.sub(r"[^\w -]", "", words).replace(" ", "-")
    return f"[{code(words)}](#{target})"


def _paragraphs(text: str) -> list[str]:
    return re.split(r"\n\s*\n", inspect.cleandoc(text))


def _shown(paragraph: str) -> str:
    """A paragraph; one whose lines are kept is a heading and what can be typed."""
    if not paragraph.startswith(_NO_BREAKS):
        return inline(" ".join(paragraph.split()))
    heading, *lines = paragraph.removeprefix(_NO_BREAKS).strip("\n").split("\n")
    typed = "\n".join(line.strip() for line in lines)
    return f"{inline(heading)}\n\n```sh\n{typed}\n```"


def _option(option: click.Option) -> str:
    context = click.Context(click.Command(""))
    metavar = "" if option.is_flag else f" {option.make_metavar(context)}"
    names = ", ".join(code(f"{name}{metavar}") for name in option.opts)
    help_text = option.help or ""
    written = _DEFAULT.search(help_text)
    notes = [inline(" ".join(_DEFAULT.sub("", help_text).split()))]
    default = _default(option) if written is None else written[1]
    if default:
        notes.append(f"Default: {code(default)}.")
    if option.envvar:
        notes.append(f"Environment variable: {code(str(option.envvar))}.")
    return entry(names, " ".join(notes))


def _default(option: click.Option) -> str:
    if not option.show_default or option.default is None:
        return ""
    return option.show_default if isinstance(option.show_default, str) else str(option.default)
