"""What a broker still wants of others when it has ended is unavailable, and no error of the library's."""

import pytest

from seaweedq.broker.rpc.client import Peers
from seaweedq.errors import Unavailable
from tests.support.processes.broker_process import free_port


async def test_after_the_end_others_are_unavailable() -> None:
    peers, url = Peers("secret"), f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match="does not answer"):
        await peers.call(url, "status", None, bool, 1)
    await peers.close()
    with pytest.raises(Unavailable, match="stopping"):
        await peers.call(url, "status", None, bool, 1)
