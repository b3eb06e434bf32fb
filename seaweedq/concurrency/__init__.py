"""Waiting and working side by side: deadlines, attempts, signals, bounded gathering. No broker, no I/O."""
