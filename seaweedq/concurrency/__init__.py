"""Waiting and working side by side: deadlines, attempts, signals, bounded gathering, futures. No broker, no I/O."""
