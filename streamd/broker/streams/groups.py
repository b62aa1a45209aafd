"""Single active consumers: of all that share a name on a stream, one at a time gets messages.

No member is active before it has answered ConsumerUpdate: until then it keeps its credit and gets
no chunk. In a group over a super stream the partition's number decides whose turn it is, so the
partitions spread over the members. A member that must step down is asked first, and its successor
becomes active once the old one has answered or is gone.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_stream_sac_coordinator.erl.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from streamd.operations.errors import Reason, Refused

NO_PARTITION = -1


class GroupKey(NamedTuple):
    """What the members of a group have in common."""

    stream: str
    name: str


class Member(Protocol):
    """A subscription in a group."""

    def tell_active(self, *, active: bool) -> None:
        """Ask the client; its answer comes back through `Group.answered`.

        From the moment it is asked to step down it gets no more chunks.
        """


class Group:
    """The members of one group, in the order in which they came.

    Args:
        partition: number of the stream in its super stream, NO_PARTITION outside of one.

    Attributes:
        active: the one that gets messages or was asked to take over; None in an empty group.
        stepping_down: the one that was asked to step down and has not answered yet.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.members: list[Member] = []
        self.active: Member | None = None
        self.stepping_down: Member | None = None

    def join(self, member: Member) -> None:
        """Add a new member, last in order."""
        self.members.append(member)
        self._settle()

    def leave(self, member: Member) -> None:
        """A member has unsubscribed or its connection is gone."""
        self.members.remove(member)
        if self.active is member:
            self.active = None
        if self.stepping_down is member:
            self.stepping_down = None
        self._settle()

    def answered(self, member: Member) -> None:
        """The client has answered that it steps down."""
        if self.stepping_down is member:
            self.stepping_down = None
            self._settle()

    def _settle(self) -> None:
        """Make the right member the active one, asking one client at a time."""
        if self.stepping_down is not None or not self.members:
            return
        wanted = self._wanted()
        if self.active is None:
            self.active = wanted
            wanted.tell_active(active=True)
        elif self.active is not wanted:
            self.stepping_down, self.active = self.active, None
            self.stepping_down.tell_active(active=False)

    def _wanted(self) -> Member:
        if self.partition == NO_PARTITION:
            return self.active or self.members[0]
        return self.members[self.partition % len(self.members)]


class Groups:
    """All groups of a server's virtual host."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, Group] = {}

    def join(self, key: GroupKey, partition: int, make_member: Callable[[Group], Member]) -> None:
        """Add a member to its group, which is created for its first member.

        Args:
            key: of the group.
            partition: the number that the member has for it.
            make_member: creates the member, given its group; if it raises, nothing is changed.

        Raises:
            Refused: the group knows the stream as another partition (PRECONDITION_FAILED).
        """
        group = self._groups.get(key)
        if group is None:
            group = Group(partition)
        elif group.partition != partition:
            details = f"partition {partition} of {key.stream}, the group has {group.partition}"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        member = make_member(group)
        self._groups[key] = group
        group.join(member)

    def leave(self, key: GroupKey, group: Group, member: Member) -> None:
        """A member leaves; a group without members is removed."""
        if self._groups.get(key) is not group:
            return  # its stream is gone, and nobody takes over
        group.leave(member)
        if not group.members:
            del self._groups[key]

    def streams_are_gone(self, streams: Collection[str]) -> None:
        """No member takes over in groups of these streams any more."""
        self._groups = {key: g for key, g in self._groups.items() if key.stream not in streams}
