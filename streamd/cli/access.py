"""`streamd user`, `vhost`, `permission`: manage the users of a running server."""

import getpass
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from streamd.cli.common import Commands, json_option, run_client, uri_option
from streamd.cli.terminal import Misused, note, show_table, shown, write_json

if TYPE_CHECKING:
    from clients import Client

Rows = list[dict[str, str]]


def _run(uri: str, operation: str, **arguments: str) -> Rows:
    async def work(client: "Client") -> Rows:
        return await client.manage(operation, **arguments)

    return run_client(uri, work)


def _show(rows: Rows, columns: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        write_json(rows)
        return
    show_table(columns, [[row[column] for column in columns] for row in rows])


def _asked_for(_context: click.Context, _option: click.Parameter, given: str | None) -> str:
    """The password that was given, or else is typed; without a terminal, a line of stdin."""
    if given is not None:
        return given
    try:
        with warnings.catch_warnings(action="error", category=getpass.GetPassWarning):
            typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    except getpass.GetPassWarning:
        typed = ""
        with suppress(OSError, UnicodeDecodeError):
            typed = sys.stdin.readline().rstrip("\n")
        if not typed:
            raise Misused(
                "there is no terminal to ask for the password; set STREAMD_NEW_PASSWORD, or give "
                "the password on stdin"
            ) from None
    return typed


_password_option = click.option(
    "--password",
    envvar="STREAMD_NEW_PASSWORD",
    callback=_asked_for,
    help="Better typed at the prompt, or set in STREAMD_NEW_PASSWORD: process lists show options.",
)
_tag_option = click.option(
    "--tag",
    multiple=True,
    type=click.Choice(["administrator", "monitoring", "policymaker", "management"]),
    help="Gives the user access to the HTTP API; may be repeated.",
)
_vhost_option = click.option(
    "--vhost", default="/", show_default=True, help="The virtual host of the permission."
)


@click.group(cls=Commands)
def user() -> None:
    """Add, list and delete users, and change passwords."""


@user.command(name="add")
@click.argument("name")
@_password_option
@click.option("--administrator", is_flag=True, help="The user may manage users and virtual hosts.")
@_tag_option
@uri_option
def add_user(
    name: str, password: str, tag: tuple[str, ...], uri: str, *, administrator: bool
) -> None:
    """Add the user NAME.

    Its permissions are set with `streamd permission set`.

    \b
    Examples:
      streamd user add ada
      streamd user add prometheus --tag monitoring
    """
    tags = (*tag, "administrator") if administrator else tag
    _run(uri, "user.add", name=name, password=password, tags=" ".join(tags))
    note(f"added user {shown(name)}; next: streamd permission set {shown(name)} --read '.*'")


@user.command(name="list")
@json_option
@uri_option
def list_users(uri: str, *, as_json: bool) -> None:
    """List all users.

    \b
    Example:
      streamd user list
    """
    _show(_run(uri, "user.list"), ("name", "tags"), as_json=as_json)


@user.command(name="delete")
@click.argument("name")
@uri_option
def delete_user(name: str, uri: str) -> None:
    """Delete the user NAME; its open connections end.

    \b
    Example:
      streamd user delete ada
    """
    _run(uri, "user.delete", name=name)
    note(f"deleted user {shown(name)}")


@user.command()
@click.argument("name")
@_tag_option
@uri_option
def tags(name: str, tag: tuple[str, ...], uri: str) -> None:
    """Replace the tags of the user NAME.

    Without --tag it loses those that it has.

    \b
    Example:
      streamd user tags ada --tag management
    """
    _run(uri, "user.tags", name=name, tags=" ".join(tag))
    note(f"{shown(name)} has " + (f"the tags {', '.join(tag)}" if tag else "no tags"))


@user.command()
@click.argument("name")
@_password_option
@uri_option
def passwd(name: str, password: str, uri: str) -> None:
    """Change the password of the user NAME.

    \b
    Example:
      streamd user passwd guest
    """
    _run(uri, "user.passwd", name=name, password=password)
    note(f"changed the password of {shown(name)}")


@click.group(cls=Commands)
def vhost() -> None:
    """Add, list and delete virtual hosts: separate sets of streams."""


@vhost.command(name="add")
@click.argument("name")
@uri_option
def add_vhost(name: str, uri: str) -> None:
    """Add the virtual host NAME.

    The user that adds it gets all permissions in it.

    \b
    Example:
      streamd vhost add staging
    """
    _run(uri, "vhost.add", name=name)
    note(f"added virtual host {shown(name)}")


@vhost.command(name="list")
@json_option
@uri_option
def list_vhosts(uri: str, *, as_json: bool) -> None:
    """List all virtual hosts and how many streams they hold.

    \b
    Example:
      streamd vhost list
    """
    _show(_run(uri, "vhost.list"), ("name", "streams"), as_json=as_json)


@vhost.command(name="delete")
@click.argument("name")
@uri_option
def delete_vhost(name: str, uri: str) -> None:
    """Delete the virtual host NAME with all its streams.

    Connections in it are closed.

    \b
    Example:
      streamd vhost delete staging
    """
    _run(uri, "vhost.delete", name=name)
    note(f"deleted virtual host {shown(name)}")


@click.group(cls=Commands)
def permission() -> None:
    """Set, list and clear the permissions of users in virtual hosts."""


@permission.command(name="set")
@click.argument("name")
@_vhost_option
@click.option("--configure", default="", metavar="RE", help="Streams to create and delete.")
@click.option("--write", default="", metavar="RE", help="Streams to publish to.")
@click.option("--read", default="", metavar="RE", help="Streams to consume from.")
@uri_option
def set_permission(name: str, vhost: str, configure: str, write: str, read: str, uri: str) -> None:
    """Set the permissions of the user NAME in a virtual host.

    They replace those that it had there. RE is a regular expression that is searched for in
    stream names: '^app-' for those that begin with app-, '.*' for all. Without the option, no
    streams.

    \b
    Example:
      streamd permission set ada --write '^orders-' --read '.*'
    """
    _run(uri, "permission.set", user=name, vhost=vhost, configure=configure, write=write, read=read)
    note(f"set permissions of {shown(name)} in {shown(vhost)}")


@permission.command(name="list")
@json_option
@uri_option
def list_permissions(uri: str, *, as_json: bool) -> None:
    """List the permissions of all users.

    \b
    Example:
      streamd permission list
    """
    columns = ("user", "vhost", "configure", "write", "read")
    _show(_run(uri, "permission.list"), columns, as_json=as_json)


@permission.command(name="clear")
@click.argument("name")
@_vhost_option
@uri_option
def clear_permission(name: str, vhost: str, uri: str) -> None:
    """Remove all permissions of the user NAME in a virtual host.

    \b
    Example:
      streamd permission clear ada --vhost staging
    """
    _run(uri, "permission.clear", user=name, vhost=vhost)
    note(f"cleared permissions of {shown(name)} in {shown(vhost)}")
