"""Shared by the commands: the server's address, running a client, errors in one line."""

import gc
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.types import IntParamType

from segments.errors import leaves
from segments.words import whole_number
from streamd.cli.log_lines import OneLine
from streamd.cli.terminal import BadSelector, Failed, Misused
from streamd.operations.names import Name, as_sent

if TYPE_CHECKING:
    from clients import Client, StreamError

Result = TypeVar("Result")

DEFAULT_URI = "rabbitmq-stream://guest:guest@localhost:5552/"


# What other command lines call things.
_ALIASES = {"ls": "list", "describe": "info", "show": "info", "rm": "delete", "remove": "delete"}


class Commands(click.Group):
    """Commands that answer to the names of other command lines as well, and to the plural."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click.Group."""
        for name in (cmd_name, _ALIASES.get(cmd_name, ""), cmd_name.removesuffix("s")):
            found = self.command_named(ctx, name)
            if found is not None:
                return found
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click.Group; as for options, the nearest names are told."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx))
            if not near:
                raise
            hint = f"{error.message} Did you mean {' or '.join(near)}?"
            raise click.UsageError(hint, error.ctx) from None

    def command_named(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of exactly this name."""
        return super().get_command(ctx, name)


class Number(click.FloatRange):
    """A number of 0 or more; of what float() takes besides, at most inf.

    Args:
        may_be_infinite: inf is one.
    """

    def __init__(self, *, may_be_infinite: bool = False) -> None:
        super().__init__(0)
        self._may_be_infinite = may_be_infinite

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as in click
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """See click.ParamType."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number) or (math.isinf(number) and not self._may_be_infinite):
            self.fail(f"{value} is not a number of 0 or more", param, ctx)
        return number


class WholeNumber(IntParamType):
    """A whole number.

    Args:
        most: the largest; None for any.
    """

    def __init__(self, least: int, most: int | None = None) -> None:
        self._least = least
        self._most = most

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as in click
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """See click.ParamType."""
        most = self._most
        number = whole_number(str(value), self._least, 1 << 63 if most is None else most)
        if number is None:
            bounds = (
                f"of {self._least:,} or more"
                if most is None
                else f"from {self._least:,} to {most:,}"
            )
            self.fail(f"{value} is not a whole number {bounds}", param, ctx)
        return number


class Dependent(click.Option):
    """An option that means nothing without another one; given alone it is a usage error.

    Args:
        needs: names of parameters, one of which has to be given as well.
    """

    def __init__(self, *args: Any, needs: tuple[str, ...], **kwargs: Any) -> None:  # noqa: ANN401 - as in click
        super().__init__(*args, **kwargs)
        self._needs = needs

    def handle_parse_result(
        self,
        ctx: click.Context,
        opts: Mapping[str, Any],
        args: list[str],
    ) -> tuple[Any, list[str]]:
        """See click.Parameter."""
        if self.name in opts and not any(name in opts for name in self._needs):
            declared = {param.name: param.opts[0] for param in ctx.command.params}
            raise click.UsageError(
                f"{self.opts[0]} needs {' or '.join(declared[name] for name in self._needs)}", ctx
            )
        return super().handle_parse_result(ctx, opts, args)


uri_option = click.option(
    "--uri",
    default=DEFAULT_URI,
    envvar="STREAMD_URI",
    show_default=True,
    metavar="URI",
    help="The server: rabbitmq-stream://user:password@host:port/virtual-host.",
)
retry_option = click.option(
    "--retry",
    "retry_seconds",
    type=Number(may_be_infinite=True),
    default=0,
    show_default=True,
    metavar="SECONDS",
    help="When the connection is lost, try to reconnect for this long, and go on; inf: for ever.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")


def virtual_host(uri: str) -> Name:
    """The virtual host in the address of a server.

    Raises:
        Misused: it is no address.
    """
    from clients.uri import parse_uri  # noqa: PLC0415 - only commands that talk to a server need it

    try:
        return as_sent(parse_uri(uri).virtual_host)
    except ValueError as error:
        raise Misused(str(error)) from error


def run_client(
    uri: str,
    work: Callable[["Client"], Awaitable[Result]],
    retry_seconds: float = 0,
    **options: int,
) -> Result:
    """Run `work` with a client of the server at `uri`; Ctrl-C leaves it in order.

    Args:
        uri: of the server.
        work: what is to be done.
        retry_seconds: how long to try to reconnect.
        options: others of `clients.connect`.

    Raises:
        Failed: the server refused something, or the connection is gone.
        Misused: an argument cannot be what it has to be.
    """
    from clients import connect  # noqa: PLC0415 - only commands that talk to a server need it

    async def main() -> Result:
        name = "streamd command line"
        async with connect(uri, name=name, retry_seconds=retry_seconds, **options) as client:
            return await work(client)

    return run(main)


def run(main: Callable[[], Awaitable[Result]]) -> Result:
    """Run something that talks to a server; Ctrl-C leaves it in order.

    Raises:
        Failed: the server refused something, or the connection is gone.
        Misused: an argument cannot be what it has to be.
    """
    import anyio  # noqa: PLC0415 - as above

    from clients import SelectorError, StreamError  # noqa: PLC0415 - as above
    from streamd.cli.pipes import until_interrupted  # noqa: PLC0415 - as above

    async def to_the_end() -> Result:
        with until_interrupted() as scope:
            result = await main()
        if scope.cancelled_caught:
            raise KeyboardInterrupt
        return result

    try:
        return anyio.run(to_the_end, backend="trio")
    except Exception as error:
        match next(leaves(error)):
            case click.ClickException() as found:
                raise found from error
            case StreamError() as found:
                raise Failed(f"{found}{_advice(found)}") from error
            case SelectorError() as found:
                raise BadSelector(str(found)) from error
            case UnicodeEncodeError() as found:
                raise Misused(f"{found.object!r} cannot be sent: it is not UTF-8") from error
            case ValueError() as found:
                raise Misused(str(found)) from error
        raise


def moment(text: str) -> datetime | None:
    """A time as in 2026-11-20T10:00:00Z, local without a zone; None for another text."""
    try:
        found = datetime.fromisoformat(text)
        found.timestamp()  # not every year can be told in seconds
    except (ValueError, OverflowError):
        return None
    return found


def _advice(error: "StreamError") -> str:
    """What to do about an error that says only what is wrong; empty for all others."""
    from clients import ServerRefused  # noqa: PLC0415 - as above
    from streamd.wire.stream import ResponseCode, text_of  # noqa: PLC0415 - as above

    match error.code if isinstance(error, ServerRefused) else None:
        case ResponseCode.STREAM_DOES_NOT_EXIST:
            return "; `streamd stream list` shows those that do"
        case ResponseCode.STREAM_NOT_AVAILABLE as code if str(error).endswith(text_of(code)):
            return "; the server's log says why"
        case ResponseCode.AUTHENTICATION_FAILURE:
            return "; user and password are given in --uri or STREAMD_URI"
        case ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE:
            return "; it does not exist, or the user has no permissions in it"
    return ""


def load_to_stay(module: str) -> ModuleType:
    """Import a module without looking for garbage meanwhile: an eighth of the time to load."""
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.enable()


def log(level: int) -> None:
    """Log to stderr; everything if --debug was given."""
    logging.raiseExceptions = False  # a log that cannot be written is no error of the command
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger().setLevel(logging.DEBUG if click.get_current_context().obj else level)
