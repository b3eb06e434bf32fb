"""The leader's work: recovery, assignment, rebalancing, scaling, sweeps."""
