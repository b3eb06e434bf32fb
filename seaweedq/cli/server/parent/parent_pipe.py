"""Ties a broker to its parent by a pipe at its stdin, of which only the parent holds the other end, as long as it
lives.

Unlike PR_SET_PDEATHSIG this does not depend on a thread of the parent, leaves no moment in which the parent's end goes
unnoticed, and works on every Unix.
"""

import logging
import os
import signal
import threading
from contextlib import suppress

logger = logging.getLogger("seaweedq")


def end_with_parent(stdin: int = 0) -> None:
    """Sends SIGTERM to this process once `stdin` ends."""
    threading.Thread(target=_watch, args=(stdin,), name="lifeline", daemon=True).start()


def _watch(stdin: int) -> None:
    with suppress(OSError):
        while os.read(stdin, 4096):
            pass
    logger.warning("the parent process has ended: stopping")
    os.kill(os.getpid(), signal.SIGTERM)
