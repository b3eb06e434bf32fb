"""The bounds of numbers and names in messages between brokers: a field decoded as one of these types is within them.

A broker trusts every broker that has the secret, but refuses values that would break it: a number that no column
holds, a name that cannot be part of a key.
"""

from typing import Annotated

from msgspec import Meta

from seaweedq.coordination.keys import ID_BOUND
from seaweedq.segments.names import NAME

MAX = 2**63 - 1
TopicName = Annotated[str, Meta(pattern=rf"\A{NAME}\Z")]
ProducerName = Annotated[
    str, Meta(pattern=rf"\A~?{NAME}(~{NAME})?\Z")
]  # the second one is of a principal, the first that principal's uid
Id = Annotated[int, Meta(ge=0, lt=ID_BOUND)]
Count = Annotated[int, Meta(ge=0, le=MAX)]
Time = Annotated[int, Meta(ge=-MAX, le=MAX)]
Part = Annotated[float, Meta(ge=0, le=1e18)]  # of a limit
Seconds = Annotated[float, Meta(ge=0, le=3600)]
