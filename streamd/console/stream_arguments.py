"""Forms for the arguments of streams: which there are, and under which headings."""

from collections.abc import Callable, ItemsView, Iterable

from streamd.console.forms import Form
from streamd.operations.arguments import ARGUMENTS, Argument, as_typed

TITLES = {name: argument.title for name, argument in ARGUMENTS.items() if argument.heading}


def groups(chosen: Callable[[str], bool]) -> ItemsView[str, list[Argument]]:
    """The arguments in forms, by heading, as far as they are chosen by their names."""
    found: dict[str, list[Argument]] = {}
    for name in filter(chosen, TITLES):
        found.setdefault(ARGUMENTS[name].heading, []).append(ARGUMENTS[name])
    return found.items()


def given(form: Form, names: Iterable[str]) -> dict[str, str]:
    """The arguments that were filled in."""
    return {name: as_typed(name, text) for name in names if (text := form.text(name))}
