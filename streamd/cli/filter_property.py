"""`--filter-property` of `publish` and `consume`: filter values as the server sees them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from streamd.cli.common import count
from streamd.cli.terminal import BadSelector, note, shown

if TYPE_CHECKING:
    from clients import ReceivedMessage


class FilterProperty:
    """Reads the filter value of messages, and counts those whose property makes none.

    Args:
        name: of the property, None for no property.

    Raises:
        Misused: there is no such property.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._others = 0
        if name is None:
            return
        from segments.selector import (  # noqa: PLC0415 - not needed to show the help
            RowReader,
            SelectorError,
            filter_value_reader,
            parse_property,
        )

        try:
            found = parse_property(name)
        except SelectorError as error:
            raise BadSelector(f"--filter-property: {error}") from error
        self._read = filter_value_reader(found)
        self._read_row = RowReader([found]).read

    def value(self, raw: bytes) -> bytes | None:
        """The filter value of an encoded message, None for none."""
        if self._name is None:
            return None
        value = self._read(raw)
        if not value:
            self._others += self._has_another(raw)
        return value or None

    @property
    def for_consumer(self) -> "Callable[[ReceivedMessage], bytes | None] | None":
        """What a consumer takes as `filter_value`."""
        return None if self._name is None else lambda message: self.value(message.raw)

    def _has_another(self, raw: bytes) -> bool:
        from segments import FormatError  # noqa: PLC0415 - as above

        try:
            return self._read_row(raw)[0] not in (None, "", b"")
        except FormatError:
            return False

    def tell(self) -> None:
        """Say how many messages had another value than a text or bytes."""
        if self._others:
            note(
                f"{count(self._others, 'message')} with a number, or another value that is no "
                f"text, as {shown(self._name or '')}: that is no filter value; "
                "consume --sql finds numbers"
            )
