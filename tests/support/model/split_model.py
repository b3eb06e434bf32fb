"""Explores one world of the split model and says what was found; larger worlds than the tests have time for.

.venv/bin/python -m tests.support.model.split_model --old 2 --brokers 3 --deaths 2
.venv/bin/python -m tests.support.model.split_model --without "seal when quiet"
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial

from tests.support.model.exploring import Explored, explore
from tests.support.model.split_checks import fault, is_complete
from tests.support.model.split_cluster import steps
from tests.support.model.split_world import EITHER, RULES, SPARE, Bounds, start_of


def search(b: Bounds, limit: int = 10_000_000) -> Explored:
    """Every interleaving of a world: the first fault, or none. Raises MemoryError for more states than `limit`."""
    return explore(start_of(b), partial(steps, b=b), partial(fault, b=b), partial(is_complete, b=b), limit)


def main(arguments: Sequence[str]) -> int:
    """0 if the world holds, 1 with the way to the fault if it does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in Bounds._field_defaults.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(default, int):
            parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--without", action="append", default=[], choices=[*RULES, *EITHER, *SPARE], metavar="RULE")
    given = vars(parser.parse_args(arguments))
    b = Bounds(left_out=frozenset(given.pop("without")), **given)
    began = time.monotonic()
    found = search(b)
    print("\n".join([*found.path, found.fault or "holds"]))
    print(f"{found.states} states in {time.monotonic() - began:.1f} s")
    return 1 if found.fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
