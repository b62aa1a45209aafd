"""Types in signatures lead to where they are documented.

A class is defined in one module and offered by another: `clients.producer.Producer` is
`clients.Producer` to programs, and documented as that. Annotations have the first name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from segments import amqp10

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


class Value:
    """In the place of the alias of that name, whose ten types would be in every annotation."""

    __module__ = amqp10.__name__


amqp10.Value = Value  # type: ignore[misc, assignment]  # before other modules annotate with it

_PUBLIC = ("segments", "segments.selector", "segments.spark", "clients")  # the last one counts
_ALONE = {"ConfigError": "streamd.config.ConfigError"}


def _names() -> dict[str, str]:
    """Where names lead: those of annotations, and those alone, as docstrings have errors."""
    found = dict(_ALONE)
    for module_name in _PUBLIC:
        module = import_module(module_name)
        for name in module.__all__:
            item: Any = getattr(module, name)
            found[name] = f"{module_name}.{name}"
            if hasattr(item, "__qualname__"):
                found[f"{item.__module__}.{item.__qualname__}"] = f"{module_name}.{name}"
    return found


def setup(app: "Sphinx") -> dict[str, bool]:
    """See Sphinx."""
    names = _names()

    def resolve(
        app: "Sphinx", env: "BuildEnvironment", node: "pending_xref", content: "nodes.TextElement"
    ) -> "nodes.reference | None":
        target = names.get(node.get("reftarget", ""))
        if node.get("refdomain") != "py" or target is None:
            return None
        document = node.get("refdoc", "")
        domain = env.domains.python_domain
        return domain.resolve_xref(env, document, app.builder, "obj", target, node, content)

    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
