"""The server's settings, from the declaration in streamd/config.py."""

from generated.text import code, definition, inline, sentence
from streamd.config import OFF, PORTS, Setting, describe


def markdown() -> str:
    """All settings, each with a target to link to."""
    return "\n".join(map(_setting, describe()))


def _setting(setting: Setting) -> str:
    facts = [
        code(f"--{setting.name.replace('_', '-')}"),
        code(f"STREAMD_{setting.name.upper()}"),
        setting.expected,
        f"default {_default(setting)}",
    ]
    if setting.is_list:
        facts.append("the option may be given several times")
    entry = definition(code(setting.name), inline(sentence(setting.help)), " · ".join(facts))
    return f"({setting.name.replace('_', '-')})=\n{entry}"


def _default(setting: Setting) -> str:
    if setting.name in PORTS and setting.default is None:
        return code(OFF)
    if setting.is_flag:
        return code(str(setting.default).lower())
    return "none" if setting.default in ((), "", None) else code(str(setting.default))
