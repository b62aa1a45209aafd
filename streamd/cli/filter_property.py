"""`--filter-property` of `publish` and `consume`: filter values as the server sees them."""

from typing import TYPE_CHECKING

from segments.words import plural
from streamd.cli.terminal import BadSelector, note, shown

if TYPE_CHECKING:
    from clients import Client
    from segments.missing_names import MissingNames


class FilterProperty:
    """Reads the filter value of messages, and counts those whose property makes none.

    Args:
        name: of the property, None for no property.

    Attributes:
        num_others: messages whose property has a value that is no filter value.

    Raises:
        BadSelector: there is no such property.
    """

    _names: "MissingNames | None" = None

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.num_others = 0
        self._takes_numbers = True
        if name is None:
            return
        from segments.missing_names import MissingNames  # noqa: PLC0415 - as below
        from segments.selector import (  # noqa: PLC0415 - not needed to show the help
            SelectorError,
            parse_property,
            property_value_reader,
        )

        try:
            self._read = property_value_reader(parse_property(name))
            self._names = MissingNames([parse_property(name)])
        except SelectorError as error:
            raise BadSelector(f"--filter-property: {error}") from error

    async def learn(self, client: "Client", stream: str) -> None:
        """Ask the server whether a number is a filter value on a stream.

        Raises:
            StreamDoesNotExist: there is no such stream.
        """
        from clients.selection import number_rule  # noqa: PLC0415 - as above
        from segments.selector import NumberRule  # noqa: PLC0415 - as above

        if self.name is not None:
            rule = await number_rule(client, stream, self.name)
            self._takes_numbers = rule is NumberRule.TEXT

    def value(self, raw: bytes) -> bytes | None:
        """The filter value to publish an encoded message with, None for none."""
        if self.name is None or self._names is None:
            return None
        self._names.look((raw,))
        found = self._read(raw)
        is_left_out = found.is_number and not self._takes_numbers
        self.num_others += found.is_other or is_left_out
        return None if is_left_out else found.value or None

    def tell(self) -> None:
        """Say what may be a slip: no message has the property, or values are no filter values."""
        hint = "" if self._names is None else self._names.hint()
        if hint:
            note(hint)
        if not self.num_others:
            return
        messages, name = plural(self.num_others, "message"), shown(self.name or "")
        if self._takes_numbers:
            what = f"a time, a list or the like as {name}: that is no filter value"
        else:
            what = (
                f"a number, or another value that is no text, as {name}: that is no filter value; "
                "consume --sql finds numbers"
            )
        note(f"{messages} with {what}")
