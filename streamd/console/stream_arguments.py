"""Forms for the arguments of streams: which there are, and under which headings."""

from collections.abc import Callable, ItemsView, Iterable, Mapping

from streamd.broker.declared.argument_kinds import Value
from streamd.broker.declared.arguments import ARGUMENTS, Argument, plain_arguments
from streamd.console.forms import Form

TITLES = {name: argument.title for name, argument in ARGUMENTS.items() if argument.heading}


def groups(chosen: Callable[[str], bool]) -> ItemsView[str, list[Argument]]:
    """The arguments in forms, by heading, as far as they are chosen by their names."""
    found: dict[str, list[Argument]] = {}
    for name in filter(chosen, TITLES):
        found.setdefault(ARGUMENTS[name].heading, []).append(ARGUMENTS[name])
    return found.items()


def given(form: Form, names: Iterable[str]) -> dict[str, str]:
    """The arguments that were filled in."""
    return {name: text for name in names if (text := form.text(name))}


def as_text(arguments: Mapping[str, Value]) -> dict[str, str]:
    """Arguments as they are typed."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in plain_arguments(arguments).items()
    }
