"""Processes that end with the one that started them, whatever happened to it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time


def end_with_parent() -> None:
    """End this process at once when its parent is gone, even by a kill that no process hears."""
    driver, before = multiprocessing.parent_process(), os.getppid()

    def watch() -> None:
        if driver is not None:  # started by multiprocessing, whose fork server stands between the two
            driver.join()
        while driver is None and os.getppid() == before:
            time.sleep(0.5)
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    threading.Thread(target=watch, daemon=True).start()
