"""The rules of `checker` for readers, for several brokers, and for what has to go on after a fault. Pure."""

from collections import defaultdict
from collections.abc import Iterator

from tests.support.history.history import LEAVES
from tests.support.history.judged import Run

HEAL_S = 30.0  # from the end of the last fault to no lag


def alike(run: Run) -> Iterator[str]:
    """All brokers read the same at last."""
    for broker, rows in run.others.items():
        if different := set(rows) ^ set(run.http):
            yield f"{len(different)} rows are read at {broker} or at the first broker alone: {sorted(different)[:5]}"


def stable(run: Run) -> Iterator[str]:
    """What was read once is there at last: nobody was shown what a fence cut off."""
    for event in run.lines("read", "ok"):
        if event.hash and (event.segment or 0, event.offset or 0) not in run.content:
            yield f"{event.segment}-{event.offset} was read at {event.broker}, and is not there at last"
    for event in run.lines("deliver", "ok"):
        if (event.segment or 0, event.offset or 0) not in run.content:
            yield f"{event.segment}-{event.offset} was delivered at {event.broker}, and is not there at last"


def fresh(run: Run) -> Iterator[str]:
    """A read that began when a message was acknowledged brings it, or those before it; unless a broker that is cut off
    from coordination may answer it, whose lease others have ended and which thinks that it has it (internals/protocol,
    Suspicion)."""
    outlawed = [e.t for e in run.lines("fault", "invoke") if e.note == "outlawed"]
    acknowledged = sorted((e.t, e.segment or 0, e.offset or 0) for e in run.lines("publish", "ok"))
    newest: dict[int, int] = defaultdict(lambda: -1)
    first = {call: page[0] for call, page in run.pages.items()}
    at = 0
    for event in sorted(run.lines("read", "invoke"), key=lambda e: e.t):
        while at < len(acknowledged) and acknowledged[at][0] < event.t:
            _, segment, offset = acknowledged[at]
            newest[segment], at = max(newest[segment], offset), at + 1
        asked, end = event.offset or 0, newest[event.segment or 0]
        if any(at_s <= event.t <= at_s + run.lease_s for at_s in outlawed):
            continue
        if asked <= end and event.call in first and first[event.call].hash is None:
            yield f"a read of {event.segment}-{asked} at {event.broker} was empty, and {end} was acknowledged before"


def dense(run: Run) -> Iterator[str]:
    """A read brings the messages from the asked one on, without a hole."""
    asked = {e.call: e for e in run.lines("read", "invoke")}
    for call, page in run.pages.items():
        offsets = [e.offset or 0 for e in page if e.hash]
        start = asked[call].offset or 0
        if offsets != [*range(start, start + len(offsets))]:
            yield f"a read of {asked[call].segment}-{start} at {page[0].broker} brought {offsets[:10]}"


def live(run: Run) -> Iterator[str]:
    """Once all is healed every publisher is answered, and the lag goes, within HEAL_S in which the brokers had
    processors."""
    told = {e.call: e for e in run.lines("heal", "ok", "info")}
    for event in run.lines("heal", "invoke"):
        ended = told.get(event.call)
        within_s = HEAL_S + (ended.wait_s if ended else 0.0)
        if not ended or ended.type != "ok" or ended.t - event.t > within_s:
            at = (
                ended
                and f"{ended.type} after {ended.t - event.t:.1f} s, of which it had no processor {ended.wait_s:.1f} s"
            )
            yield f"the lag was not zero {within_s:.1f} s after all was healed at {event.t:.3f}: {at}"
        waiting = {e.producer for e in run.lines("publish", "invoke") if e.t > event.t and e.note != LEAVES}
        for producer in waiting:
            good = [e.t for e in run.lines("publish", "ok") if e.producer == producer and e.t > event.t]
            if not good or good[0] - event.t > within_s:
                yield f"{producer} had no answer {within_s:.1f} s after all was healed: {good[:1]}"
