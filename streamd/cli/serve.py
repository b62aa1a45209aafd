"""`streamd serve`: run the server until a signal ends it."""

import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from segments.errors import leaves
from segments.store.heartbeat import NodeRole
from segments.words import plural
from streamd.broker.search_places import Beside, Place
from streamd.cli.common import load_to_stay, log
from streamd.cli.json_lines import is_json, log_as_json
from streamd.cli.log_writer import written_apart
from streamd.cli.pipes import read_some
from streamd.cli.several import run_nodes
from streamd.cli.terminal import Failed, Misused, ReaderLeft, write
from streamd.config import (
    AMQP_PORTS,
    HTTP_PORTS,
    METRICS_PORTS,
    OFF,
    PORTS,
    Config,
    ConfigError,
    Setting,
    Value,
    describe,
    load,
)
from streamd.net.actor import recent
from streamd.net.transport import Address
from streamd.processes import control
from streamd.processes.child import follow
from streamd.processes.control import AGAIN, READY, Said, say
from streamd.processes.parent import Parent, Work
from streamd.server import Server, StartError, addresses_of, bound_ports, serve as serve_streams
from streamd.service_manager import ServiceManager
from streamd.version import __version__

logger = logging.getLogger("streamd")

AMQP = "AMQP"  # the processes that have its connections are called so, with a number
# How long a busy worker thread may keep the event loop waiting; Python's default is 5 ms.
_SWITCH_SECONDS = 0.001
_READ_BYTES = 4_096  # of stdin at a time; they mean nothing


class _Port(click.ParamType):  # type: ignore[type-arg]  # not generic in older click
    """A port, or off."""

    name = "port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == OFF:
            return OFF
        try:
            return int(str(value))
        except ValueError:
            self.fail(f"{value!r} is neither a port nor {OFF}", param, ctx)


def _option(setting: Setting) -> Callable[[Any], Any]:
    """A setting as an option; its default is shown, and applied by the configuration."""
    if setting.name in PORTS:
        kind: Any = _Port()
        shown: object = OFF if setting.default is None else setting.default
    else:
        kind = int if setting.is_number else str
        shown = "hidden" if setting.name == "password" else setting.default
    text = setting.help[0].upper() + setting.help[1:]
    default = "" if shown in (None, "") else f"  [default: {shown}]"
    if setting.is_flag:  # None where it is not given: the file and the environment decide
        name = f"--{setting.name.replace('_', '-')}"
        return click.option(name, is_flag=True, default=None, help=f"{text}.")
    if setting.is_list:
        default = "  [may be given several times]"
    return click.option(
        f"--{setting.name.replace('_', '-')}",
        type=kind,
        multiple=setting.is_list,
        help=f"{text}.{default}",
    )


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    for setting in reversed(list(describe())):
        command = _option(setting)(command)
    return command


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with settings, named as the options are, with _ for -.",
)
@click.option(
    "--until-stdin-ends",
    is_flag=True,
    help="Also stop when stdin ends, so that the server ends with the program that started it.",
)
@click.option(
    "--restore",
    is_flag=True,
    help="Begin on an empty data folder with all streams, users and exchanges that the tier has, "
    "and go on publishing. The server that wrote them before can no longer change the tier.",
)
@click.option(
    "--single-process",
    is_flag=True,
    help="Run HTTP, metrics and searches in the process of the streams instead of in processes "
    "of their own.",
)
@_with_settings
def serve(
    config: Path | None, *, until_stdin_ends: bool, single_process: bool, **flags: Value
) -> None:
    """Run the server until SIGINT or SIGTERM.

    When ready it prints one line: streamd ready stream=HOST:PORT amqp=HOST:PORT http=HOST:PORT
    metrics=HOST:PORT, and with TLS tls=HOST:PORT, amqp-tls=HOST:PORT, https=HOST:PORT and
    metrics-tls=HOST:PORT at its end. On SIGHUP it reads the certificate again. `streamd print unit`
    prints a unit for systemd.

    Settings come from the file, then from the environment (STREAMD_DATA, STREAMD_STREAM_PORT, …),
    then from options; the later wins.

    \b
    Examples:
      streamd serve
      streamd serve --data /var/lib/streamd --stream-port 5552
      STREAMD_PASSWORD=secret streamd serve --config streamd.toml
      streamd serve --tls-port 5551 --tls-certificate server.pem
      streamd serve --tier s3://my-bucket/streams
      streamd serve --nodes 4
    """
    log(logging.INFO)
    if (flags["log_format"] or os.environ.get("STREAMD_LOG_FORMAT")) == "json":
        log_as_json()  # so that what is wrong with the other settings is told in it
    try:
        _serve(config, flags, until_stdin_ends=until_stdin_ends, is_single=single_process)
    except Exception as error:
        if not is_json():
            raise
        if isinstance(error, Failed):
            logger.critical("%s", error.message)
        raise click.exceptions.Exit(getattr(error, "exit_code", 1)) from error


