"""How often the use of a subscription that expires is noted, and how long the leader watches for notes. Pure."""

NOTE_S = 1_800.0
WATCHED_S = 7_200.0  # more than NOTE_S, with all that may delay a note


def note_every_s(expires_after_s: float) -> float:
    """Returns how long after a note the next one is due, if there was a use since."""
    return min(expires_after_s / 4, NOTE_S)
