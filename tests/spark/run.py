"""`make soak`: a stream of Spark whose query and whose brokers are killed, `--each` times: first one that reads a
topic, then one that also writes into another.

Run from the root of the repository: python -m tests.spark.run --each 20
"""

import argparse
import random
import tempfile
from pathlib import Path

from tests.support.spark.soak import run


def main() -> None:
    """Parses, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=20, help="how often the query is killed, and how often a broker")
    parser.add_argument("--seed", type=int, default=None, help="what is drawn from; without it, any")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    for into in (None, "written"):
        with tempfile.TemporaryDirectory(prefix="seaweedq-spark-", ignore_cleanup_errors=True) as folder:
            print(run(Path(folder), given.each, given.each, seed, into), flush=True)


if __name__ == "__main__":
    main()
