"""Protections of backups: without a secret, in the data folder, and of the secret `one`."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import count

from seaweedq.broker.admin_changes import AdminChanges
from seaweedq.broker.backups import Backups
from seaweedq.coordination.backup import Sealer, SealKeys
from seaweedq.coordination.interface import Coordination
from seaweedq.storage.generations import FIRST, Generations, generation_name
from seaweedq.storage.memory import MemoryStore


def nonces() -> Callable[[], str]:
    numbers: Iterator[int] = count(1)
    return lambda: f"{next(numbers):032x}"


def sealer(*secrets: str, in_data_folder: bool = False) -> Sealer:
    """One whose keys are of these secrets."""

    def keys(secret: str) -> SealKeys:
        return SealKeys.from_root(lambda label: hashlib.sha256(label + secret.encode()).digest())

    return Sealer(nonces(), tuple(map(keys, secrets)), in_data_folder)


BARE, OWN_FOLDER, SEALED = sealer(), sealer(in_data_folder=True), sealer("one")


def admin_changes(coordination: Coordination) -> AdminChanges:
    """Changes that go into a store of their own, in memory, of the first generation."""
    store = MemoryStore()
    store.objects[generation_name(FIRST)] = b""
    return AdminChanges(coordination, Backups(store, OWN_FOLDER, Generations(store), lambda: 1))
