"""The paths of the HTTP API, from the OpenAPI document that the server itself serves."""

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

from docs.generated.text import code, entry
from streamd.http_api.app import routes_of
from streamd.http_api.openapi import document

Schema = dict[str, Any]
_OF_LISTS = frozenset(("columns", "page", "page_size", "name"))
_KINDS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "null": "null",
}
_OF_ALL = frozenset(("400", "401", "403", "404", "415", "5XX"))


def _document() -> Schema:
    return document(routes_of(MagicMock()))  # which server it is makes no difference


def paths() -> str:
    """Each method of each path, under the title of its part."""
    found = _document()
    lines: list[str] = []
    for tag in found["tags"]:
        lines.append(f"### {tag['name']}\n")
        alike: dict[str, list[str]] = {}
        entries: dict[str, Schema] = {}
        for path, operations in found["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation["tags"]:
                    key = json.dumps([method, *map(operation.get, ("summary", "description"))])
                    alike.setdefault(key, []).append(code(f"{method.upper()} {path}"))
                    entries[key] = operation
        lines += [entry(", ".join(names), *_about(entries[k])) for k, names in alike.items()]
    return "\n".join(lines)


def objects() -> str:
    """Each schema, with a heading to link to."""
    schemas = _document()["components"]["schemas"]
    return "\n".join(_object(name, schema) for name, schema in schemas.items())


def _about(operation: Schema) -> Iterator[str]:
    text = f"{operation['summary']}."
    if "description" in operation:
        text += f" {operation['description']}"
    yield text
    facts = [
        f"Parameter {code(p['name'])}: {p['description']}"
        for p in operation.get("parameters", ())
        if p["in"] == "query" and p["name"] not in _OF_LISTS
    ]
    if "requestBody" in operation:
        facts.append(f"Body: {_shown(_content(operation['requestBody']))}.")
    answers = operation["responses"].items()
    facts += [
        f"{status}: {_answer(answer)}"
        for status, answer in answers
        if status not in _OF_ALL and (status != "503" or "Health" in json.dumps(answer))
    ]
    yield " ".join(facts)


def _answer(answer: Schema) -> str:
    if "content" not in answer:
        return f"{answer['description'][0].lower()}{answer['description'][1:]}"
    schema = _content(answer)
    return f"{_shown(schema['anyOf'][0] if 'anyOf' in schema else schema)}."


def _content(part: Schema) -> Schema:
    found: Schema = part["content"]["application/json"]["schema"]
    return found


def _object(name: str, schema: Schema) -> str:
    text = f"\n### Object {name}\n\n"
    if "description" in schema:
        text += f"{schema['description']}\n\n"
    return text + "\n".join(_fields(schema, ""))


def _fields(schema: Schema, indent: str) -> Iterator[str]:
    needed = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        must = " (needed)" if name in needed else ""
        description = f": {field['description']}" if "description" in field else ""
        default = f" Default: {code(json.dumps(field['default']))}." if "default" in field else ""
        yield f"{indent}* {code(name)}{must} — {_shown(field)}{description}{default}"
        inner = field.get("items", field)
        yield from _fields(inner, f"{indent}  ")


def _target(name: str) -> str:
    """Where links to a schema lead, its heading; parts of the API have some of the same names."""
    return f"object-{name.lower()}"


def _shown(schema: Schema) -> str:
    """The type of a value, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_target(name)})"
    if "anyOf" in schema:
        return ", or ".join(map(_shown, schema["anyOf"]))
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(value)) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"a list of {_plural(schema['items'])}" if "items" in schema else "a list"
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " or ".join(_KINDS[kind] for kind in kinds)


def _plural(schema: Schema) -> str:
    return _shown(schema) if "$ref" in schema else f"{schema['type']}s"