def _serve(
    config: Path | None, flags: dict[str, Value], *, until_stdin_ends: bool, is_single: bool
) -> None:
    _allow_many_files()
    try:
        settings = load(config, None, **flags)
        if settings.log_format == "json":
            log_as_json()
        if settings.nodes > 1:
            run_nodes(settings, [] if config is None else ["--config", str(config)], flags)
            return
    except ConfigError as error:
        raise Misused(str(error)) from error
    logger.info("streamd %s, data in %s", __version__, Path(settings.data).absolute())
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with bound_ports(settings) as bound, closing(ServiceManager()) as manager:
            moved = (*HTTP_PORTS, *(AMQP_PORTS if settings.amqp_processes else ()))
            outside = [] if is_single else [port for port in moved if port in bound]
            place = None if is_single else Beside()
            engine = partial(_run_engine, settings, bound, outside, manager, place)
            _run_all(settings, bound, outside, engine, until_stdin_ends=until_stdin_ends)
    except StartError as error:
        raise Failed(str(error)) from error


def _run_all(
    settings: Config,
    bound: dict[str, list[socket.socket]],
    outside: Sequence[str],
    engine: Callable[..., bool],
    *,
    until_stdin_ends: bool,
) -> None:
    """Run the engine, and beside it what serves the ports that are outside; see `_run_engine`."""
    if any(port in bound and port not in outside for port in HTTP_PORTS):
        load_to_stay("streamd.doors")
    gc.freeze()  # modules stay: to look for garbage in them would hold everybody up
    if not outside:
        while engine(None, until_stdin_ends=until_stdin_ends):
            pass  # it is another one now, see streamd/broker/nodes/node.py
        return
    ports = {"HTTP": set(HTTP_PORTS) - set(METRICS_PORTS), "metrics": set(METRICS_PORTS)}
    for number in range(1, settings.amqp_processes + 1):
        ports[f"{AMQP} {number}"] = set(AMQP_PORTS)
    doors: dict[str, Work] = {}
    for name, own in ports.items():
        found = {port: bound[port] for port in outside if port in own}
        if found:
            doors[name] = partial(_run_door, name, settings, found)
    parent = Parent(
        partial(_as_child, engine),
        doors,
        prepare=partial(_load_doors, settings),
        ready=partial(_say_ready, addresses_of(bound), settings.node),
        stdin=sys.stdin.fileno() if until_stdin_ends else None,
        resting={NodeRole.STANDBY: [name for name in doors if name.startswith(AMQP)]},
    )
    code = parent.run()
    if code:
        raise click.exceptions.Exit(code)


def _as_child(
    engine: Callable[[socket.socket], bool], parent: socket.socket, _other: socket.socket | None
) -> int:
    """Run the engine in a process of its own; returns its exit code."""
    try:
        return AGAIN if engine(parent) else 0
    except Failed as error:
        if is_json():
            logger.critical("%s", error.message)
        else:
            error.show()
        return error.exit_code


def _run_engine(
    settings: Config,
    bound: dict[str, list[socket.socket]],
    outside: Sequence[str],
    manager: ServiceManager,
    search_place: Place | None,
    parent: socket.socket | None,
    *,
    until_stdin_ends: bool = False,
) -> bool:
    """Run the streams, and all ports but those that are outside; whether it has to run again.

    Args:
        settings: see Config.
        bound: listening sockets by the setting of their port.
        outside: settings of the ports that other processes serve.
        manager: of services.
        search_place: see Broker.
        parent: the way to it; None where this process is alone.
        until_stdin_ends: stop when stdin ends.

    Raises:
        Failed: the server cannot start.
    """
    refused: list[BaseException] = []
    is_again = False
    logging.getLogger().addHandler(recent)
    try:
        work = partial(_run, settings, bound, outside, manager, search_place, parent)
        with written_apart():
            is_again = trio.run(partial(work, until_stdin_ends=until_stdin_ends))
    except* StartError as group:
        refused += leaves(group)
    except* Exception:
        logger.critical("a bug ends the server", exc_info=True)
        raise
    if refused:
        raise Failed(str(refused[0]))
    return is_again


def _run_door(
    name: str,
    settings: Config,
    bound: dict[str, list[socket.socket]],
    parent: socket.socket,
    engine: socket.socket | None,
) -> int:
    if name.startswith(AMQP):
        from streamd.processes.amqp import serve_amqp as serve  # noqa: PLC0415 - where it is on
    else:
        from streamd.processes.doors import serve_ports as serve  # noqa: PLC0415 - as above

    assert engine is not None  # noqa: S101 - doors have their way to it
    with written_apart():
        trio.run(serve, settings, bound, parent, engine)
    return 0


def _load_doors(settings: Config) -> None:
    load_to_stay("streamd.processes.doors")
    if settings.amqp_processes:
        load_to_stay("streamd.processes.amqp")


def _say_ready(addresses: Mapping[str, Address], node: str = "", role: str = "") -> None:
    line = _where(addresses) + (f" node={node} role={role}" if node else "")
    try:
        write(f"streamd ready {line}")
    except (Failed, ReaderLeft):  # as a daemon has it
        logger.warning("nobody reads stdout; ready at %s", line)


