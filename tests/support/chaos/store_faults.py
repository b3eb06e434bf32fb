"""What can be done to objects that the store has acknowledged: they are away for a while, or 404 now and then."""

from collections.abc import Sequence
from random import Random

from tests.support.chaos.cluster import PREFIX, Cluster, waited
from tests.support.chaos.fault import Begun
from tests.support.chaos.process_faults import any_owner, kill
from tests.support.chaos.store_server import client

# The newest slots were under way when the newest one was made, which does not say what became of them.
UNSURE = 6
ATTEMPTS = 10  # of what the fault itself does: servers lose answers, too


def lost_slot(cluster: Cluster, rng: Random) -> Begun | None:
    """An owner is killed, and an object of its journal is away until the fault is over: whoever recovers it must say
    so, and guess nothing."""
    found = any_owner(cluster, rng)
    if not found:
        return None
    store, bucket, folder = client(cluster.s3.service.endpoint, ATTEMPTS), cluster.s3.bucket, f"{PREFIX}/_journals/"
    broker = found[0].id
    begun = kill(cluster, found)
    listed = store.list_objects_v2(Bucket=bucket, Prefix=f"{folder}{broker}/").get("Contents", [])
    name = victim([each["Key"] for each in listed], rng)
    if name is None:
        return begun
    content = store.get_object(Bucket=bucket, Key=name)["Body"].read()
    store.delete_object(Bucket=bucket, Key=name)
    waited(lambda: False, 2 * cluster.lease_s)

    def undo() -> None:
        store.put_object(Bucket=bucket, Key=name, Body=content)
        begun.undo()

    return Begun(undo, f"{begun.hit}, {name.rsplit('/', 1)[1]} of {len(listed)}", begun.orphans)


def victim(names: Sequence[str], rng: Random) -> str | None:
    """The slot that is lost: any that the newest one knows to be acknowledged. Pure."""
    slots = sorted(names)[:-UNSURE]
    return rng.choice(slots) if slots else None
