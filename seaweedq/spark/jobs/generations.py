"""Generations: tables in a folder that `export` and `compact` write, each of which appears whole or not at all.

A job works out a generation behind the newest one, N - 1. The order of its writes, and the fail points behind them:

1. `DIR/gen=N-{nonce}/`, all files of it. A crash leaves a folder that no record names: nobody reads it.
   `generation.written`
2. `DIR/_generations/N.json`, created if it is absent. A crash leaves what the generation replaces beside it.
   `generation.recorded`
3. What is superseded, or was left behind, goes: records before the folders that they name. A crash leaves less of it,
   for the next job.

The record names the folders that count, so a reader needs nothing but the newest record, and sees all of a generation.
Of several jobs that work out N one creates the record, and the others remove their folders.

*Create if absent* is the decision, so it must be real. On a folder of this machine, or a mount, it is a link to a
complete file, which fails where the name exists (storage/local). On S3 it is a put with `If-None-Match: *`, by boto:
not Spark's own file system, whose create without overwrite looks first and writes then. A store that ignores the
condition is found before the first generation, by creating one name twice. A put whose answer is lost is repeated;
where the name exists the bytes decide, which have a nonce. If nothing tells, the folder stays: the record may appear.

What may go is told by numbers, and no clock decides what is safe. A folder of a number above the newest may be one of a
running job, however long it takes: it stays. One of a number that is recorded, and that no record names, is of a job
that has lost, or is superseded. `keep_s` is a courtesy to readers, and to the error of a job that has lost: until then
what was superseded stays, counted from the record that replaced it, and what was left behind, from the last write
to it. Both are times of the store, as is the `now`, the time of the record just created: no other clock takes part.

A number whose record has gone can be created again, by a job that was paused for so long. It finds a newer record then.
Unless the record behind says that it follows this very one, the job has lost.
"""

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from seaweedq.checks import reach
from seaweedq.clock import Ids, SystemIds
from seaweedq.errors import ClientError
from seaweedq.extras import install_command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)
FORM = 1  # of records
RECORDS = "_generations"
PAUSES_S = (0.0, 0.2, 0.8, 3.0)  # before the tries of a create
_RECORD = re.compile(r"([1-9][0-9]*)\.json")
_FOLDER = re.compile(r"gen=([1-9][0-9]*)-[0-9a-f]{32}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_GLOB = re.compile(r"[*?\[\]{}\\]")  # Spark takes such a path for a pattern
Job = Literal["export", "compact"]
State = Literal["writing", "asked", "won", "lost"]


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record: the `folders` that count, the topic that they are of, and the `offsets` up to which they have it, by
    segment, as a stream's (`spark.offsets`). `previous` is the nonce of the generation before, empty of the first.
    `schema` is Spark's JSON, `rows` are those of its own folder, `as_of` is the cluster's time of the read."""

    generation: int
    nonce: str
    previous: str
    job: Job
    topic: str
    created_at: str
    as_of: str
    folders: tuple[str, ...]
    offsets: dict[str, int]
    schema: dict[str, Any]
    rows: int
    partition_by: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    form: int = FORM

    @property
    def folder(self) -> str:
        """Returns the name of its own folder."""
        return folder_name(self.generation, self.nonce)


_GENERATION = msgspec.json.Decoder(Generation)


def folder_name(number: int, nonce: str) -> str:
    """Returns the name of a generation's folder."""
    return f"gen={number}-{nonce}"


@dataclass(frozen=True)
class Place:
    """A folder as it was given, for fsspec, and for Spark."""

    given: str
    url: str
    spark: str

    @property
    def local(self) -> bool:
        """Tells whether it is a folder of this machine."""
        return self.url.startswith("/")

    @staticmethod
    def parse(given: str) -> "Place":
        """Parses a path, or a URL of file://, s3:// or s3a://. Raises ValueError."""
        if not given or _GLOB.search(given):
            raise ValueError(f"the folder for generations must not contain any of * ? [ ] {{ }} \\, but is {given!r}")
        path = given.removeprefix("file://")
        scheme, bucket, rest = (*path.partition("://")[::2], "")
        if bucket and scheme in ("s3", "s3a"):
            bucket, _, rest = bucket.strip("/").partition("/")
            if bucket and rest:
                return Place(given, f"s3://{bucket}/{rest}", f"s3a://{bucket}/{rest}")
        elif not _SCHEME.match(path):
            path = os.path.abspath(path)
            return Place(given, path, f"file://{path}")
        raise ValueError(f"the folder for generations must be a path, or s3a://BUCKET/FOLDER, not {given!r}")


def check_outside(place: Place, topic_folder: str, topic: str) -> None:
    """Raises ValueError for a place in the store that has a topic: only brokers write there."""
    store = topic_folder.removesuffix(f"/topics/{topic}")
    if place.local and store.startswith("file://"):
        inner, outer = (os.path.realpath(each) + "/" for each in (place.url, store.removeprefix("file://")))
    else:
        inner, outer = place.url + "/", store + "/"
    if inner.startswith(outer):
        raise ValueError(
            f"{place.given!r} is inside the brokers' store {store}, to which only brokers may "
            "write; choose another folder"
        )


@dataclass
class Begun:
    """A generation that is worked out: `writing`, then `asked` for its record, then `won` or `lost`. In `asked` nobody
    knows, so its folder stays."""

    number: int
    nonce: str
    previous: str
    state: State = "writing"

    @property
    def folder(self) -> str:
        """Returns the name of its folder."""
        return folder_name(self.number, self.nonce)


@dataclass
class Generations:
    """The generations in a place, with options of fsspec for it. `pause` waits between the tries of a create.

    `files` is fsspec's file system. Raises ClientError if the place cannot be read or written.
    """

    place: Place
    storage: Mapping[str, Any] = field(default_factory=dict)
    ids: Ids = field(default_factory=SystemIds)
    pause: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        import fsspec  # the workers of Spark are spared it

        try:
            self.files: Any = fsspec.core.url_to_fs(self.place.url, **{"use_listings_cache": False, **self.storage})[0]
        except ImportError:
            raise ClientError(f"{self.place.given} needs s3fs: {install_command('s3')}") from None
        self._root = self.place.url.removeprefix("s3://")
        self._bucket_is_there()

    def numbers(self) -> list[int]:
        """Returns the numbers of the records that are there, sorted."""
        names = [info["name"].rpartition("/")[2] for info in self._listed(RECORDS)]
        return sorted(int(found[1]) for name in names if (found := _RECORD.fullmatch(name)))

    def newest(self) -> Generation | None:
        """Returns the newest generation, None if there is none."""
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def read(self, number: int) -> Generation:
        """Returns a generation."""
        name = self._record(number)
        try:
            found = _GENERATION.decode(self._bytes(name))
        except FileNotFoundError:
            there = self.numbers()
            said = f"it has {there[0]} to {there[-1]}" if there else "it has none yet"
            raise ClientError(f"{self.place.given} has no generation {number}; {said}") from None
        except msgspec.DecodeError as error:
            raise ClientError(f"{name} is not the record of a generation: {error}") from None
        if found.form != FORM:
            raise ClientError(
                f"{name} has the format {found.form}, but this version of seaweedq reads only format "
                f"{FORM}; use a newer version"
            )
        return found

    @contextmanager
    def begin(self, after: Generation | None) -> Iterator[Begun]:
        """Begins the generation after another one, or the first. If the block fails, its folder is removed, unless its
        record may be there."""
        begun = Begun((after.generation if after else 0) + 1, self.ids.nonce(), after.nonce if after else "")
        self._check_writable(begun)
        try:
            yield begun
        except BaseException:
            if begun.state in ("writing", "lost"):
                self._remove(begun.folder)
            raise

    def commit(self, begun: Begun, generation: Generation) -> None:
        """Creates the record of a generation whose folder is complete. Raises ClientError if another job has come
        first, or if nothing tells."""
        data = msgspec.json.encode(generation)
        if self.place.local:
            self._sync(begun.folder)
        reach("generation.written")
        begun.state = "asked"
        if not self._create(self._record(begun.number), data):
            begun.state = "lost"
            raise self.lost(begun)
        if (newest := self.numbers()[-1]) > begun.number:
            self._check_follows(begun, newest)
        begun.state = "won"
        reach("generation.recorded")

    def lost(self, begun: Begun) -> ClientError:
        """Returns the error of a job that has come too late."""
        return ClientError(
            f"another job has written generation {begun.number} of {self.place.given} in the meantime, and this "
            "job's files were removed. Run this job again to add the messages that are new since then"
        )

    def is_decided(self, begun: Begun) -> bool:
        """Tells whether another generation has this number, or a later one."""
        return max(self.numbers(), default=0) >= begun.number

    def clean(self, newest: Generation, keep_s: float) -> list[str]:
        """Removes what is superseded or was left behind for `keep_s` seconds when the newest generation was recorded.
        Returns its names. What cannot be removed is left to the next job."""
        try:
            made_s = {number: self._modified_s(self._record(number)) for number in self.numbers()}
            now_s = made_s[newest.generation]
            gone = superseded({n: at for n, at in made_s.items() if n <= newest.generation}, now_s, keep_s)
            named = {name for number in made_s if number not in gone for name in self.read(number).folders}
            folders = [info["name"].rstrip("/").rpartition("/")[2] for info in self._listed("")]
        except Exception as error:  # such as a record that another job removes just now; this generation counts
            logger.warning(
                "superseded files in %s could not be removed (%s); the next job removes them", self.place.given, error
            )
            return []
        removed = [name for name in (f"{RECORDS}/{number}.json" for number in gone) if self._remove(name)]
        for name in folders:
            found = _FOLDER.fullmatch(name)
            if not found or int(found[1]) > newest.generation or name in named:
                continue
            if now_s - self._last_write_s(name) >= keep_s and self._remove(name):
                removed.append(name)
        return removed

    def _record(self, number: int) -> str:
        return f"{self._root}/{RECORDS}/{number}.json"

    def _listed(self, folder: str) -> Sequence[Mapping[str, Any]]:
        try:
            found: Sequence[Mapping[str, Any]] = self.files.ls(f"{self._root}/{folder}".rstrip("/"), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except Exception as error:
            raise self._unreadable(error) from error
        return found

    def _bytes(self, name: str) -> bytes:
        try:
            found: bytes = self.files.cat_file(name)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._unreadable(error) from error
        return found

    def _create(self, name: str, data: bytes) -> bool:
        """Creates an object unless it is there. False: it is, with other bytes."""
        failed: Exception | None = None
        for pause_s in PAUSES_S:
            self.pause(pause_s)
            try:
                return self.try_create(name, data) or self.files.cat_file(name) == data
            except Exception as error:  # of boto, aiohttp and the system; which of them had an effect nobody tells
                failed = error
        raise ClientError(
            f"it is unknown whether {name} was created, because the store does not answer: "
            f"{failed}. Run the job again; if the generation was created, the new job continues "
            "after that generation"
        ) from failed

    def try_create(self, name: str, data: bytes) -> bool:
        """Creates an object unless its path exists, in one try. False: it does. Raises errors of the file system, after
        which nobody knows."""
        folder, _, last = name.rpartition("/")
        if self.place.local:
            from fsspec.asyn import get_loop, sync

            from seaweedq.storage.local import LocalStore

            return bool(sync(get_loop(), LocalStore(folder, self.ids).create, last, data))
        try:
            self.files.pipe_file(name, data, mode="create")
        except OSError as error:
            answer = getattr(error.__cause__, "response", None) or {}
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(error, FileExistsError) or status == 412:
                return False
            raise
        return True

    def _check_follows(self, begun: Begun, newest: int) -> None:
        """Checks that a newer generation has followed this one, and not another of its number that is forgotten."""
        with suppress(ClientError):
            if self.read(begun.number + 1).previous == begun.nonce:
                return
            begun.state = "lost"
            self._remove(f"{RECORDS}/{begun.number}.json")
        raise ClientError(
            f"{self.place.given} already has generation {newest}, which may lack this job's result: another job "
            f"perhaps wrote a newer generation without reading generation {begun.number}, which this job wrote. Run "
            "this job again"
        )

    def _check_writable(self, begun: Begun) -> None:
        """Checks that the place takes a record, and, before the first one, that its creates are creates if absent."""
        if self.place.local:
            try:
                os.makedirs(f"{self._root}/{RECORDS}", exist_ok=True)
                with open(f"{self._root}/{RECORDS}/.{begun.nonce}", "xb"):
                    pass
                os.unlink(f"{self._root}/{RECORDS}/.{begun.nonce}")
            except OSError as error:
                raise ClientError(f"cannot write to {self.place.given}: {error.strerror}") from error
        elif begun.number == 1:
            name = f"{self._root}/{RECORDS}/.{begun.nonce}"
            try:
                self.try_create(name, b"1")
                real = not self.try_create(name, b"2")
                self.files.rm_file(name)
            except Exception as error:
                raise ClientError(f"cannot write to {self.place.given}: {error}") from error
            if not real:
                raise ClientError(
                    f"the store of {self.place.given} ignores If-None-Match, so concurrent jobs would "
                    "overwrite each other's files; see docs/operate/store.md for the stores that support "
                    "this header"
                )

    def _bucket_is_there(self) -> None:
        bucket = self._root.partition("/")[0]
        if self.place.local:
            return
        try:
            there = self.files.exists(bucket)
        except Exception as error:
            raise self._unreadable(error) from error
        if not there:
            raise ClientError(
                f"cannot read {self.place.given}: the bucket {bucket} does not exist, or you do not "
                "have access to the bucket"
            )

    def _unreadable(self, error: Exception) -> ClientError:
        return ClientError(f"cannot read {self.place.given}: {getattr(error, 'strerror', None) or error}")

    def _sync(self, folder: str) -> None:
        """Makes the files of a folder durable, as far as this machine has written them."""
        for at, _, names in os.walk(f"{self._root}/{folder}"):
            for name in ("", *names):
                descriptor = os.open(f"{at}/{name}", os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def _modified_s(self, name: str) -> float:
        return _time_s(self.files.info(name))

    def _last_write_s(self, folder: str) -> float:
        """Returns when something below a folder was written last."""
        try:
            found = self.files.find(f"{self._root}/{folder}", withdirs=self.place.local, detail=True)
        except Exception as error:
            logger.warning(
                "the folder %s of %s may contain files that are no longer needed, but listing the folder failed (%s); "
                "the next job tries again",
                folder,
                self.place.given,
                error,
            )
            return math.inf
        return max(map(_time_s, found.values()), default=0.0)

    def _remove(self, name: str) -> bool:
        """Removes a record or a folder; its own job may write to it meanwhile."""
        try:
            self.files.rm(f"{self._root}/{name}", recursive=name.startswith("gen="))
        except FileNotFoundError:
            return False
        except Exception as error:
            logger.warning("%s in %s could not be removed (%s); the next job removes it", name, self.place.given, error)
            return False
        return True


def superseded(made_s: Mapping[int, float], now_s: float, keep_s: float) -> list[int]:
    """Returns the numbers of records, given when each was made, that were replaced at least `keep_s` before `now_s`."""
    numbers = sorted(made_s)
    return [one for one, following in pairwise(numbers) if now_s - made_s[following] >= keep_s]


def storage_of(spark: "SparkSession", given: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Returns options of fsspec for S3: those given, else those that the session has for s3a. What neither says is in
    boto's variables and files."""
    if given is not None:
        return given

    def conf(name: str) -> str | None:
        found: str | None = spark.conf.get(f"spark.hadoop.fs.s3a.{name}", None)
        return found

    endpoint = conf("endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    stated = {
        "key": conf("access.key"),
        "secret": conf("secret.key"),
        "token": conf("session.token"),
        "endpoint_url": endpoint,
    }
    style = {"s3": {"addressing_style": "path"}} if conf("path.style.access") == "true" else None
    return {name: value for name, value in {**stated, "config_kwargs": style}.items() if value}


def read_generation(
    spark: "SparkSession", path: str, generation: int | None = None, storage: Mapping[str, Any] | None = None
) -> "DataFrame":
    """Returns the rows of one generation in a folder of `seaweedq spark export` or `compact`: the generation with this
    number, or the newest one.

    On S3, the generation's record is read with `storage` as fsspec options; the default is the session's s3a
    configuration. Raises ValueError for an invalid path, and ClientError if the generation does not exist or the folder
    cannot be read."""
    place = Place.parse(path)
    there = Generations(place, {} if place.local else storage_of(spark, storage))
    found = there.newest() if generation is None else there.read(generation)
    if found is None:
        raise ClientError(
            f"{path} has no generation yet; to write one, run `seaweedq spark export` or `seaweedq spark compact`"
        )
    return frame_of_folders(spark, place, found.schema, found.folders, found.partition_by)


def frame_of_folders(
    spark: "SparkSession", place: Place, schema: Mapping[str, Any], folders: Sequence[str], partition_by: Sequence[str]
) -> "DataFrame":
    """Returns the rows of folders."""
    from pyspark.sql.types import StructType

    columns = StructType.fromJson(dict(schema))
    reader = spark.read.schema(columns).option("timeZone", "UTC")
    if partition_by:  # which are told apart from the folders' own names by their base alone
        reader = reader.option("basePath", place.spark)
    return reader.parquet(*(f"{place.spark}/{name}" for name in folders)).select(*(f"`{n}`" for n in columns.names))


def schema_json(frame: "DataFrame") -> dict[str, Any]:
    """Returns a frame's columns as a record has them."""
    found: dict[str, Any] = json.loads(frame.schema.json())
    return found


def _time_s(info: Mapping[str, Any]) -> float:
    found = info.get("mtime", info.get("LastModified"))
    if isinstance(found, datetime):
        return found.timestamp()
    return float(found or 0.0)
