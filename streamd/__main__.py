"""`python -m streamd`: the command line."""

from streamd.cli import main

main()
