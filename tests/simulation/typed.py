"""Clients of a typed topic whose schema changes: some change it, others publish, import and consume rows.

A row is known by its key; its values follow from its number and from the types of the version that it has. Publishers
know the newest version, or the one before, and repeat a request until it is answered. Dead letters go to a second typed
topic, whose schema must hold them.
"""

import asyncio
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from seaweedq.broker.rpc.peer_connections import Relayed
from seaweedq.segments.evolution import with_ids
from seaweedq.segments.schema import parse_schema
from tests.simulation.clients import ARROW, WrongAnswer
from tests.simulation.network import Refused
from tests.simulation.users import User
from tests.support.history.load import JSON, NDJSON

TYPED, LETTERS = "typed", "typed-letters"
PATH = f"/v1/topics/{TYPED}"
FIELDS = [
    {"id": 1, "name": "k", "required": True, "type": "string"},
    {"id": 2, "name": "n", "required": False, "type": "int"},
]
WIDER = {"int": "long", "float": "double", "decimal(5, 2)": "decimal(9, 2)"}
KINDS = ("int", "float", "decimal(5, 2)", "string")
POISON = 7  # one in so many rows dies
ALL_S = 60.0

Fields = Sequence[dict[str, Any]]


def value_of(kind: str, number: int) -> Any:
    """The value of a field of a row: one that no narrower type holds."""
    return {
        "int": number,
        "long": 2**40 + number,
        "float": number / 4,
        "double": number + 0.1,
        "decimal(5, 2)": f"{number % 900}.25",
        "decimal(9, 2)": f"{1_000_000 + number}.25",
        "string": f"s{number}",
    }[kind]


@dataclass(frozen=True)
class Version:
    """A version of the schema."""

    id: int
    fields: Fields

    def row(self, key: str, number: int, without: int) -> dict[str, Any]:
        """A row, with null in one optional field of so many."""
        return {
            one["name"]: key
            if one["name"] == "k"
            else None
            if (number + one["id"]) % without == 0
            else value_of(one["type"], number)
            for one in self.fields
        }

    def shown(self, row: dict[str, Any], newest: Fields) -> dict[str, Any]:
        """A row of this version as a later one shows it."""
        names = {one["id"]: one["name"] for one in self.fields}
        return {one["name"]: row.get(names.get(one["id"], "")) for one in newest}


@dataclass
class Typed(User):
    """A client of the topic, which it makes with the first version, as programs do at their start."""

    is_made: bool = False

    async def made(self) -> bool:
        """Whether both topics are there."""
        if not self.is_made:
            more: dict[str, Any] = {"format": "typed", "schema": {"fields": FIELDS}, "flush": {"max_age_s": 2}}
            letters = await self.tried(self.client.create_topic(LETTERS, **more))
            more |= {"key_field": "k", "initial_segments": 2}
            self.is_made = letters is not None and await self.tried(self.client.create_topic(TYPED, **more)) is not None
        elif self.rng.random() < 0.02:
            self.is_made = False  # it starts again
        return self.is_made

    async def found(self, method: str, path: str, body: str | bytes = "", **headers: str) -> Relayed | None:
        """An answer that is final; None for one that is not known, or if nobody is there."""
        try:
            answer = await self.answer(method, path, body, headers)
        except Refused:
            return None
        if answer and answer.status >= 500 and answer.status != 503:
            raise WrongAnswer(f"{method} {path}: {answer.status} {answer.body[:500]!r}")
        if answer is None or answer.status == 503:
            await asyncio.sleep(0.1)
            return None
        return answer

    async def version(self, behind: int = 0, topic: str = TYPED) -> Version | None:
        """The newest version that some broker knows, or one before; None if none answers."""
        answer = await self.found("GET", f"/v1/topics/{topic}")
        if answer is None or answer.status != 200:
            return None
        topic_now = json.loads(answer.body)
        newest = Version(topic_now["schema_id"], topic_now["schema"]["fields"])
        wanted = max(0, newest.id - behind)
        return newest if wanted == newest.id else await self.numbered(wanted)

    async def numbered(self, number: int) -> Version | None:
        """The version of an id."""
        answer = await self.found("GET", f"{PATH}/schemas/{number}")
        if answer is None:
            return None
        if answer.status != 200:
            raise WrongAnswer(f"version {number}: {answer.status} {answer.body[:500]!r}")
        return Version(number, json.loads(answer.body)["schema"]["fields"])

    async def last(self, number: int | None = None) -> Version:
        """The newest version, or another one, once all is healed."""
        while True:
            if version := await (self.version() if number is None else self.numbered(number)):
                return version


