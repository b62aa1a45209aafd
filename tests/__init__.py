"""What holds for every process of the tests, before it loads anything else."""

import os
import sys

# Hundreds of processes are started, of few programs: those are compiled once, also where the
# environment wants no bytecode written, as in many containers.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
