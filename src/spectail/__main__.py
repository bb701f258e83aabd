"""``python -m spectail`` is the command line."""

import os
import sys

from .cli.main import main

if __name__ == "__main__":
    code = main()
    if "WORLD_SIZE" in os.environ:  # a rank: gloo now and then aborts one that is done while the interpreter shuts down
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
