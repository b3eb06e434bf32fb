"""The picture of `topic watch`: cells, colours, words; and how it looks as text, in narrow and wide terminals."""

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from seaweedq.cli.topic.lineage import KEY_SPACE, NextSplit, Segment
from seaweedq.cli.topic.watch_picture import (
    FIXED,
    Frame,
    Snapshot,
    WatchHistory,
    blocks,
    colour,
    legend,
    picture,
    shade,
    short,
    short_names,
)
from tests.support.cli.some_segments import after, by_id, segment, split_and_merged


def cut(*points: float) -> list[Segment]:
    return [segment(n, low, high) for n, (low, high) in enumerate(itertools.pairwise((0, *points, 1)))]


def test_blocks_are_as_wide_as_their_ranges() -> None:
    found = blocks(cut(0.25, 0.5), 80)
    assert [(piece.first, piece.cells, piece.label) for piece in found] == [(0, 20, "0"), (20, 20, "1"), (40, 40, "2")]


def test_segments_that_are_too_small_share_cells() -> None:
    found = blocks(cut(0.001, 0.002, 0.5, 0.9999), 10)
    assert [(piece.first, piece.cells, piece.label) for piece in found] == [(0, 5, "0..2"), (5, 5, "3..4")]
    assert found[0].rate({0: 1.0, 1: 9.0, 2: None}) == 9
    assert blocks([], 10) == []


@given(st.sets(st.integers(1, KEY_SPACE - 1), max_size=300), st.integers(1, 250))
def test_the_bar_has_every_cell_and_every_segment_once(points: set[int], width: int) -> None:
    bounds = sorted({0, *points, KEY_SPACE})
    segments = [
        segment(n, low / KEY_SPACE, high / KEY_SPACE) for n, (low, high) in enumerate(itertools.pairwise(bounds))
    ]
    found = blocks(segments, width)
    assert sum(piece.cells for piece in found) == width
    assert [piece.first for piece in found] == [0, *itertools.accumulate(piece.cells for piece in found)][:-1]
    assert [one.id for piece in found for one in piece.segments] == list(range(len(segments)))


def test_a_piece_has_the_owner_that_all_of_it_have() -> None:
    one, two = segment(0, 0, 0.001), segment(1, 0.001, 1)
    assert blocks([one, two], 10)[0].owner == "broker.aa11"
    assert blocks([one, segment(1, 0.001, 1, owner="broker.bb22")], 10)[0].owner is None


def test_colours_follow_the_logarithm() -> None:
    marks = [style for _, style, _ in legend(colours=True)]
    assert [colour(rate) for rate in (0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6)] == marks
    assert colour(0.5) == colour(0)
    assert colour(1e9) == marks[-1]
    assert colour(30) not in marks
    assert [shade(rate) for rate in (0, 1, 99, 100, 1e4, 1e5, 1e9)] == ["·", "░", "░", "▒", "▓", "█", "█"]
    assert [(mark, rate) for mark, _, rate in legend(colours=False)] == [
        ("·", "0"), ("░", "1+"), ("▒", "100+"), ("▓", "10k+"), ("█", "100k+"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"), (0.04, "0.0"), (0.25, "0.2"), (9.94, "9.9"), (9.96, "10"), (999, "999"), (999.6, "1.0k"),
        (99_940, "99.9k"), (99_960, "100k"), (999_400, "999k"), (999_900, "1.0M"), (2.5e9, "2.5G"), (1234, "1.2k"),
    ],
)  # fmt: skip
def test_short_figures(value: float, expected: str) -> None:
    assert short(value) == expected
    assert len(short(value)) <= 5


def test_brokers_are_named_as_short_as_tells_them_apart() -> None:
    assert short_names(["a.1f2e", "b.77aa"]) == {"a.1f2e": "a", "b.77aa": "b"}
    assert short_names(["a.1f2e", "a.1f30", "a.9"]) == {"a.1f2e": "a.1f2", "a.1f30": "a.1f3", "a.9": "a.9"}
    assert short_names(["odd"]) == {"odd": "odd"}
    assert short_names([]) == {}


def watched(*segments: Segment) -> WatchHistory:
    found = WatchHistory(Snapshot(0, after(60), by_id(*segments)))
    grown = [s if not s.is_open else segment(s.id, s.low / KEY_SPACE, s.high / KEY_SPACE, owner=s.owner,
             end_offset=s.end_offset + 250, predecessors=s.predecessors, created=20) for s in segments]  # fmt: skip
    found.add(Snapshot(1, after(61), by_id(*grown)))
    return found


def drawn(of: WatchHistory, columns: int, lines: int | None = None, trouble: str = "") -> list[str]:
    out = io.StringIO()
    console = Console(width=columns, file=out, color_system=None)
    console.print(picture("flights", of, Frame(columns, lines, colours=False), trouble))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_it_has_a_bar_a_table_and_a_log() -> None:
    assert drawn(watched(*split_and_merged()), 64) == [
        "flights  12:01:01 UTC  2 open · 4 sealed · 2 brokers · 16.1k me…",
        "",
        "               4                               5",
        "▒" * 31 + " " + "▒" * 31,
        "▒" * 31 + " " + "▒" * 31,
        "           broker.aa                       broker.bb",
        "0%             25%             50%             75%          100%",
        "messages/s  · 0 ░ 1+ ▒ 100+ ▓ 10k+ █ 100k+",
        "",
        "segment  keys            messages/s  end offset  owner",
        "      4  0.0% - 50.0%           250         250  broker.aa11",
        "      5  50.0% - 100.0%         250      12,595  broker.bb22",
        "",
        "12:00:10  split 0 → 1, 2, 3",
        "12:00:20  merge 1, 2 → 4",
        "12:00:30  roll 3 → 5",
    ]


