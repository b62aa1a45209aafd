"""`streamd cluster status|move|forget`: the servers that share a tier, and which of them leads."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

import click
import msgspec

from segments.errors import SegmentsError
from segments.store.object_store import ObjectStore
from segments.words import duration, plural
from streamd.cli.asking import ask_server
from streamd.cli.common import Commands, json_option, uri_option
from streamd.cli.terminal import Failed, note, show_table, shown, write, write_json
from streamd.operations.cluster import (
    ClusterFacts,
    ClusterNode,
    ForgetNode,
    GetCluster,
    MoveShard,
)
from streamd.operations.errors import Refused

Result = TypeVar("Result")

_tier_option = click.option(
    "--tier",
    metavar="URL",
    help="Ask the store alone, no server: s3://BUCKET/PREFIX, file:///FOLDER and so on; "
    "credentials are those of the environment.",
)
_endpoint_option = click.option(
    "--tier-endpoint", default="", metavar="URL", help="URL of the store, as for the server."
)


@click.group(cls=Commands)
def cluster() -> None:
    """Look at the servers that share a tier, of which one leads.

    Any of them can be asked with --uri, or their store with --tier, when none answers.

    \b
    Example:
      streamd cluster status
    """


@cluster.command()
@_tier_option
@_endpoint_option
@json_option
@uri_option
def status(uri: str, tier: str | None, tier_endpoint: str, *, as_json: bool) -> None:
    """Show who leads, and how the nodes do.

    The exit code is 1 when the leader is not there.

    \b
    Examples:
      streamd cluster status
      streamd cluster status --tier s3://my-bucket/streams --json
    """
    found = _in_store(tier, tier_endpoint, _read) if tier else ask_server(uri, GetCluster())
    if as_json:
        write_json(msgspec.to_builtins(found))
    else:
        write(_sentence(found))
        show_table(
            ("node", "role", "leads", "since", "heartbeat", "stream", "behind", "version"),
            [tuple(_row(one)) for one in found.nodes],
            "llllllrl",
        )
    if not any(one.leads and one.is_there for one in found.nodes):
        raise click.exceptions.Exit(1)


@cluster.command()
@click.argument("name")
@_tier_option
@_endpoint_option
@uri_option
def forget(uri: str, name: str, tier: str | None, tier_endpoint: str) -> None:
    """Forget the node NAME, which will not come back.

    Nothing depends on it: a node that is forgotten and comes back joins again.

    \b
    Example:
      streamd cluster forget old-machine
    """
    if tier:
        _in_store(tier, tier_endpoint, lambda store: _forget(store, name))
    else:
        ask_server(uri, ForgetNode(name=name))
    note(f"node {shown(name)} is forgotten")


@cluster.command()
@click.argument("shard")
@click.argument("node")
@uri_option
def move(uri: str, shard: str, node: str) -> None:
    """Have NODE lead the streams that were placed at the node SHARD.

    It does until it ends, or another one is told to. Publishers and consumers find it by
    themselves; nothing is lost or doubled.

    \b
    Example:
      streamd cluster move node-1 node-2
    """
    ask_server(uri, MoveShard(shard=shard, node=node))
    note(f"node {shown(node)} leads what was placed at {shown(shard)}")


def _in_store(tier: str, endpoint: str, work: Callable[[ObjectStore], Result]) -> Result:
    from segments.store.stores import open_store  # noqa: PLC0415 - where a store is named

    try:
        return work(open_store(tier, endpoint))
    except Refused as refused:
        raise Failed(refused.details) from refused
    except SegmentsError as error:
        raise Failed(str(error)) from error


def _read(store: ObjectStore) -> ClusterFacts:
    from streamd.broker.nodes.report import read_cluster  # noqa: PLC0415 - as above

    return read_cluster(store, round(time.time() * 1_000))


def _forget(store: ObjectStore, name: str) -> None:
    from streamd.broker.nodes.report import forget_node  # noqa: PLC0415 - as above

    forget_node(store, name, round(time.time() * 1_000))


def _sentence(found: ClusterFacts) -> str:
    leader = next((one for one in found.nodes if one.leads), None)
    who = f"node {shown(found.leader)} leads" if found.leader else "a server without --node leads"
    if leader is not None and not leader.is_there:
        who += f", and was last seen {duration(leader.age)} ago"
    epoch = f"epoch {found.epoch:,}, revision {found.revision:,}"
    return f"cluster {found.tier}, {plural(len(found.nodes), 'node')}: {who}, {epoch}"


def _row(node: ClusterNode) -> Iterator[str]:
    yield shown(node.name)
    is_other = node.role == "leader" and not node.leads
    yield f"{node.role}, until another one took over" if is_other else node.role or "?"
    yield shown(" ".join(node.shards))
    since = datetime.fromtimestamp(node.since_ms / 1_000).astimezone()
    yield f"{since:%Y-%m-%d %H:%M:%S}" if node.since_ms else ""
    yield f"{duration(node.age)} ago" + ("" if node.is_there else ": not there")
    yield shown(node.addresses.get("stream") or node.addresses.get("stream/ssl", ""))
    yield f"{node.behind:,}"
    yield shown(node.version)
