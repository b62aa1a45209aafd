"""Several names of properties in one text: with commas between them.

A name with a comma in it is written in brackets, as in selectors: `region,[a,b]`. There a closing
bracket is doubled. A text without a comma is one name, whatever else stands in it.
"""

from collections.abc import Iterable, Iterator


def names_in(text: str) -> tuple[str, ...]:
    """The names.

    Raises:
        ValueError: one is missing, comes twice, or its bracket is not closed; says which.
    """
    if "," not in text:
        return (text,)
    names = tuple(_split(text))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"each name once, and {twice!r} is there twice")
    return names


def text_of_names(names: Iterable[str]) -> str:
    """The text of some names, from which `names_in` reads them."""
    found = tuple(names)
    if len(found) == 1 and "," not in found[0]:
        return found[0]
    return ",".join(map(_quoted, found))


def _quoted(name: str) -> str:
    if "," in name or name.startswith("[") or name != name.strip():
        return f"[{name.replace(']', ']]')}]"
    return name


def _split(text: str) -> Iterator[str]:
    rest = text
    while True:
        rest = rest.lstrip()
        if rest.startswith("["):
            name, rest = _bracket(rest[1:])
        else:
            name, comma, rest = rest.partition(",")
            name, rest = name.rstrip(), comma + rest
        if not name:
            raise ValueError("names with commas between them, and one is missing")
        yield name
        if not rest:
            return
        rest = rest[1:]


def _bracket(text: str) -> tuple[str, str]:
    """The name in a bracket that has been opened, and what follows: nothing, or from a comma on."""
    name, at = "", 0
    while True:
        end = text.find("]", at)
        if end < 0:
            raise ValueError("a closing bracket behind a name in brackets")
        name += text[at:end]
        if text[end + 1 : end + 2] != "]":
            break
        name, at = name + "]", end + 2
    rest = text[end + 1 :].lstrip()
    if rest and not rest.startswith(","):
        raise ValueError("a comma behind a name in brackets")
    return name, rest