@pytest.mark.parametrize("columns", [40, 80, 119, 120, 200])
def test_no_line_is_longer_than_the_terminal(columns: int) -> None:
    many = cut(*(n / 97 for n in range(1, 97)))
    lines = drawn(watched(*many, *split_and_merged()[:1]), columns, 30)
    assert max(map(len, lines)) <= columns
    assert lines[3].count(" ") < columns / 2


def test_a_wide_terminal_shows_the_nearest_split_bytes_age_and_hashes() -> None:
    nearest = NextSplit("messages_per_s", 600, 20_000, 9_999.9, None)
    rates = {"messages_per_s": (1e4, 2e4, 3e4, 4e4), "bytes_per_s": (5e6, 1, 1, 1)}
    found = WatchHistory(Snapshot(0, after(3_700), by_id(segment(0, end_offset=5, next_split=nearest, **rates))))
    (row,) = [line for line in drawn(found, 150) if line.startswith("      0")]
    words = "0 0.0% - 100.0% 10.0k 5.00 splits at 20,000, now 9,999 (10 min) 5 1 h"
    assert " ".join(row.split()) == f"{words} 0 - 2147483647 broker.aa11"
    (row,) = [line for line in drawn(found, 120) if line.startswith("      0")]
    assert " ".join(row.split()) == f"{words} broker.aa11"
    assert "10.0k/s" in drawn(found, 120)[0]


def test_a_narrow_terminal_names_the_segments_that_are_nearest_to_a_split() -> None:
    near = [NextSplit("messages_per_s", 600, 400, now, None) for now in (199, 201, 362.9, 250)]
    many = [segment(n, n / 8, (n + 1) / 8, next_split=one) for n, one in enumerate(near)]
    many.append(segment(4, 4 / 8, 5 / 8, next_split=NextSplit("bytes_per_s", 10, 5e6, 4.9e6, None)))
    many.append(segment(5, 5 / 8, 1, next_split=NextSplit("messages_per_s", 60, 800, 900, "max_segments")))
    shown = drawn(WatchHistory(Snapshot(0, after(60), by_id(*many))), 80)
    assert shown[-3:] == [
        "segment 5 splits at 800, now 900 (1 min), held by max_segments",
        "segment 4 splits at 5.0 MB/s, now 4.9 (10 s)",
        "segment 2 splits at 400, now 362 (10 min)",
    ]


@pytest.mark.parametrize("lines", [12, 14, 20, 24, 50])
def test_what_there_is_no_room_for_is_left_out_the_hottest_stay(lines: int) -> None:
    many = [segment(n, n / 100, (n + 1) / 100, messages_per_s=(float(n),)) for n in range(100)]
    found = WatchHistory(Snapshot(0, after(60), by_id(*many, segment(100, sealed=5, successors=(0,)))))
    shown = drawn(found, 100, lines)
    assert len(shown) <= max(lines, FIXED + 2)
    (rest,) = [line for line in shown if line.endswith("less busy segments")]
    rows = [line.split()[0] for line in shown if line.endswith("broker.aa11")]
    assert rows == [str(n) for n in range(100 - len(rows), 100)]
    assert rest == f"and {100 - len(rows)} less busy segments"


def test_few_rows_leave_the_room_to_the_log() -> None:
    long = [segment(n, sealed=n + 1, created=n, successors=(n + 1,)) for n in range(60)]
    shown = drawn(WatchHistory(Snapshot(0, after(60), by_id(*long, segment(60, created=60)))), 80, 30)
    assert len(shown) <= 30
    told = [line for line in shown if "roll" in line]
    assert (len(told), told[-1]) == (30 - FIXED - 1, "12:01:00  roll 59 → 60")


def test_a_hot_key_is_said_and_stays_when_the_log_is_long() -> None:
    log = [segment(n, sealed=n, created=0, successors=(n + 1,)) for n in range(9)]
    hot = segment(9, 0, 0.5, hot_key=(1234, 0.625))
    shown = drawn(WatchHistory(Snapshot(0, after(60), by_id(*log, hot, segment(10, 0.5)))), 80, FIXED + 4)
    assert shown[-1] == "segment 9 is not split: key hash 1234 has 62% of its messages"
    assert shown[-2] == "12:00:08  roll 8 → 9"


def test_nobody_owns_it_and_nobody_answers() -> None:
    shown = drawn(
        WatchHistory(Snapshot(0, after(60), by_id(segment(0, owner=None)))), 80, trouble="no answer from http://x"
    )
    assert shown[1] == "no answer from http://x"
    assert any(line.endswith("nobody") for line in shown)
    assert shown[5].strip() == "-"
