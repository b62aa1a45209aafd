"""The super streams of one virtual host, as the stream protocol asks for them."""

from collections.abc import Iterator

from streamd.broker.routing.topology import Topology
from streamd.broker.streams.groups import NO_PARTITION
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.streams import Partition, SuperStreamRow


class SuperStreams:
    """A view of those exchanges that are super streams."""

    def __init__(self, virtual_host: Name, topology: Topology) -> None:
        self._virtual_host = virtual_host
        self._topology = topology

    def __contains__(self, name: Name) -> bool:
        """Whether there is a super stream of that name."""
        return self._topology.is_super_stream(name)

    def rows(self) -> Iterator[SuperStreamRow]:
        """The present super streams, by name."""
        names = [row.name for row in self._topology.rows() if row.is_super_stream]
        return (self.find(name) for name in names if name in self)

    def find(self, name: Name) -> SuperStreamRow:
        """The super stream `name`.

        Raises:
            Refused: it does not exist.
        """
        if name not in self:
            raise Refused(Reason.NOT_FOUND, name)
        partitions = [
            Partition(binding.key, binding.destination, binding.position)
            for binding in self._topology.bindings_from(name)
            if binding.position is not None
        ]
        return SuperStreamRow(self._virtual_host, name, tuple(partitions))

    def partition_number(self, name: Name, stream: Name) -> int:
        """The place of a stream among a super stream's partitions; NO_PARTITION without one."""
        if name not in self:
            return NO_PARTITION
        streams = [partition.stream for partition in self.find(name).partitions]
        return streams.index(stream) if stream in streams else NO_PARTITION
