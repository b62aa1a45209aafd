"""`python -m streamd`: the command line."""

import sys


def run() -> None:
    """Load and run it; Ctrl-C may come while it is loaded."""
    try:
        from streamd.cli import main  # noqa: PLC0415 - as above
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    run()
