"""The decisions of the cache on disk, against a model, and the rule of the second use."""

from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.storage.cache_plan import BLOCK_BYTES, RETRY_S, STALE_S, CachePlan, FileRange, HeldRange
from tests.support.tiers import examples

BLOCKS = 12
NAMES = [FileRange(f"topics/{topic}/{number}", 0, 1) for topic in "ab" for number in range(6)]
STEPS = st.tuples(
    st.sampled_from(["use", "use", "use", "end", "full", "broken", "unreadable", "corrupt", "forget", "wait"]),
    st.integers(0, len(NAMES) - 1),
    st.integers(1, 5),
)


def admit(plan: CachePlan, wanted: FileRange, size: int, now_s: float = 0.0) -> bool:
    """Whether a range that was fetched is held from now on."""
    if not plan.begin(wanted, size, now_s):
        return False
    plan.hold(wanted, size, 0, 0, now_s)
    return True


@settings(max_examples=examples(300))
@given(st.lists(STEPS, max_size=60))
def test_no_block_has_two_ranges_and_none_is_beyond_the_bound(steps: list[tuple[str, int, int]]) -> None:
    plan, now_s, lost = CachePlan(BLOCKS), 0.0, 0
    begun: dict[FileRange, tuple[int, ...]] = {}
    sizes: dict[FileRange, int] = {}
    unwanted: set[FileRange] = set()
    held: dict[FileRange, HeldRange] = {}
    for step, at, count in steps:
        one, now_s = NAMES[at], now_s + 1
        if step == "use":
            found = plan.find(one, now_s)
            if found is None and one not in begun and (blocks := plan.begin(one, count * BLOCK_BYTES - 7, now_s)):
                assert len(blocks) == count <= BLOCKS // 4
                begun[one], sizes[one] = blocks, count * BLOCK_BYTES - 7
            elif found:
                assert found.size == sizes[one], "the blocks of another range"
        elif step in ("end", "full", "broken") and one in begun:
            blocks = begun.pop(one)
            if step == "end":
                plan.hold(one, sizes[one], 1, 2, now_s)
                assert (plan.find(one, now_s) is None) == (one in unwanted)
            else:
                plan.fail(one, step == "full", now_s)
                lost += len(blocks) if step == "broken" else 0
            unwanted.discard(one)
        elif step in ("unreadable", "corrupt") and (found := plan.find(one, now_s)):
            plan.drop(one, step == "unreadable")
            lost += len(found.blocks) if step == "unreadable" else 0
        elif step == "forget":
            plan.forget(one.name[:9])
            unwanted |= {other for other in begun if other.name[:9] == one.name[:9]}
            assert not any(plan.find(other, now_s) for other in NAMES if other.name[:9] == one.name[:9])
        elif step == "wait":
            now_s += RETRY_S
        held = {other: found for other in NAMES if (found := plan.find(other, now_s))}
        used = [block for found in held.values() for block in found.blocks] + [b for n in begun for b in begun[n]]
        assert len(used) == len(set(used))
        assert all(0 <= block < BLOCKS for block in used)
        assert plan.held_blocks == sum(len(found.blocks) for found in held.values())
        assert plan.lost == lost
        assert plan.limit_blocks <= BLOCKS - lost


def test_where_others_would_go_a_range_is_admitted_at_its_second_use() -> None:
    plan = CachePlan(8)
    assert all(admit(plan, one, 2 * BLOCK_BYTES) for one in NAMES[:4])
    assert not admit(plan, NAMES[5], BLOCK_BYTES, 1.0)
    assert plan.find(NAMES[0], 2.0), "a first use has taken the place of another"
    assert admit(plan, NAMES[5], BLOCK_BYTES, 3.0)
    assert plan.find(NAMES[1], 4.0) is None, "not the least recently used one"
    assert plan.find(NAMES[0], 4.0)
    assert plan.evicted == 1


def test_one_pass_over_much_data_takes_nothing_from_those_who_come_again() -> None:
    plan = CachePlan(8)
    assert all(admit(plan, one, 2 * BLOCK_BYTES) for one in NAMES[:4])
    for number in range(1000):
        assert not admit(plan, FileRange(f"scan/{number}", 0, 1), BLOCK_BYTES, float(number))
    assert all(plan.find(one, 1000.0) for one in NAMES[:4])


def test_ranges_that_nobody_has_used_for_an_hour_give_way_at_once() -> None:
    plan = CachePlan(8)
    assert all(admit(plan, one, 2 * BLOCK_BYTES) for one in NAMES[:4])
    plan.find(NAMES[0], 10.0)
    assert admit(plan, NAMES[5], BLOCK_BYTES, STALE_S + 1)
    assert plan.find(NAMES[0], STALE_S + 2)


def test_blocks_that_a_full_disk_has_refused_come_back() -> None:
    plan = CachePlan(8)
    assert plan.begin(NAMES[0], 2 * BLOCK_BYTES, 0.0) == (0, 1)
    plan.fail(NAMES[0], True, 0.0)
    assert plan.limit_blocks == 6
    assert not plan.begin(NAMES[1], BLOCK_BYTES, 1.0), "a full disk was asked for more"
    assert plan.begin(NAMES[1], BLOCK_BYTES, RETRY_S)
    assert plan.limit_blocks == 8
