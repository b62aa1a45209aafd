"""Where the catalog, the memory and the folders of a server differ, and what is left of clients."""

from typing import Any

from streamd.broker.catalog.catalog import Catalog
from tests.support.server import Harness


def disagreements(server: Harness, *, is_quiet: bool = True) -> list[str]:
    """One sentence for each.

    Args:
        server: in no change of its catalog.
        is_quiet: nobody is connected, and nothing goes on in the background.
    """
    broker = server.server.broker
    kept, known = _catalogued(broker.catalog._catalog), _remembered(server)
    found = [f"{what}: {kept[what] ^ known[what]}" for what in kept if kept[what] != known[what]]
    if not is_quiet:
        return [f"catalog and memory agree: not on {one}" for one in found]
    rows = [(host, host.row(n)) for host in broker.virtual_hosts.values() for n in host.names()]
    folders = {str(path) for path in (server.data / "streams").glob("*/*")}
    known_folders = {host.folder(row.name): row.has_files for host, row in rows}
    # A kill may leave a folder that the catalog has not been told of yet.
    if more := sorted(folders - known_folders.keys()):
        found.append(f"folders of no stream: {more}")
    if fewer := sorted({folder for folder, there in known_folders.items() if there} - folders):
        found.append(f"folders that are missing: {fewer}")
    left = [f"{count} {what}" for what, count in _left(server).items() if count]
    return [
        *(f"catalog, memory and folders agree: not on {one}" for one in found),
        *(f"nothing is left of clients: {one}" for one in left),
    ]


def _catalogued(catalog: Catalog) -> dict[str, set[Any]]:
    contents = catalog.contents()
    return {
        "virtual hosts": set(contents.virtual_hosts),
        "streams": {(row.virtual_host, row.name, str(row.arguments)) for row in contents.streams},
        "exchanges": {(row.virtual_host, row.name, row.type) for row in contents.exchanges},
        "bindings": {str(row) for row in contents.bindings},
        "users": set(catalog.users()),
        "permissions": set(catalog.permissions()),
    }


def _remembered(server: Harness) -> dict[str, set[Any]]:
    hosts = server.server.broker.virtual_hosts
    exchanges = [
        (host, row)
        for host in hosts.values()
        for row in host.topology.rows()
        if row.name and not row.name.startswith("amq.")
    ]
    return {
        "virtual hosts": set(hosts),
        "streams": {
            (host.name, name, str(host.arguments(name)))
            for host in hosts.values()
            for name in host.names()
        },
        "exchanges": {(host.name, row.name, row.type) for host, row in exchanges},
        "bindings": {
            str(binding)
            for host, row in exchanges
            for binding in host.topology.bindings_from(row.name)
        },
        "users": set(server.server.directory.users()),
        "permissions": set(server.server.directory.permissions()),
    }


def _left(server: Harness) -> dict[str, int]:
    running = server.server
    hosts = list(running.broker.virtual_hosts.values())
    num_streams = sum(len(host.names()) for host in hosts)
    return {
        "connections": len(running._running),
        "connections in lists": len(running.connections),
        "observers": sum(len(host.observers) for host in hosts),
        "groups": sum(len(host.groups._groups) for host in hosts),
        "waiters": sum(len(stream.waiters) for host in hosts for stream in host.streams()),
        "streams too many in the quota": running.broker._resources.quota.used - num_streams,
        "folders of deleted streams": sum(1 for _ in (server.data / "trash").glob("*")),
    }
