"""Interleavings of splits, merges and moves, each forced by events in the test's own loop."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "broker"))  # brokers in the test's own loop
