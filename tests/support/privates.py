"""The private names of the package's modules that several tests read, each once.

A name that changes changes here alone. What a test needs of a whole broker is in `tests/support/brokers/inside.py`.
"""

from typing import Any


def use_clock(of: Any, clock: Any) -> None:
    """Has an object go by another clock."""
    of._clock = clock


def use_turns(of: Any, turns: Any) -> None:
    """Has a kind of file work wait for these turns."""
    of._turns = turns


def end_tasks(of: Any) -> list[Any]:
    """Has an object forget its tasks: those, which the caller ends."""
    ended = [*tasks(of)]
    tasks(of).clear()
    return ended


def use_rule(partition: Any, rule: Any) -> None:
    """Has a partitioner go by this rule of keys, None: by the one that it learns."""
    partition._rule = rule


def near_the_bound(admin: Any, most: Any) -> None:
    """Has an administration of topics take the cluster for one that may have so many."""
    quota(admin)._most = most


def forget_example(store: Any) -> None:
    """Has an S3 store sign its next link by botocore."""
    store._until_s = 0.0


def addresses(of: Any) -> Any:
    return of._addresses


def admin(of: Any) -> Any:
    return of._admin


def append_entry(of: Any) -> Any:
    return of._append_entry


def append_slice(of: Any) -> Any:
    return of._append_slice


def lease_thread(of: Any) -> Any:
    return of._background


def asked_s(of: Any) -> Any:
    return of._asked_s


def batch(of: Any) -> Any:
    return of._batch


def begin(of: Any) -> Any:
    return of._begin


def bucket(of: Any) -> Any:
    return of._bucket


def by_address(of: Any) -> Any:
    return of._by_address


def coming(of: Any) -> Any:
    return of._coming


def coordination(of: Any) -> Any:
    return of._coordination


def create(of: Any) -> Any:
    return of._create


def cursors(of: Any) -> Any:
    return of._cursors


def dismiss(of: Any) -> Any:
    return of._dismiss


def endpoint(of: Any) -> Any:
    return of._endpoint


def engine(of: Any) -> Any:
    return of._engine


def example(of: Any) -> Any:
    return of._example


def files(of: Any) -> Any:
    return of._files


def finish(of: Any) -> Any:
    return of._finish


def first_s(of: Any) -> Any:
    return of._first_s


def follow(of: Any) -> Any:
    return of._follow


def free(of: Any) -> Any:
    return of._free


def held(of: Any) -> Any:
    return of._held


def http(of: Any) -> Any:
    return of._http


def keys(of: Any) -> Any:
    return of._keys


def known(of: Any) -> Any:
    return of._known


def leasing(of: Any) -> Any:
    return of._leasing


def lookups(of: Any) -> Any:
    return of._lookups


def lose(of: Any) -> Any:
    return of._lose


def message(of: Any) -> Any:
    return of._message


def open(of: Any) -> Any:
    return of._open


def openings(of: Any) -> Any:
    return of._openings


def opened(of: Any) -> Any:
    return of._opened


def owned_by(of: Any) -> Any:
    return of._owned_by


def publisher(of: Any) -> Any:
    return of._publisher


def pull(of: Any) -> Any:
    return of._pull


def pulling(of: Any) -> Any:
    return of._pulling


def quiet(of: Any) -> Any:
    return of._quiet


def quota(of: Any) -> Any:
    return of._quota


def read(of: Any) -> Any:
    return of._read


def records(of: Any) -> Any:
    return of._records


def recoveries(of: Any) -> Any:
    return of._recoveries


def regular(of: Any) -> Any:
    return of._regular


def remote(of: Any) -> Any:
    return of._remote


def renewal(of: Any) -> Any:
    return of._renewal


def replacer(of: Any) -> Any:
    return of._replacer


def reported(of: Any) -> Any:
    return of._reported


def reserved(of: Any) -> Any:
    return of._reserved


def run(of: Any) -> Any:
    return of._run


def runner(of: Any) -> Any:
    return of._runner


def s3(of: Any) -> Any:
    return of._s3


def sealer(of: Any) -> Any:
    return of._sealer


def send_all(of: Any) -> Any:
    return of._send_all


def senders(of: Any) -> Any:
    return of._senders


def sessions(of: Any) -> Any:
    return of._sessions


def shown(of: Any) -> Any:
    return of._shown


def signed(of: Any) -> Any:
    return of._signed


def tasks(of: Any) -> Any:
    return of._tasks


def token(of: Any) -> Any:
    return of._token


def too_slow(of: Any) -> Any:
    return of._too_slow


def transport(of: Any) -> Any:
    return of._transport


def unreadable(of: Any) -> Any:
    return of._unreadable


def urls(of: Any) -> Any:
    return of._urls


def waiters(of: Any) -> Any:
    return of._waiters


def watch(of: Any) -> Any:
    return of._watch
