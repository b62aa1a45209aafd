"""What is wrong with a selector, and where."""

_SHOWN = 72  # characters of a long line that are shown around the place


class SelectorError(ValueError):
    """A selector's text cannot be used.

    Attributes:
        reason: what was found and what was expected.
        text: the selector.
        start, end: the characters of `text` that are at fault; `end` is exclusive.
    """

    def __init__(self, reason: str, text: str, start: int, end: int) -> None:
        super().__init__(reason, text, start, end)
        self.reason = reason
        self.text = text
        self.start = start
        self.end = end

    @property
    def line(self) -> int:
        """Line of the place, from 1."""
        return self.text.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        """Character of the place in its line, from 1."""
        return self.start - (self.text.rfind("\n", 0, self.start) + 1) + 1

    def __str__(self) -> str:
        """The reason, the line at fault, and a line with carets under the place."""
        begin = self.text.rfind("\n", 0, self.start) + 1
        end = self.text.find("\n", self.start)
        line = self.text[begin : len(self.text) if end < 0 else end]
        first = max(0, self.column - 1 - _SHOWN // 2)
        shown = "".join(c if c.isprintable() else " " for c in line[first : first + _SHOWN])
        indent = self.column - 1 - first
        width = max(1, min(self.end - self.start, len(shown) - indent))
        where = f"line {self.line}, " if "\n" in self.text else ""
        caret = " " * indent + "^" * width
        return f"{where}column {self.column}: {self.reason}\n  {shown}\n  {caret}"
