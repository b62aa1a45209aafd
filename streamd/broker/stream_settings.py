"""Changes to streams that exist: their settings, and the selectors that groups register."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamd.broker.arguments import policy_of, read_settings
from streamd.broker.errors import Reason, Refused
from streamd.broker.resources import ServerResources
from streamd.broker.standing_selectors import StandingSelector

if TYPE_CHECKING:
    from streamd.broker.virtual_host import VirtualHost


class StreamSettings:
    """What may be changed in a virtual host's streams.

    Args:
        host: the virtual host.
        resources: the catalog, and who may change it.
    """

    def __init__(self, host: "VirtualHost", resources: ServerResources) -> None:
        self._host = host
        self._resources = resources

    async def set_arguments(self, name: str, pairs: Iterable[tuple[str, str]]) -> None:
        """Change what a stream was declared with; holds from the next chunk on.

        Declaring it again as it was declared finds it as before.

        Raises:
            Refused: no such stream, an argument that cannot be changed or read, or the catalog
                cannot be written.
        """
        changes = read_settings(pairs)
        async with self._resources.catalog.turn() as turn:
            stream = self._host.find(name)
            row = self._host.row(name)
            row = row._replace(settings={**row.settings, **changes})
            policy = policy_of(row.effective)
            await turn.commit(lambda catalog: catalog.put_settings(row))
            self._host.replace_row(row)
            stream.set_policy(policy)
        await stream.expire()

    async def put_selector(self, name: str, row: StandingSelector) -> None:
        """Evaluate a group's selector on all that is published to a stream from now on.

        Raises:
            Refused: no such stream, too many groups, or the group's consumers rely on another
                selector, or the catalog cannot be written.
        """
        async with self._resources.catalog.turn() as turn:
            standing = self._host.find(name).standing
            standing.check_room(row)
            before = standing.find(row.group)
            if before is not None and before.token == row.token:
                return
            # Evaluated first, stamped then: no chunk from `since` on goes without.
            row = row._replace(since=self._host.find(name).log.next_offset)
            standing.put(row)
            try:
                host = self._host.name
                await turn.commit(lambda catalog: catalog.put_selector(host, name, row))
            except Refused:
                standing.remove(row.group)
                if before is not None:
                    standing.put(before)
                raise

    async def remove_selector(self, name: str, group: str) -> None:
        """Evaluate a group's selector no more.

        Raises:
            Refused: no such stream or group, its consumers rely on it, or the catalog cannot be
                written.
        """
        async with self._resources.catalog.turn() as turn:
            standing = self._host.find(name).standing
            if standing.find(group) is None:
                details = f"group {group} has no standing selector"
                raise Refused(Reason.PRECONDITION_FAILED, details)
            standing.check_unused(group)
            host = self._host.name
            await turn.commit(lambda catalog: catalog.remove_selector(host, name, group))
            standing.remove(group)
