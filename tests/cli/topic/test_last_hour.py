"""The last hour that the leader has recorded, as `topic history` and `topic watch` show it."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.image import imread
from rich.console import Console

from seaweedq.cli.topic import history, watch
from seaweedq.cli.topic.history import lay_out, rows, save
from seaweedq.cli.topic.lineage import KEY_SPACE, LastHour
from seaweedq.cli.topic.watch_picture import PAST_LINES, Frame, Snapshot, WatchHistory, picture
from seaweedq.errors import RouteNotFound, Unavailable
from tests.support.cli.some_segments import after, by_id, split_and_merged


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
    assert lines[2] == "the last 10 min, the newest below"
    assert lines[3:8] == ["·" * 40] * (PAST_LINES - 1) + ["░" * 20 + "·" * 20]
    assert "the last" not in "".join(drawn(watched, 24))
    assert len(drawn(watched, 40)) <= 40


def drawn(watched: WatchHistory, lines: int) -> list[str]:
    out = io.StringIO()
    console = Console(width=40, file=out, color_system=None)
    console.print(picture("flights", watched, Frame(40, lines, colours=False)))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("error", [RouteNotFound("older"), Unavailable("no broker leads")])
def test_a_broker_that_tells_none_is_no_failure(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    client: Any = SimpleNamespace(history=refuse)
    assert history.load_last_hour(client, "t") is None
    assert str(error) in capsys.readouterr().err
    assert watch.load_last_minutes(client, "t", after(0)) is None
