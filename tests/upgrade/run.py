"""Two versions in one cluster of three brokers, for SECONDS and longer. Exit status 1 for any violation.

Run from the root of the repository: python -m tests.upgrade.run --seconds 60
"""

import argparse
import tempfile
from pathlib import Path

from tests.support.upgrade.mixed import Versions, upgraded
from tests.support.upgrade.trees import tree_with_one_level_more


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for how long both are there")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="seaweedq-upgrade-"))
    print(f"history and logs in {folder}")
    outcome = upgraded(folder, Versions(None, tree_with_one_level_more(folder / "tree"), seconds=given.seconds))
    for violation in outcome.violations:
        print(violation)
    print(f"{outcome.messages} messages, mixed for {outcome.mixed_s:.0f} s, levels {outcome.levels}")
    print(f"the longest wait of a producer was {outcome.longest_s:.1f} s")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