def _allow_many_files() -> None:
    """Raise the limit of open files as far as allowed; the usual 1,024 are soon used up.

    A stream that is in use takes two or three, a connection and an open filter index one each.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(
    config: Config,
    bound: dict[str, list[socket.socket]],
    outside: Sequence[str],
    manager: ServiceManager,
    search_place: Place | None,
    parent: socket.socket | None,
    *,
    until_stdin_ends: bool,
) -> bool:
    stop, is_again = trio.Event(), False
    async with trio.open_nursery() as nursery:

        async def serve_to_the_end(
            task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
        ) -> None:
            nonlocal is_again
            is_again = await serve_streams(
                config,
                stop=stop,
                bound=bound,
                outside=outside,
                search_place=search_place,
                task_status=task_status,
            )
            nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint()  # it may not have begun: nobody is to wait for that

        child = None
        if parent is None:
            await nursery.start(_stop_on_signal, stop, nursery.cancel_scope)
        else:
            child = _Child(stop, nursery)
            nursery.start_soon(follow, parent, child.take)
        if until_stdin_ends:
            nursery.start_soon(_stop_after_stdin, stop)
        async with trio.open_nursery() as starting:
            starting.start_soon(_end_start, stop, nursery.cancel_scope)
            server: Server = await nursery.start(serve_to_the_end)
            starting.cancel_scope.cancel()
        if child is None or parent is None:
            await nursery.start(_reload_on_signal, server, manager)
            _say_ready(server.addresses, config.node, _role(server))
        else:
            child.server, child.manager = server, manager
            say(parent, READY, _role(server))
        manager.ready(server.broker.supervisor, nursery, stop, partial(_figures, server))
    return is_again


def _role(server: Server) -> str:
    """What a node of a cluster is; empty for a server that is in none."""
    return "" if server.node is None else server.node.role


class _Child:
    """The engine, as the parent tells it what to do.

    Attributes:
        server: once it runs.
        manager: of services.
    """

    def __init__(self, stop: trio.Event, nursery: trio.Nursery) -> None:
        self.server: Server | None = None
        self.manager: ServiceManager | None = None
        self._stop, self._nursery = stop, nursery

    def take(self, said: Said) -> None:
        """What the parent has said."""
        match said.word:
            case control.STOP:
                self._stop.set()
            case control.STOP_NOW:
                self._nursery.cancel_scope.cancel()
            case control.RELOAD if self.server is not None and self.manager is not None:
                _reload(self.server, self.manager)
            case control.LINK if self.server is not None and said.bound is not None:
                serves_amqp = said.text.startswith(AMQP)
                serve = self.server.serve_links if serves_amqp else self.server.serve_door
                self._nursery.start_soon(serve, said.text, said.bound)


def _figures(server: Server) -> str:
    """How the server does, in a line for the service manager."""
    hosts = server.broker.virtual_hosts.values()
    streams, connections = sum(len(host.streams()) for host in hosts), len(server.connections)
    troubles = sum(len(host.alarms()) for host in hosts)
    in_trouble = f", {plural(troubles, 'stream accepts', 'streams accept')} no messages"
    text = f"{plural(streams, 'stream')}, {plural(connections, 'connection')}"
    if server.node is not None:
        text = f"node {server.node.name}, {server.node.role}: {text}"
    return text + (in_trouble if troubles else "")


def _where(found: Mapping[str, Address]) -> str:
    """The addresses of a server; a port that is off is shown as off, a TLS port not at all."""
    plain = [f"{name}={found.get(name, OFF)}" for name in ("stream", "amqp", "http", "metrics")]
    inside_tls = (
        ("tls", "stream/ssl"),
        ("amqp-tls", "amqp/ssl"),
        ("https", "https"),
        ("metrics-tls", "metrics/ssl"),
    )
    return " ".join(
        [*plain, *(f"{word}={found[name]}" for word, name in inside_tls if name in found)]
    )


async def _reload_on_signal(
    server: Server,
    manager: ServiceManager,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Read the certificate again on SIGHUP."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            _reload(server, manager)


def _reload(server: Server, manager: ServiceManager) -> None:
    with manager.reloading(), server.broker.supervisor.guarded("reading certificates"):
        if server.certificates is not None:
            server.certificates.reload()


async def _end_start(stop: trio.Event, everything: trio.CancelScope) -> None:
    """Stop a server that is not ready: it may wait for a store, and nobody has connected yet."""
    await stop.wait()
    everything.cancel()


async def _stop_after_stdin(stop: trio.Event) -> None:
    """Stop the server when nobody holds the other end of stdin any more."""
    with suppress(OSError):  # it was closed at the start
        while await read_some(sys.stdin.buffer, _READ_BYTES):
            pass
    logger.info("stdin has ended: stopping")
    stop.set()


async def _stop_on_signal(
    stop: trio.Event,
    everything: trio.CancelScope,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Stop the server on SIGINT or SIGTERM: gracefully on the first, at once on a second.

    Before it is ready, the first one stops it at once.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            logger.info("%s: stopping", signal.Signals(number).name)
            if stop.is_set():
                everything.cancel()
            stop.set()