@dataclass
class Changer(Typed):
    """Makes versions: adds, widens, renames, drops and reorders fields, beside others who do so."""

    counted: dict[int, Fields] = field(default_factory=dict)  # by id, of what was acknowledged
    named: int = 0

    async def step(self) -> None:
        await self.rest()
        if not await self.made() or (before := await self.version()) is None:
            return
        wanted = self._changed(before.fields)
        if not await self._prepare(wanted):
            return
        body = json.dumps({"schema": {"fields": wanted}, "if_schema_id": before.id})
        while (answer := await self.found("PATCH", PATH, body)) is None:
            if self.stopping:
                return
        if answer.status == 200:
            now = json.loads(answer.body)
            self.counted[now["schema_id"]] = now["schema"]["fields"]
            if before.id == now["schema_id"]:
                self.strange.append(f"version {before} is there again after a change {wanted}: {now}")
        elif answer.status != 409:
            raise WrongAnswer(f"PATCH {body}: {answer.status} {answer.body[:500]!r}")
        await self._forget(wanted)

    def _changed(self, before: Fields) -> list[dict[str, Any]]:
        fields = [dict(one) for one in before]
        others = [one for one in fields if one["name"] not in ("k", "n")]
        act = self.rng.choice(["add", "add", "widen", "drop", "order", "rename"])
        if act == "drop" and others:
            fields.remove(self.rng.choice(others))
        elif act == "widen" and (narrow := [one for one in fields if one["type"] in WIDER]):
            one = self.rng.choice(narrow)
            one["type"] = WIDER[one["type"]]
        elif act == "order" and others:
            fields.append(fields.pop(0))
        elif act == "rename" and len(fields) > 1:
            self.rng.choice([one for one in fields if one["name"] != "k"])["name"] = self._new_name()
        else:
            fields.append({"name": self._new_name(), "type": self.rng.choice(KINDS)})
        return fields

    def _new_name(self) -> str:
        self.named += 1
        return f"{self.name.replace('-', '_')}_{self.named}"

    async def _prepare(self, wanted: Fields) -> bool:
        """Has the topic of dead letters hold those of a version to come."""
        letters = await self.version(topic=LETTERS)
        if letters is None:
            return False
        kinds = {one["name"]: one["type"] for one in wanted}
        fields = [{**one, "type": kinds.pop(one["name"], one["type"])} for one in letters.fields]
        fields += [{"name": name, "type": kind} for name, kind in kinds.items()]
        body = json.dumps({"schema": {"fields": fields}})
        answer = await self.found("PATCH", f"/v1/topics/{LETTERS}", body)
        return answer is not None and answer.status == 200

    async def _forget(self, wanted: Fields) -> None:
        """Drops in the topic of dead letters what was dropped in the topic, some time."""
        if self.rng.random() < 0.3 and (letters := await self.version(topic=LETTERS)):
            names = {one["name"] for one in wanted}
            fields = [one for one in letters.fields if one["name"] in names]
            body = json.dumps({"schema": {"fields": fields}, "if_schema_id": letters.id})
            await self.found("PATCH", f"/v1/topics/{LETTERS}", body)

    async def at_last(self) -> None:
        newest = await self.last()
        for number, fields in self.counted.items():
            if number > newest.id:
                self.strange.append(f"version {number} was acknowledged, and the newest one is {newest.id}")
            elif (now := await self.last(number)).fields != fields:
                self.strange.append(f"version {number} was acknowledged as {fields}, and is {now.fields}")


