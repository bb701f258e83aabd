"""``PYTHON``: in place of ``sys.executable``, wherever a test needs a process but no fresh interpreter.

It starts in a hundredth of a second, with everything imported already (see `fork_server.py`). Where an interpreter of
its own is the point (what an import brings with it, warnings, how Python ends), a test uses ``sys.executable``.
"""

import os

PYTHON = os.environ["SPECTAIL_FORKED_PYTHON"]
