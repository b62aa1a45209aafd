"""What is raised where an object of a store cannot be used."""

from segments.errors import FormatError
from segments.store.object_names import MANIFEST_NAME


class BadObjectError(FormatError):
    """An object cannot be used; one sentence with its key, for the operator."""

    def __init__(self, key: str, reason: object) -> None:
        what = "manifest" if key.endswith(f"/{MANIFEST_NAME}") else "object"
        super().__init__(f"the {what} {key} cannot be used: {reason}")
