"""The server's settings, from the declaration in streamd/config.py."""

from docs.generated.text import code, inline, sentence
from streamd.config import OFF, PORTS, Setting, describe


def markdown() -> str:
    """All settings, each with a heading to link to."""
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
    return f"### {code(setting.name)}\n\n{inline(sentence(setting.help))}\n\n{' · '.join(facts)}\n"


def _default(setting: Setting) -> str:
    if setting.name in PORTS and setting.default is None:
        return code(OFF)
    if setting.is_flag:
        return code(str(setting.default).lower())
    return "none" if setting.default in ((), "", None) else code(str(setting.default))
