"""What must never be in a world of the split model, and when all that was begun has come to its end."""

from tests.support.model.split_world import Bounds, Place, World, is_sealed


def fault(w: World, b: Bounds) -> str | None:
    """What must never be."""
    return _chain_fault(w) or _seal_fault(w, b) or _message_fault(w)


def _chain_fault(w: World) -> str | None:
    for segment, chain in enumerate(w.chains):
        end = 0
        for sequence, entry in enumerate(chain):
            if entry.name != (sequence, end):
                return f"the chain of {segment} is not dense: {[each[:3] for each in chain]}"
            end += len(entry.messages)
        if any(entry.seal for entry in chain[:-1]):
            return f"something behind the seal of {segment}: {[each[:3] for each in chain]}"
    return None


def _seal_fault(w: World, b: Bounds) -> str | None:
    begun = {record.begun for new in b.news if (record := w.records[new])}
    if len(begun) > 1:
        return f"two sets of successors: {w.records}"
    for old in b.olds:
        record, chain = w.records[old], w.chains[old]
        if {record.ended} != (begun or {0}):
            return f"{old} is open beside its successors, or sealed without: {w.records}"
        sealed_for = record.intent.plan if record.intent and record.committed else record.ended
        if is_sealed(chain) and chain[-1].seal != sealed_for:
            return f"{old} is sealed for plan {chain[-1].seal}, and its record says {record}"
        if not is_sealed(chain) and any(place and place.segment in b.news for place in w.commits):
            return f"a successor takes before the seal of {old} is in the chain"
    return None


def _message_fault(w: World) -> str | None:
    stored = _stored(w)
    if len({place.message for place in stored}) < len(stored):
        return f"a message twice in the chains: {stored}"
    known = frozenset(stored).union(*w.journals)
    if len({place.message for place in known}) < len(known):
        return f"a message at two places: {sorted(known)}"
    if len({place[1:] for place in known}) < len(known):
        return f"two messages at one place: {sorted(known)}"
    for x, journal in enumerate(w.journals):
        for place in journal.difference(stored):
            owner = w.records[place.segment].owner
            if is_sealed(w.chains[place.segment]) or owner != x or x in w.recovered:
                return f"acknowledged and lost: {place}"
    tables = frozenset[Place]().union(*(each.table for broker in w.opened for each in broker if each))
    if not tables <= known:
        return f"a producer table has what is not there: {sorted(tables - known)}"
    return None


def _stored(w: World) -> list[Place]:
    return [
        Place(message, segment, entry.first + i)
        for segment, chain in enumerate(w.chains)
        for entry in chain
        for i, message in enumerate(entry.messages)
    ]


def is_complete(w: World, b: Bounds) -> bool:
    """Whether all messages can be read, and each segment is sealed, or unlocked and taking at a living owner."""
    readable = set(_stored(w))
    for segment, record in enumerate(w.records):
        if record is None or record.ended:
            continue
        known = w.opened[record.owner][segment]
        if record.intent or record.owner not in w.alive or known is None or known.doing != "taking":
            return False
        readable |= {Place(message, segment, known.first + i) for i, message in enumerate(known.tail)}
    return len({place.message for place in readable}) == b.messages and readable.issuperset(
        frozenset().union(*w.journals)
    )
