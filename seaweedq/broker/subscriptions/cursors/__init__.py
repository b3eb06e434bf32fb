"""The cursors of a subscription: who may write them, the invariants, and what they say of each segment."""
