"""Generations in a folder and on S3: one of several jobs wins, nobody's folder goes while its number is open, and what
is superseded or was left behind goes after its time. No Spark."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.errors import ClientError
from seaweedq.spark.jobs.generations import (
    FORM,
    Begun,
    Generation,
    Generations,
    Place,
    check_outside,
    read_generation,
    superseded,
)
from tests.support.processes.s3_service import KEY, SECRET, S3Service
from tests.support.tiers import examples, marked

Made = Callable[..., Generations]


@pytest.fixture(params=["folder", marked("s3", "service", "long")])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """Makes another look at the same place, as each job has its own."""
    if request.param == "folder":
        return lambda **more: Generations(Place.parse(str(tmp_path / "out")), **more)
    moto: S3Service = request.getfixturevalue("moto")
    place = Place.parse(f"s3a://{moto.place()}/out")
    return lambda **more: Generations(place, storage_of(moto), **more)


def storage_of(moto: S3Service) -> dict[str, str]:
    return {"key": KEY, "secret": SECRET, "endpoint_url": moto.endpoint}


def root(there: Generations) -> str:
    return there.place.url.removeprefix("s3://")


def write(there: Generations, begun: Begun, name: str = "part-0.parquet") -> None:
    """Writes a file of a folder, as Spark would."""
    path = f"{root(there)}/{begun.folder}/{name}"
    there.files.makedirs(path.rpartition("/")[0], exist_ok=True)
    there.files.pipe_file(path, b"rows")


def record(begun: Begun, *before: str) -> Generation:
    return Generation(
        begun.number, begun.nonce, begun.previous, "export", "t", "", "", (*before, begun.folder), {}, {}, 1
    )


def add(there: Generations) -> Generation:
    """Adds a generation of one file, as compact does: its own folder counts."""
    with there.begin(there.newest()) as begun:
        write(there, begun)
        generation = record(begun)
        there.commit(begun, generation)
    return generation


def attempt(there: Generations, after: Generation | None, meanwhile: Callable[[Begun], object]) -> None:
    """A job that something happens to between its folder and its record."""
    with there.begin(after) as begun:
        write(there, begun)
        meanwhile(begun)
        there.commit(begun, record(begun))


def names(there: Generations) -> set[str]:
    """The folders that are there."""
    found = there.files.find(root(there))
    return {m[0] for path in found if (m := re.search(r"gen=\d+-\w+", path))}


def test_a_generation_counts_once_its_record_is_there(made: Made) -> None:
    there = made()
    assert there.newest() is None
    with there.begin(None) as begun:
        write(there, begun)
        assert made().newest() is None
        there.commit(begun, record(begun))
    assert begun.state == "won"
    assert made().newest() == record(begun)
    assert made().read(1).folders == (begun.folder,)
    with pytest.raises(ClientError, match="has no generation 2; it has 1 to 1"):
        there.read(2)


def test_of_two_jobs_one_wins_and_the_other_leaves_nothing(made: Made) -> None:
    one, other = made(), made()
    newest, begun = add(one), list[Begun]()
    with pytest.raises(ClientError, match="another job has written generation 2"):
        attempt(one, newest, lambda mine: (begun.append(mine), add(other)))
    assert begun[0].state == "lost"
    winner = made().newest()
    assert winner
    assert winner.generation == 2
    assert names(one) == {newest.folder, winner.folder} != {newest.folder, begun[0].folder}


def test_a_job_that_fails_leaves_nothing(made: Made) -> None:
    there = made()

    def interrupt(begun: Begun) -> None:
        write(there, begun, "_temporary/0/part-1.parquet")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(there, None, interrupt)
    assert not names(there)
    assert there.newest() is None


def test_the_answer_to_the_create_may_be_lost(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    there = made(pause=lambda seconds: None)
    create = there.try_create
    left = ["lost"]

    def losing(name: str, data: bytes) -> bool:
        found = create(name, data)
        if left and name.endswith("1.json"):
            raise OSError(left.pop())
        return found

    monkeypatch.setattr(there, "try_create", losing)
    generation = add(there)
    assert made().newest() == generation
    assert not left


def test_a_folder_stays_where_nobody_knows_whether_it_counts(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    there, begun = made(pause=lambda seconds: None), list[Begun]()

    def fail(name: str, data: bytes) -> bool:
        raise OSError("gone")

    def cut_off(mine: Begun) -> None:
        begun.append(mine)
        monkeypatch.setattr(there, "try_create", fail)

    with pytest.raises(ClientError, match=r"it is unknown whether .* because the store does not answer: gone"):
        attempt(there, None, cut_off)
    assert begun[0].state == "asked"
    assert names(there) == {begun[0].folder}


def test_a_running_job_keeps_its_folder_however_long_it_takes(made: Made) -> None:
    slow, other = made(), made()
    newest = add(other)
    with slow.begin(newest) as begun:
        write(slow, begun)
        if slow.place.local:  # and whatever the clock says
            for path in (f"{root(slow)}/{begun.folder}/part-0.parquet", f"{root(slow)}/{begun.folder}"):
                os.utime(path, (0, 0))
        assert other.clean(newest, 0) == []
        slow.commit(begun, record(begun))
    assert made().newest() == record(begun)


def test_what_was_left_behind_goes_with_the_number_after_its_time(made: Made) -> None:
    there = made()
    dead = Begun(1, "a" * 32, "")
    write(there, dead)
    newest = add(there)
    assert there.clean(newest, 3600) == []
    assert names(there) == {dead.folder, newest.folder}
    assert there.clean(newest, 0) == [dead.folder]
    assert names(there) == {newest.folder}


def test_what_is_superseded_goes_after_its_time(made: Made) -> None:
    there = made()
    one, two = add(there), add(there)
    assert there.clean(two, 3600) == []
    assert there.read(1) == one
    assert set(there.clean(two, 0)) == {"_generations/1.json", one.folder}
    assert there.numbers() == [2]
    assert names(there) == {two.folder}


def test_two_may_clean_at_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another job removes while it is looked at costs nothing; nor does a folder that cannot be looked at."""
    there, other = made(), made()
    one, two = add(there), add(there)
    read = there.read

    def overtaken(number: int) -> Generation:
        other.clean(two, 0)
        return read(number)

    monkeypatch.setattr(there, "read", overtaken)
    assert there.clean(two, 3600) == []
    assert names(there) == {two.folder} != {one.folder}


