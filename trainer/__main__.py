"""`python -m trainer train …`, alone or under torchrun."""

import os
import sys

from trainer.commands import app


def main() -> None:
    """Runs a command. One rank of several ends at once with its exit code: everything is saved and printed by then, and the
    libraries' threads that wait for other ranks have been seen to abort an interpreter that ends in its own time."""
    try:
        app(prog_name="python -m trainer")
    except SystemExit as end:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            raise
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(bool(end.code)))


if __name__ == "__main__":
    main()
