"""Protections of backups: without a secret, in the data folder, and of the secret `one`."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import count

from seaweedq.coordination.backup import Sealer, SealKeys


def nonces() -> Callable[[], str]:
    numbers: Iterator[int] = count(1)
    return lambda: f"{next(numbers):032x}"


def sealer(*secrets: str, in_data_folder: bool = False) -> Sealer:
    """One whose keys are of these secrets."""

    def keys(secret: str) -> SealKeys:
        return SealKeys.from_root(lambda label: hashlib.sha256(label + secret.encode()).digest())

    return Sealer(nonces(), tuple(map(keys, secrets)), in_data_folder)


BARE, OWN_FOLDER, SEALED = sealer(), sealer(in_data_folder=True), sealer("one")
