"""Plain text from the code as Markdown."""

import re

_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#$~])")
# What is typed as it stands: options, environment variables, paths of the API, and what is quoted
# with backquotes.
_CODE = re.compile(r"`([^`]+)`|((?<![\w-])--[a-z][a-z-]*|\bSTREAMD_[A-Z_…]+)")


def plain(text: str) -> str:
    """The text with nothing in it that Markdown takes for markup."""
    return _MARKUP.sub(r"\\\1", text)


def inline(text: str) -> str:
    """The same, with what is typed as code."""
    parts, end = [], 0
    for match in _CODE.finditer(text):
        parts += [plain(text[end : match.start()]), code(match[1] or match[2])]
        end = match.end()
    return "".join([*parts, plain(text[end:])])


def code(text: str) -> str:
    """The text as code."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


def entry(terms: str, *paragraphs: str) -> str:
    """An item of a list."""
    body = "\n\n  ".join(paragraphs)
    return f"* {terms}: {body}\n"