@dataclass
class Rows(Typed):
    """Sends rows. `sent` has them by their keys, each with its version and the id that it got, if that is known."""

    sent: dict[str, tuple[Version, dict[str, Any], str | None]] = field(default_factory=dict)
    surely: set[str] = field(default_factory=set)  # those that are there
    pins: bool = False  # requests state their version
    refused: list[tuple[set[int], Version, str]] = field(default_factory=list)
    next: int = 0

    def drawn(self, version: Version, count: int) -> list[dict[str, Any]]:
        """The next rows."""
        numbers = range(self.next, self.next + count)
        self.next += count
        without = self.rng.choice([2, 3, 1000])
        rows = [version.row(f"{self.name}/{number}", number, without) for number in numbers]
        self.sent |= {row["k"]: (version, row, None) for row in rows}
        return rows

    def was_refused(self, version: Version, rows: Sequence[dict[str, Any]], said: str, pins: bool) -> None:
        """Notes that rows were refused, which is right if a field that had values was dropped, or any was renamed of a
        version that the request does not name."""
        had = {one["id"] for one in version.fields if any(row[one["name"]] is not None for row in rows)}
        self.refused.append((had, Version(version.id, []) if pins else version, said))

    async def at_last(self) -> None:
        newest, found = await self.last(), defaultdict[str, list[tuple[str, Any]]](list)
        async for one in self.messages(TYPED):
            if one.value["k"] in self.sent:
                found[one.value["k"]].append((one.id, one.value))
        for key, (version, row, id) in self.sent.items():
            there = found[key]
            if len(there) > 1 or (key in self.surely and not there) or (id and there and there[0][0] != id):
                self.strange.append(f"row {key} (sent as {id}) is at {[id for id, _ in there]}")
            for _, value in there:
                if value.keys() != (wanted := version.shown(row, newest.fields)).keys() or self.others(value, wanted):
                    self.strange.append(f"row {key} of version {version.id} is {value}, not {wanted}")
        if self.refused:
            self.strange += self._wrongly_refused([await self.last(number) for number in range(newest.id + 1)])

    def others(self, there: dict[str, Any], sent: dict[str, Any]) -> list[str]:
        """The fields whose values are not those that were sent. Without its version a row may have met a broker that
        knew the one before, in which a double was a float."""
        rounded = [
            name for name, one in sent.items() if type(one) is float and there.get(name) == float(np.float32(one))
        ]
        return [name for name in there if there[name] != sent.get(name) and (self.pins or name not in rounded)]

    def _wrongly_refused(self, versions: Sequence[Version]) -> Iterator[str]:
        there = {one["id"] for one in versions[-1].fields}
        for had, version, said in self.refused:
            names = {one["id"]: one["name"] for one in version.fields}
            later = [one for now in versions[version.id :] for one in now.fields]
            if had <= there and all(names.get(one["id"], one["name"]) == one["name"] for one in later):
                yield f"rows without a value in any dropped field, or a renamed one, were refused: {said}"


@dataclass
class TypedPublisher(Rows):
    """Publishes rows of the newest version, or of one `behind`, with or without its id, as JSON, lines or Arrow."""

    is_source: ClassVar[bool] = True
    behind: int = 0
    own: Version | None = None
    waiting: tuple[Version, list[dict[str, Any]], str, str | bytes, dict[str, str]] | None = None
    before: tuple[Version, list[dict[str, Any]], str, str | bytes, dict[str, str]] | None = None  # answered

    def finished(self) -> bool:
        return self.stopping and self.waiting is None

    async def step(self) -> None:
        if self.waiting is None:
            await self.rest()
            if self.stopping or not await self.made():
                return
            if self.own is None or self.rng.random() < 0.3:
                self.own = await self.version(self.behind) or self.own
            if self.own is None:
                return
            if self.before and self.rng.random() < 0.1:
                self.waiting = self.before  # as if its answer had been lost
            else:
                self.waiting = self._batch(self.own)
        if await self._publish(*self.waiting):
            self.waiting = None
        if self.surely and self.rng.random() < 0.1:
            await self._look(self.rng.choice(sorted(self.surely)))

    def _batch(self, version: Version) -> tuple[Version, list[dict[str, Any]], str, str | bytes, dict[str, str]]:
        first = self.next
        rows = self.drawn(version, self.rng.choice([1, 1, 3, 10]))
        headers = {"Producer-Id": self.name, "Producer-Sequence": str(first)}
        if self.pins:
            headers["Schema-Id"] = str(version.id)
        kind, body = self._body(version, rows)
        return version, rows, kind, body, headers

    def _body(self, version: Version, rows: Sequence[dict[str, Any]]) -> tuple[str, str | bytes]:
        kind = self.rng.choice([JSON, NDJSON, ARROW])
        if kind == JSON:
            return kind, json.dumps({"messages": [{"value": row} for row in rows]})
        if kind == NDJSON:
            return kind, "\n".join(json.dumps({"value": row}) for row in rows)
        columns = parse_schema(with_ids({"fields": list(version.fields)})).remove_metadata()
        arrays = []
        for one in columns:
            values = [row[one.name] for row in rows]
            if pa.types.is_decimal(one.type):
                values = [None if value is None else Decimal(value) for value in values]
            arrays.append(pa.array(values, one.type))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, columns) as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=columns))
        return kind, sink.getvalue().to_pybytes()

    async def _publish(
        self,
        version: Version,
        rows: list[dict[str, Any]],
        kind: str,
        body: str | bytes,
        headers: dict[str, str],
    ) -> bool:
        answer = await self.found("POST", f"{PATH}/messages?ids=true", body, **headers, **{"Content-Type": kind})
        if answer is None:
            return False
        if answer.status == 200:
            self.before = version, rows, kind, body, headers
            for row, id in zip(rows, json.loads(answer.body)["ids"], strict=True):
                self.sent[row["k"]] = version, row, id
                self.surely.add(row["k"])
            return True
        if answer.status not in (400, 409, 422):
            raise WrongAnswer(f"publish: {answer.status} {answer.body[:500]!r}")
        if not self.surely.isdisjoint(row["k"] for row in rows):
            self.strange.append(f"a repeat of what was acknowledged was refused: {answer.body[:300]!r}")
        self.was_refused(version, rows, f"{answer.status} {answer.body[:300]!r}, version {version.id}", self.pins)
        self.own = None
        return True

    async def _look(self, key: str) -> None:
        version, row, id = self.sent[key]
        assert id
        segment, offset = map(int, id.split("-"))
        page = await self.tried(self.client.fetch(TYPED, segment, offset, 1))
        if page is None:
            return
        there = page.messages[0].value if page.messages else {}
        names = {one["name"] for one in version.fields}
        if there.get("k") != key:
            self.strange.append(f"row {key} is not at {id}: {there}")
        elif wrong := [name for name in self.others(there, row) if name in names]:
            self.strange.append(f"row {key} of version {version.id} has other values in {wrong}: {there}")


