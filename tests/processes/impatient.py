"""The server, whose parent gives up a silent door sooner: tests need not wait so long."""

from streamd.__main__ import run
from streamd.processes import parent

MODULE = "tests.processes.impatient"
SECONDS = 3.0

if __name__ == "__main__":
    parent.SILENT_SECONDS = SECONDS
    run()
