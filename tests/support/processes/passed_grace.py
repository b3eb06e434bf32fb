"""The grace of a broker's retention as passed, between two of its lives."""

import msgspec

from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.sqlite import EmbeddedCoordination
from tests.support.processes.broker_process import BrokerProcess


async def let_the_grace_pass(broker: BrokerProcess, forgotten: bool = False) -> None:
    """As if the starts of `t` had been raised a day ago; `forgotten`: and the next round had deleted the files."""
    coordination = EmbeddedCoordination(broker.data_dir / "coordination.db", SystemClock())
    for entry in (await coordination.range(keys.STARTS.prefix("t"))).entries:
        held = keys.STARTS.require(entry)
        raised = tuple((sequence, us - 86_400 * 1_000_000) for sequence, us in held.record.raised if not forgotten)
        record = msgspec.structs.replace(held.record, raised=raised)
        await coordination.commit([], [Put(entry.key, keys.STARTS.encode(held.with_record(record)))])
    await coordination.close()