@dataclass
class TypedImports(Rows):
    """Imports and writes files of rows of the newest version, or of the one before."""

    async def step(self) -> None:
        await self.rest()
        if not await self.made() or (version := await self.version(self.rng.choice([0, 1]))) is None:
            return
        rows = self.drawn(version, self.rng.choice([1, 20, 200]))
        content = "".join(json.dumps({"value": row}) + "\n" for row in rows).encode()
        if await self.tried(self._take(content)) is not None:
            self.surely |= {row["k"] for row in rows}

    async def _take(self, content: bytes) -> Any:
        number = self.next
        if number % 2:
            return await self.client.import_file(TYPED, io.BytesIO(content), "ndjson")
        upload = await self.client.upload(TYPED, content, write=f"{self.name}/{number}")
        return await self.client.write(TYPED, self.name, number, [upload], "ndjson")


@dataclass
class TypedConsumer(Typed):
    """Acks rows and rejects some, which come to the topic of dead letters."""

    came: set[str] = field(default_factory=set)
    rejected: set[str] = field(default_factory=set)

    async def step(self) -> None:
        await self.rest()
        if await self.made() and await self.tried(self._subscribe()) is not None:
            await self._pull()

    async def _subscribe(self) -> Any:
        terms: dict[str, Any] = {"start": "earliest", "ack_deadline_s": 2, "max_attempts": 5}
        return await self.client.create_subscription(TYPED, "s", **terms, dead_letter_topic=LETTERS)

    async def _pull(self) -> int | None:
        """How many rows came; None if nobody answered."""
        path = f"{PATH}/subscriptions/s"
        body = json.dumps({"max_messages": 50, "wait_s": 2.5, "consumer": self.name})
        answer = await self.found("POST", f"{path}/pull", body)
        if answer is None or answer.status != 200:
            return None
        messages, ids = json.loads(answer.body)["messages"], defaultdict[str, list[str]](list)
        bad = {m["value"]["k"]: m["id"] for m in messages if int(m["value"]["k"].split("/")[1]) % POISON == 3}
        for message in messages:
            key = message["value"]["k"]
            self.came.add(key)
            ids["reject" if key in bad else "ack"].append(message["id"])
        for act, chosen in ids.items():
            done = await self.found("POST", f"{path}/{act}", json.dumps({"ids": chosen}))
            if act == "reject" and done is not None and done.status == 200:
                self.rejected |= bad.keys()
        return len(messages)

    async def at_last(self) -> None:
        if not await self.made():
            return
        await self._subscribe()
        end_s = self.story.loop.time() + ALL_S
        there = {one.value["k"] async for one in self.messages(TYPED)}
        while (left := there - self.came) and self.story.loop.time() < end_s:
            await self._pull()
            if there - self.came < left:  # a small window lets few rows by, while poison ones wait for their retries
                end_s = self.story.loop.time() + ALL_S
        if left := there - self.came:
            self.strange.append(f"{len(left)} rows came to no consumer: {sorted(left)[:5]}")
        while True:
            letters = {one.value["k"]: one.value async for one in self.messages(LETTERS)}
            missing = self.rejected - letters.keys()
            if not missing or self.story.loop.time() > end_s:
                break
            await asyncio.sleep(1)
        if missing:
            self.strange.append(f"{len(missing)} rejected rows are no dead letters: {sorted(missing)[:5]}")
        rows = {one.value["k"]: one.value async for one in self.messages(TYPED)}
        aliases = {one["name"]: one.get("aliases", ()) for one in (await self.last()).fields}
        for key, letter in letters.items():
            for name, value in rows[key].items():
                there = {letter.get(one) for one in (name, *aliases[name])}
                if value not in there and not (aliases[name] and there == {None}):  # that field was dropped there
                    self.strange.append(f"the dead letter of {key} is {letter}, not {rows[key]}: {name}")
