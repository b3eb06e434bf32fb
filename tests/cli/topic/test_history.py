"""What `topic history` shows of a topic's segments: boxes, rows, and a picture that is one."""

from datetime import timedelta
from pathlib import Path

import pytest
from matplotlib.image import imread

from seaweedq.cli.topic.history import Layout, lay_out, rows, save
from tests.support.cli.some_segments import after, segment, split_and_merged


def layout() -> Layout:
    return lay_out("flights", split_and_merged(), after(50))


def test_a_box_for_each_segment_from_its_creation_to_its_seal_or_now() -> None:
    found = layout()
    assert (found.begin, found.end) == (after(0), after(50))
    spans = {box.segment: (box.begin, box.end, round(box.low, 6), round(box.high, 6)) for box in found.boxes}
    assert spans == {
        0: (after(0), after(10), 0, 1),
        1: (after(10), after(20), 0, 0.25),
        2: (after(10), after(20), 0.25, 0.5),
        3: (after(10), after(30), 0.5, 1),
        4: (after(20), after(50), 0, 0.5),
        5: (after(30), after(50), 0.5, 1),
    }
    assert [box.rate for box in found.boxes] == [100, 5, 20, 100, 0, 617.25]
    assert [box.segment for box in found.boxes if box.is_open] == [4, 5]


def test_the_boxes_tile_the_plane() -> None:
    area = sum((box.end - box.begin).total_seconds() * (box.high - box.low) for box in layout().boxes)
    assert area == pytest.approx(50)


def test_the_title_counts() -> None:
    assert layout().title == "flights: 15,595 messages, 6 segments, 2 open, 1 split, 1 roll, 1 merge"
    assert lay_out("t", [segment(0)], after(1)).title == "t: 0 messages, 1 segment, 1 open"


def test_colours_span_one_to_four_decades() -> None:
    assert layout().rates == (5, 617.25)

    def rates(*messages: int) -> tuple[float, float]:
        return lay_out("t", [segment(n, end_offset=m) for n, m in enumerate(messages)], after(1)).rates

    assert rates(100, 90) == (10, 100)
    assert rates(1, 1_000_000) == (100, 1_000_000)
    assert rates(0) == (0.1, 1)


def test_clocks_that_disagree_and_a_topic_that_was_just_made() -> None:
    ahead = lay_out("t", [segment(0, sealed=30, successors=(1,)), segment(1, created=30)], after(20))
    assert ahead.end == after(30)
    assert all(box.begin <= box.end for box in ahead.boxes)
    new = lay_out("t", [segment(0, end_offset=9)], after(0))
    assert (new.end - new.begin, new.boxes[0].rate) == (timedelta(seconds=1), 0)
    with pytest.raises(ValueError, match="no segments"):
        lay_out("t", [], after(0))


def test_a_label_needs_its_room() -> None:
    box = layout().boxes[1]  # a fifth of the time, a quarter of the keys
    assert layout().has_room(box, 0.2, 0.2)
    assert not layout().has_room(box, 0.21, 0.2)
    assert not layout().has_room(box, 0.2, 0.26)


def test_a_row_for_each_segment() -> None:
    assert rows(split_and_merged()[::-1], after(50))[:3] == [
        ("0", "0.0% - 100.0%", "12:00:00", "12:00:10", "", "1 2 3", "1,000", "100"),
        ("1", "0.0% - 25.0%", "12:00:10", "12:00:20", "0", "4", "50", "5.0"),
        ("2", "25.0% - 50.0%", "12:00:10", "12:00:20", "0", "4", "200", "20"),
    ]
    assert rows(split_and_merged(), after(50))[5][2:5] == ("12:00:30", "", "3")
    assert rows(split_and_merged(), after(90_000))[1][2:4] == ("2026-01-31 12:00:10", "2026-01-31 12:00:20")
    assert rows([], after(0)) == []


def test_the_picture_has_the_colours_of_the_rates(tmp_path: Path) -> None:
    save(layout(), tmp_path / "a.png")
    shown = imread(tmp_path / "a.png")
    height, width = shown.shape[:2]
    assert width > height > 500
    left, right = shown[height // 4, width // 8], shown[height // 4, width * 3 // 4]  # in 0 and in 5
    idle = shown[height * 3 // 4, width * 3 // 4]  # in 4
    assert left[1] < right[1]  # viridis: what is more is brighter
    assert idle[:3] == pytest.approx([0xE4 / 255] * 3, abs=0.01)


def test_a_topic_with_one_segment_and_no_messages_is_drawn(tmp_path: Path) -> None:
    save(lay_out("t", [segment(0)], after(0)), tmp_path / "b.svg")
    assert b"<svg" in (tmp_path / "b.svg").read_bytes()
