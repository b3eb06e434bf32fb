"""What ties a broker to its parent: a pipe at its stdin, of which the parent alone holds the other end, while it lives.

Other than PR_SET_PDEATHSIG this does not depend on a thread of the parent, leaves no moment in which the parent's end
goes unseen, and works on every Unix.
"""

import logging
import os
import signal
import threading
from contextlib import suppress

logger = logging.getLogger("seaweedq")


def end_with_parent(stdin: int = 0) -> None:
    """From now on, once `stdin` ends, this process gets SIGTERM."""
    threading.Thread(target=_watch, args=(stdin,), name="lifeline", daemon=True).start()


def _watch(stdin: int) -> None:
    with suppress(OSError):
        while os.read(stdin, 4096):
            pass
    logger.warning("the parent process has gone: stopping")
    os.kill(os.getpid(), signal.SIGTERM)