def test_folders_that_the_newest_generation_names_stay(made: Made) -> None:
    there = made()
    one = add(there)
    with there.begin(one) as begun:
        write(there, begun)
        two = record(begun, *one.folders)
        there.commit(begun, two)
    assert there.clean(two, 0) == ["_generations/1.json"]
    assert names(there) == {one.folder, two.folder}


def test_a_number_that_was_forgotten_is_not_won_again(made: Made) -> None:
    """A job that was paused between its folder and its record, for longer than superseded ones are kept."""
    paused, other, begun = made(), made(), list[Begun]()

    def two_others(mine: Begun) -> None:
        begun.append(mine)
        add(other)
        other.clean(add(other), 0)
        assert other.numbers() == [2]

    with pytest.raises(ClientError, match="already has generation 2"):
        attempt(paused, None, two_others)
    assert begun[0].state == "lost"
    newest = made().newest()
    assert newest
    assert other.numbers() == [2]
    assert names(other) == {newest.folder}


def test_a_job_wins_though_the_next_one_is_there_already(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    there, other = made(), made()
    create = there.try_create

    def overtaken(name: str, data: bytes) -> bool:
        found = create(name, data)
        if name.endswith("/1.json"):
            add(other)
        return found

    monkeypatch.setattr(there, "try_create", overtaken)
    with there.begin(None) as begun:
        write(there, begun)
        there.commit(begun, record(begun))
    assert begun.state == "won"
    assert other.numbers() == [1, 2]


@pytest.mark.service
@pytest.mark.long
def test_a_store_that_ignores_the_condition_is_found(moto: S3Service, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Generations(Place.parse(f"s3a://{moto.place()}/out"), storage_of(moto))
    pipe = there.files.pipe_file
    monkeypatch.setattr(there.files, "pipe_file", lambda name, data, mode: pipe(name, data))
    with pytest.raises(ClientError, match="ignores If-None-Match"), there.begin(None):
        pass
    assert not there.files.find(root(there))


@pytest.mark.service
@pytest.mark.long
def test_a_missing_bucket_is_named(moto: S3Service) -> None:
    with pytest.raises(ClientError, match="the bucket nobodys"):
        Generations(Place.parse("s3a://nobodys/out"), storage_of(moto))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    there = Generations(Place.parse(str(tmp_path / "file" / "out")))
    assert there.newest() is None
    with pytest.raises(ClientError, match=r"cannot write to .*: Not a directory"), there.begin(None):
        pass


def test_records_that_are_none(tmp_path: Path) -> None:
    there = Generations(Place.parse(str(tmp_path)))
    generation = add(there)
    path = tmp_path / "_generations" / "1.json"
    text = path.read_text()
    path.write_text(text.replace('"rows":1', f'"rows":1,"form":{FORM + 1}'))
    with pytest.raises(
        ClientError, match=f"has the format {FORM + 1}, but this version of seaweedq reads only format {FORM}"
    ):
        there.newest()
    path.write_text(text[:-5])
    with pytest.raises(ClientError, match=r"1.json is not the record of a generation"):
        there.newest()
    path.write_text(text)
    assert there.newest() == generation


def test_reading_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="has no generation yet"):
        read_generation(None, str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="has no generation 3; it has none yet"):
        read_generation(None, str(tmp_path), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "url", "spark"),
    [
        ("/a/b c", "/a/b c", "file:///a/b c"),
        ("file:///a/b/", "/a/b", "file:///a/b"),
        ("/a/./b/../c", "/a/c", "file:///a/c"),
        ("s3://bucket/a/b/", "s3://bucket/a/b", "s3a://bucket/a/b"),
        ("s3a://bucket/a", "s3://bucket/a", "s3a://bucket/a"),
    ],
)
def test_places(given: str, url: str, spark: str) -> None:
    assert Place.parse(given) == Place(given, url, spark)


