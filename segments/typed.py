"""What is wrong with a value that msgspec refuses, in our words."""

import re

import msgspec

_MISSING = re.compile(r"Object missing required field `(.+?)`(?: - at `\$\.?(.*)`)?")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`")
_WRONG = re.compile(r"(.+) - at (?:`key` in )?`\$\.?(.*)`", re.DOTALL)
_KINDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "names with values",
    "str": "a text",
}
_PHRASES = (
    (", got ", ", not "),
    (" matching regex ", " matching "),
    (" length >= ", " length at least "),
    (" >= ", " of at least "),
    (" <= ", " up to "),
)
_NAMES = re.compile(rf"`((?:{'|'.join(_KINDS)})(?: \| (?:{'|'.join(_KINDS)}))*)`")


def sentence_of(error: msgspec.ValidationError) -> str:
    """What is wrong with which field, as our sentences begin."""
    text = str(error)
    if missing := _MISSING.fullmatch(text):
        field, path = missing.groups()
        return f"{path}.{field} is missing" if path else f"{field} is missing"
    if unknown := _UNKNOWN.fullmatch(text):
        return f"there is no field {unknown[1]!r}"
    reason, path = wrong.groups() if (wrong := _WRONG.fullmatch(text)) else (text, "")
    reason = _NAMES.sub(lambda m: " or ".join(_KINDS[k] for k in m[1].split(" | ")), reason)
    for found, ours in _PHRASES:
        reason = reason.replace(found, ours)
    reason = f"{reason[:1].lower()}{reason[1:]}"
    return f"{path}: {reason}" if path else reason
