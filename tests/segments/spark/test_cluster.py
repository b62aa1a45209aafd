"""A stream in a store, read on a real cluster of Spark: a master, two workers, and their executors.

They share nothing but the store: each has a working folder, a home and an environment of its own,
the stream's own folder is gone, and the code comes along as a file.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("pyspark")

import pyspark

from segments import Log, LogPolicy
from segments.message import Message
from segments.spark.session import _java_for
from segments.store.stores import open_store
from tests.support.logs import append
from tests.support.pages import ROOT
from tests.support.stored_streams import put_stream
from tests.support.stores import KINDS, Tier

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SPARK = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"
_START_SECONDS = 120
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_SHORT_LIFE = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # compiling would take most of it
SETTINGS = LOOPBACK | {
    "spark.driver.defaultJavaOptions": _SHORT_LIFE,
    "spark.executor.defaultJavaOptions": _SHORT_LIFE,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}
SHOWN = """\
+-------+-----+
|carrier|count|
+-------+-----+
|     AS|  100|
|     HA|  100|
+-------+-----+
"""


class Cluster(NamedTuple):
    """A running one.

    Attributes:
        master: its URL.
        folder: has a folder for each process.
        environment: of programs that use it.
    """

    master: str
    folder: Path
    environment: dict[str, str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, as if on a machine of its own."""
        here = self.folder / "driver"
        here.mkdir(exist_ok=True)
        return subprocess.run(
            command, cwd=here, env=self.environment, capture_output=True, text=True, check=False
        )


def bare(folder: Path) -> dict[str, str]:
    """The environment of a machine that knows nothing of this one but where programs are."""
    folder.mkdir()
    found = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)}
    if "JAVA_HOME" in os.environ:
        found["JAVA_HOME"] = os.environ["JAVA_HOME"]
    return (
        found
        | _java_for(str(folder))
        | {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": _SHORT_LIFE,
        }
    )


class Process:
    """A process of the cluster, in a folder of its own.

    Args:
        folder: where it works and logs.
        environment: all that it has of it.
        words: which kind of process, and what it is told.
    """

    def __init__(self, folder: Path, environment: dict[str, str], *words: str) -> None:
        self._log = folder / "log"
        command = [str(SPARK / "bin" / "spark-class"), *words, "--host", "127.0.0.1"]
        with self._log.open("w") as output:
            self._process = subprocess.Popen(
                [*command, "--port", "0", "--webui-port", "0"],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=output,
            )

    def said(self, pattern: str) -> str:
        """Wait until it has logged something, and return that."""
        end = time.monotonic() + _START_SECONDS
        while not (found := re.search(pattern, self._log.read_text())):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.1)
        return found[0]

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture
def cluster(tmp_path: Path, tier: Tier) -> Iterator[Cluster]:
    secrets = {k: v for k, v in tier.environment.items() if k != "AWS_ENDPOINT_URL"}
    running = [Process(tmp_path / "master", bare(tmp_path / "master"), f"{DEPLOY}.master.Master")]
    try:
        master = running[0].said(r"spark://[\d.]+:\d+")
        for name in ("one", "two"):
            here = bare(tmp_path / name) | secrets
            size = ("--cores", "1", "--memory", "1g", "--work-dir", "work")
            words = (f"{DEPLOY}.worker.Worker", master, *size)
            running.append(Process(tmp_path / name, here, *words))
        for worker in running[1:]:
            worker.said("Successfully registered with master")
        python = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        yield Cluster(master, tmp_path, bare(tmp_path / "home") | secrets | python)
    finally:
        for process in reversed(running):
            process.end()


@pytest.fixture
def code(tmp_path: Path) -> str:
    """The package as a file, as a wheel is one."""
    with zipfile.ZipFile(tmp_path / "streamd.zip", "w") as file:
        for folder in ("segments", "streamd", "clients"):
            for path in (ROOT / folder).rglob("*.py"):
                file.write(path, path.relative_to(ROOT))
    return str(tmp_path / "streamd.zip")


def publish(folder: Path, tier: Tier) -> str:
    """Flights in a store, and nowhere else; the path of their stream."""
    log = Log.open(str(folder), LogPolicy(filter_size=32, max_segment_chunks=20))
    for chunk in range(60):
        carrier = ["HA", "AS", "UA"][chunk % 3]
        bodies = [
            Message(
                b"%s %d" % (carrier.encode(), n),
                application_properties={"carrier": carrier, "dep_delay": 10 * n},
            ).encode()
            for n in range(12)
        ]
        append(log, bodies, [carrier.encode()] * 12)
    log.close()
    put_stream(open_store(tier.url, tier.endpoint), folder, "/", "flights")
    shutil.rmtree(folder)
    return f"{tier.url}/%2F/flights"


@pytest.mark.parametrize("tier", [KINDS[-1]], indirect=True)
def test_a_cluster_that_shares_nothing_but_the_store(
    tmp_path: Path, tier: Tier, cluster: Cluster, code: str
) -> None:
    path = publish(tmp_path / "flights", tier)
    settings = [f"--conf={name}={value}" for name, value in SETTINGS.items()]

    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", cluster.master]
    program = str(ROOT / "examples" / "late_flights_in_spark.py")
    cluster.environment["AWS_ENDPOINT_URL"] = tier.endpoint
    done = cluster.run(*command, *settings, "--py-files", code, program, path)
    assert done.returncode == 0, done.stderr
    assert SHOWN in done.stdout
    assert "720 flights" in done.stdout

    del cluster.environment["AWS_ENDPOINT_URL"]
    command = [sys.executable, "-m", "streamd", "tune", path, "--tier-endpoint", tier.endpoint]
    command += ["--json", "--keep-limit", "--master", cluster.master]
    done = cluster.run(*command, *settings, f"--conf=spark.submit.pyFiles={code}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["chunks"] == 60
    for line in (done.stdout, done.stderr):
        assert tier.environment["AWS_SECRET_ACCESS_KEY"] not in line
    assert len(list(cluster.folder.glob("*/work/app-*/*/stderr"))) == 4, "each worker had both"
