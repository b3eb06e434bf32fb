"""An S3 store for the contract of creates over a server that loses answers."""

from seaweedq.errors import StoreUnavailable
from seaweedq.storage.interface import Data
from seaweedq.storage.s3 import S3Store
from tests.support.processes.seaweedfs_front import LOST_IN_A_ROW


class Insistent(S3Store):
    """Creates as chains and journals do: after an unknown outcome it puts the same bytes again, and compares."""

    async def create(self, name: str, data: Data) -> bool:
        for last in range(LOST_IN_A_ROW + 1):
            try:
                return await super().create(name, data) or (last > 0 and await self.read(name) == bytes(data))
            except StoreUnavailable:
                if last == LOST_IN_A_ROW:
                    raise
        raise AssertionError("unreachable")
