"""The limit of open files, and how many of them connections may be."""

import logging
import sys

MOST = 16_384
OTHERS = 256  # files, and connections to store, coordination and other brokers
FEWEST = 16
logger = logging.getLogger("seaweedq")


def raise_limit() -> int:
    """Raises the limit of open files as far as the process may, and returns it."""
    if sys.platform == "win32":
        return 8192
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:  # some systems have a bound of their own below an unlimited one
        logger.warning("the limit of open files stays at %d: %s", soft, error)
        hard = soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def connections_of(wanted: int, files: int) -> tuple[int, int]:
    """Returns how many connections a broker takes, and how many more for probes and brokers, with that limit of open
    files; `wanted` is max_connections."""
    possible = max(FEWEST, files * 9 // 10 - OTHERS)
    if wanted > possible:
        logger.warning(
            "max_connections=%d is more than %d open files allow; taking %d: raise the limit of open files (nofile)",
            wanted,
            files,
            possible,
        )
    return min(wanted or MOST, possible), min(OTHERS, max(FEWEST, files // 20))