@pytest.mark.parametrize(
    "given", ["", "s3://bucket", "s3://bucket/", "s3:///a", "hdfs://a/b", "gs://a/b", "/a/*", "a[b]", "s3:/a"]
)
def test_places_that_are_none(given: str) -> None:
    with pytest.raises(ValueError, match="the folder for generations must"):
        Place.parse(given)


@pytest.mark.parametrize(
    ("given", "folder", "refused"),
    [
        ("/srv/store/topics/t", "file:///srv/store/topics/t", True),
        ("/srv/store", "file:///srv/store/topics/t", True),
        ("/srv/store/topics/../out", "file:///srv/store/topics/t", True),
        ("/srv/store2", "file:///srv/store/topics/t", False),
        ("/srv", "file:///srv/store/topics/t", False),
        ("s3a://b/prod/topics/t/x", "s3://b/prod/topics/t", True),
        ("s3a://b/prod", "s3://b/prod/topics/t", True),
        ("s3a://b/production", "s3://b/prod/topics/t", False),
        ("s3a://b/x", "s3://b/topics/t", True),
        ("/b/x", "s3://b/topics/t", False),
    ],
)
def test_nothing_goes_into_the_store(given: str, folder: str, refused: bool) -> None:
    if refused:
        with pytest.raises(ValueError, match="is inside the brokers' store"):
            check_outside(Place.parse(given), folder, "t")
    else:
        check_outside(Place.parse(given), folder, "t")


def test_a_link_into_the_store_is_seen(tmp_path: Path) -> None:
    (tmp_path / "store" / "topics").mkdir(parents=True)
    os.symlink(tmp_path / "store", tmp_path / "link")
    with pytest.raises(ValueError, match="is inside the brokers' store"):
        check_outside(Place.parse(str(tmp_path / "link" / "out")), f"file://{tmp_path}/store/topics/t", "t")


def test_superseded() -> None:
    made_s = {3: 10.0, 4: 20.0, 7: 30.0, 8: 40.0}
    assert superseded(made_s, 40, 0) == [3, 4, 7]
    assert superseded(made_s, 40, 10) == [3, 4]
    assert superseded(made_s, 40, 11) == [3]
    assert superseded(made_s, 40, 3600) == []
    assert superseded({1: 5.0}, 9, 0) == []


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generations")


_runs = iter(range(10**9))


@settings(max_examples=examples(80))
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["step", "step", "step", "kill", "clean"])), max_size=40),
    st.booleans(),
)
def test_of_three_jobs_in_any_order_one_wins_each_number(
    scratch: Path, steps: list[tuple[int, str]], grows: bool
) -> None:
    place = Place.parse(str(scratch / str(next(_runs))))
    jobs: dict[int, Iterator[None]] = {}
    won: dict[int, list[Generation]] = {}

    def job() -> Iterator[None]:
        """One job, step by step; `grows`: as export does."""
        there = Generations(place)
        newest = there.newest()
        yield
        try:
            with there.begin(newest) as begun:
                write(there, begun)
                yield
                generation = record(begun, *(newest.folders if newest and grows else ()))
                there.commit(begun, generation)
                won.setdefault(begun.number, []).append(generation)
        except ClientError:
            return
        except GeneratorExit:  # killed: nothing is cleaned up
            write(there, begun)
            raise
        yield
        there.clean(generation, 0)

    for which, what in steps:
        if what == "kill" and which in jobs:
            jobs.pop(which).close()
        elif what == "clean":
            there = Generations(place)
            if newest := there.newest():
                there.clean(newest, 0)
        elif next(jobs.setdefault(which, job()), "over") == "over":
            del jobs[which]
        there = Generations(place)
        newest = there.newest()
        assert all(len(each) == 1 for each in won.values()), "two jobs have won a number"
        assert (newest.generation if newest else 0) == max(won, default=0)
        if newest:
            assert [newest] == won[newest.generation]
            assert {*newest.folders} <= names(there), "a folder that counts has gone"
            if grows:
                assert [*newest.folders] == [won[n][0].folder for n in sorted(won)]
    for one in jobs.values():
        one.close()
