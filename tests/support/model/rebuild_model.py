"""Explores one world of the rebuild model and says what was found; larger worlds than the tests have time for.

.venv/bin/python -m tests.support.model.rebuild_model --messages 2 1 1 --moves --unnoticed --crashes 1
.venv/bin/python -m tests.support.model.rebuild_model --moves --unnoticed --without "second look"
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from tests.support.model.exploring import Explored, explore
from tests.support.model.rebuild_steps import steps
from tests.support.model.rebuild_world import RULES, SECOND, Bounds, World, fault, start_of


def search(b: Bounds, of: Callable[[World], str | None] = fault, limit: int = 10_000_000) -> Explored:
    """Every interleaving of a world, breadth first: the first fault, or none. Raises MemoryError for more states than
    `limit`."""
    return explore(start_of(b), lambda w: ((what, True, after) for what, after in steps(w, b)), of, limit=limit)


def main(arguments: Sequence[str]) -> int:
    """0 if the world holds, 1 with the way to the fault if it does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, nargs=3, default=[1, 1, 1], metavar=tuple("XYZ"))
    for name, default in Bounds._field_defaults.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(default, int):
            parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--without", action="append", default=[], choices=[*RULES, *SECOND], metavar="RULE")
    given = vars(parser.parse_args(arguments))
    b = Bounds(tuple(given.pop("messages")), left_out=frozenset(given.pop("without")), **given)
    began = time.monotonic()
    found = search(b)
    print("\n".join([*found.path, found.fault or "holds"]))
    print(f"{found.states} states in {time.monotonic() - began:.1f} s")
    return 1 if found.fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
