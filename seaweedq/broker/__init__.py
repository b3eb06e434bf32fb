"""The running broker: accumulate, commit, flush, read, forward, recover, dispatch."""
