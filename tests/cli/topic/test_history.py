"""What `topic history` shows of a topic's segments: boxes, rows, a picture that is one; and the last hour that the
leader has recorded, there and in `topic watch`.
"""

import io
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.image import imread
from rich.console import Console

from seaweedq.cli.topic import history, watch
from seaweedq.cli.topic.history import Layout, lay_out, rows, save
from seaweedq.cli.topic.lineage import KEY_SPACE, LastHour
from seaweedq.cli.topic.watch_picture import PAST_LINES, Frame, Snapshot, WatchHistory, picture
from seaweedq.errors import RouteNotFound, Unavailable
from tests.support.cli.some_segments import after, by_id, segment, split_and_merged


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


def cell(begin: float, seconds: float, low: float, high: float, segment: int | None, rate: float, **more: Any) -> Any:
    time = after(begin).isoformat()
    keys = {"low": round(low * KEY_SPACE), "high": round(high * KEY_SPACE)}
    return {"time": time, "seconds": seconds, **keys, "segment": segment, "messages_per_s": rate, **more}


ANSWER = {
    "from": after(5).isoformat(),
    "cells": [
        cell(5, 5, 0, 1, 0, 300, hot_key={"hash": 7, "share": 0.8}),
        cell(10, 10, 0, 0.25, 1, 10),
        cell(10, 20, 0.5, 1, 3, 100_000),
        cell(40, 10, 0, 1, None, 40),
    ],
}


def test_a_row_tells_what_its_segment_took_while_the_leader_recorded() -> None:
    found = rows(split_and_merged(), after(50), LastHour.from_answer(ANSWER))
    assert [row[8:] for row in found] == [
        ("300", "300", "hash 7: 80%"),
        ("10", "10", ""),
        ("0", "0", ""),
        ("100k", "100k", ""),
        ("0", "0", ""),
        ("0", "0", ""),
    ]
    late = LastHour.from_answer({"from": after(25).isoformat(), "cells": []})
    assert next(row[8:] for row in rows(split_and_merged(), after(50), late)) == ("", "", "")


def test_the_picture_has_the_cells_over_the_means(tmp_path: Path) -> None:
    layout = lay_out("flights", split_and_merged(), after(50), LastHour.from_answer(ANSWER))
    assert [(box.begin, box.rate) for box in layout.cells][:2] == [(after(5), 300), (after(10), 10)]
    assert layout.rates[1] == 100_000
    save(layout, tmp_path / "a.png")
    shown = imread(tmp_path / "a.png")
    height, width = shown.shape[:2]
    assert shown[height // 4, width * 2 // 5][1] > shown[height // 4, width // 12][1], "what is more is brighter"


def test_rates_lie_where_their_time_and_keys_are() -> None:
    hour = LastHour.from_answer(ANSWER)
    assert hour.rates(after(0), after(50), 5, 4) == [
        [300] * 4,
        [10, 0, 100_000, 100_000],
        [0, 0, 100_000, 100_000],
        [0, 0, 0, 0],
        [40] * 4,
    ]
    assert hour.rates(after(100), after(200), 2, 2) == [[0, 0], [0, 0]]


def test_the_watch_shows_the_last_minutes_above_its_bar_if_there_is_room() -> None:
    hour = LastHour.from_answer({**ANSWER, "cells": [cell(0, 49, 0, 0.5, 1, 5)]})
    watched = WatchHistory(Snapshot(0, after(50), by_id(*split_and_merged()), hour))
    watched.add(Snapshot(1, after(51), by_id(*split_and_merged())))  # which did not ask for the history
    lines = drawn(watched, 60)
    assert lines[2] == "the last 10 min, newest at the bottom"
    assert lines[3:8] == ["·" * 40] * (PAST_LINES - 1) + ["░" * 20 + "·" * 20]
    assert "the last" not in "".join(drawn(watched, 24))
    assert len(drawn(watched, 40)) <= 40


def drawn(watched: WatchHistory, lines: int) -> list[str]:
    out = io.StringIO()
    console = Console(width=40, file=out, color_system=None)
    console.print(picture("flights", watched, Frame(40, lines, colours=False)))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("error", [RouteNotFound("older"), Unavailable("the cluster has no leader")])
def test_a_broker_that_tells_none_is_no_failure(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    client: Any = SimpleNamespace(history=refuse)
    assert history.load_last_hour(client, "t") is None
    assert str(error) in capsys.readouterr().err
    assert watch.load_last_minutes(client, "t", after(0)) is None
