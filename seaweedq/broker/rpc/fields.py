"""What numbers and names can be in what brokers send one another: what is decoded as one of these is within bounds.

A broker trusts another as far as it has the secret, and no further than what would stop it: a number that no column
holds, a name that is no part of a key.
"""

from typing import Annotated

from msgspec import Meta

from seaweedq.coordination.keys import ID_BOUND

MAX = 2**63 - 1
TopicName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,126}\Z")]
ProducerName = Annotated[str, Meta(pattern=r"\A~?[A-Za-z0-9][A-Za-z0-9._-]{0,126}\Z")]
Id = Annotated[int, Meta(ge=0, lt=ID_BOUND)]
Count = Annotated[int, Meta(ge=0, le=MAX)]
Time = Annotated[int, Meta(ge=-MAX, le=MAX)]
Seconds = Annotated[float, Meta(ge=0, le=3600)]
