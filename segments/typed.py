"""What is wrong with a value that msgspec refuses, in our words."""

import re

import msgspec

_MISSING = re.compile(r"Object missing required field `(.+?)`(?: - at `\$\.?(.*)`)?")
_WRONG = re.compile(r"(.+) - at (?:`key` in )?`\$\.?(.*)`", re.DOTALL)


def sentence_of(error: msgspec.ValidationError) -> str:
    """What is wrong with which field, as our sentences begin."""
    text = str(error)
    if missing := _MISSING.fullmatch(text):
        field, path = missing.groups()
        return f"{path}.{field} is missing" if path else f"{field} is missing"
    if wrong := _WRONG.fullmatch(text):
        reason, path = wrong.groups()
        return f"{path}: {reason[:1].lower()}{reason[1:]}"
    return text
