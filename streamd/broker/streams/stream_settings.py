"""Changes to streams that exist: their settings, and the selectors that groups register."""

from collections.abc import Callable, Iterable
from contextlib import suppress

from segments import LogPolicy
from streamd.broker.catalog.writer import CatalogWriter, Check, permitted
from streamd.broker.declared.rows import StreamRow
from streamd.broker.declared.standing_selectors import StandingSelector
from streamd.broker.streams.stream_table import StreamTable
from streamd.operations.arguments import CONFIRM, TIER, check_confirm, read_settings
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name


class StreamSettings:
    """Changes the streams of a virtual host.

    Args:
        catalog: changes the catalog.
        has_tier: the server has one.
    """

    def __init__(
        self,
        virtual_host: Name,
        streams: StreamTable,
        catalog: CatalogWriter,
        policy_of: Callable[[StreamRow], LogPolicy],
        *,
        has_tier: bool,
    ) -> None:
        self._virtual_host = virtual_host
        self._streams = streams
        self._catalog = catalog
        self._policy_of = policy_of
        self._has_tier = has_tier

    async def set_arguments(
        self, name: Name, pairs: Iterable[tuple[str, str]], check: Check = permitted
    ) -> None:
        """Change arguments of a stream; they take effect with the next chunk.

        A declaration with the original arguments still counts as equal. See CatalogWriter.turn for
        `check`.

        Raises:
            Refused: no such stream, an argument that cannot be changed or read, or the catalog
                cannot be written.
        """
        changes = read_settings(pairs)
        async with self._catalog.turn(self._streams.while_there(check)) as turn:
            stream = self._streams.find(name)
            row = self._streams.row(name)
            row = row._replace(settings={**row.settings, **changes})
            is_of_tier = not changes.keys().isdisjoint({CONFIRM, TIER})
            if is_of_tier and row.shard:
                details = f"{name} was placed at node {row.shard}: it is confirmed by the tier"
                raise Refused(Reason.PRECONDITION_FAILED, details)
            if is_of_tier:
                check_confirm(row.effective, has_tier=self._has_tier)
            policy = self._policy_of(row)
            await turn.commit(lambda catalog: catalog.put_arguments(row))
            self._streams.replace_row(row)
            stream.set_policy(policy)
        figures = stream.figures
        if figures is None or figures.num_segments > 1:
            with suppress(Refused):  # it cannot be opened now; its log says why
                async with stream.opened():
                    await stream.life.held.expire()

    async def put_selector(
        self, name: Name, row: StandingSelector, check: Check = permitted
    ) -> None:
        """Evaluate a group's selector on all that is published to a stream from now on.

        Raises:
            Refused: no such stream, too many groups, or the group's consumers rely on another
                selector, or the catalog cannot be written.
        """
        stream = self._streams.find(name)
        if self._streams.row(name).shard:
            raise Refused(
                Reason.PRECONDITION_FAILED,
                f"{name} was placed at node {self._streams.row(name).shard}: streams with standing "
                "selectors are declared with queue-leader-locator=client-local",
            )
        async with (
            stream.opened() as log,
            self._catalog.turn(self._streams.while_there(check)) as turn,
        ):
            if self._streams.find(name) is not stream:  # deleted and created again
                raise Refused(Reason.NOT_FOUND, name)
            standing = stream.standing
            standing.check_room(row)
            before = standing.find(row.group)
            if before is not None and before.token == row.token:
                return
            # Evaluated from here on, before anything else is written.
            row = row._replace(since=log.next_offset)
            host = self._virtual_host
            with standing.changing(row.group, row):
                await turn.commit(lambda catalog: catalog.put_selector(host, name, row))

    async def remove_selector(self, name: Name, group: str, check: Check = permitted) -> None:
        """Stop evaluating a group's selector.

        Raises:
            Refused: no such stream or group, its consumers rely on it, or the catalog cannot be
                written.
        """
        async with self._catalog.turn(self._streams.while_there(check)) as turn:
            standing = self._streams.find(name).standing
            if standing.find(group) is None:
                details = f"group {group} has no standing selector"
                raise Refused(Reason.PRECONDITION_FAILED, details)
            standing.check_unused(group)
            host = self._virtual_host
            with standing.changing(group, None):
                await turn.commit(lambda catalog: catalog.remove_selector(host, name, group))
