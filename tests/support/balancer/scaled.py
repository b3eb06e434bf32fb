"""Segments of one topic for decisions: tiled ranges, loads as multiples of the target."""

from collections.abc import Iterable, Sequence

from seaweedq.balancer.load import SegmentLoad, costs
from seaweedq.balancer.placement import Host
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.balancer.scaling import Plan, Segment, decide
from seaweedq.segments.keyrange import KeyRange, tile

TOPIC = ("t", 0)
TARGET = 1000
POLICY = ScalingPolicy(target_messages_per_s=TARGET, target_bytes_per_s=100 * TARGET, max_segments=64)
HOSTS = [Host("a", "x"), Host("b", "y"), Host("c", "x")]
LONG_S = 1e6


def load(*rates: float, observed_s: float = LONG_S, peaks: float = 0.0, **more: object) -> SegmentLoad:
    """Plain rates by window, or one for all."""
    each = tuple(TARGET * rate for rate in (rates if len(rates) == 4 else rates * 4))
    return SegmentLoad(messages_per_s=each, messages_peaks=(TARGET * peaks,) * 4, observed_s=observed_s, **more)  # type: ignore[arg-type]


def segment(
    number: int,
    key_range: KeyRange,
    of: SegmentLoad | None,
    owner: str = "a",
    age_s: float = LONG_S,
    locked: bool = False,
    becomes: float = 1.0,
) -> Segment:
    return Segment((*TOPIC, number), key_range, owner, age_s, of, locked, becomes)


def row(*loads: SegmentLoad | float, owners: str = "") -> list[Segment]:
    """Neighbours that tile the key space, owned by the brokers of which the letters are."""
    given = [each if isinstance(each, SegmentLoad) else load(each) for each in loads]
    letters = owners or "a" * len(given)
    return [
        segment(n, key_range, of, letters[n])
        for n, (key_range, of) in enumerate(zip(tile(len(given)), given, strict=True))
    ]


def decided(
    segments: Sequence[Segment], policy: ScalingPolicy = POLICY, hosts: Iterable[Host] = HOSTS, limit: int = 100
) -> list[Plan]:
    counted = costs({each.id: each.load for each in segments if each.load})
    return decide(segments, {TOPIC: policy}, counted, list(hosts), limit)
