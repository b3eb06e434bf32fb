"""The settings of the memory budget, and of when tails become files."""

from pydantic import Field, ValidationInfo, field_validator

from seaweedq.settings.group import Group
from seaweedq.settings.sizes import KIB, MIB


class MemorySettings(Group):
    """The settings of the memory budget, and of when tails become files."""

    memory_budget_bytes: int = Field(
        512 * MIB,
        ge=64 * MIB,
        description="Memory for tails, requests in flight and recoveries, at least twice max_request_bytes. Requests "
        "that are still coming hold at most a quarter of it, recoveries another. Above half of it tails are flushed "
        "early; above all of it publishes get 503.",
    )

    flush_max_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=64 * MIB,
        description="A tail that reaches this size becomes a Parquet file. Larger files scan faster and hold more "
        "memory.",
    )
    flush_max_age_s: float = Field(
        300,
        ge=1,
        le=86_400,
        description="A tail that reaches this age becomes a file, even without new messages. A shorter age makes "
        "tables fresher and files smaller.",
    )
    flush_min_bytes: int = Field(
        MIB,
        ge=0,
        le=64 * MIB,
        description="Tails smaller than this may wait 15 minutes if the topic leaves `flush.max_age_s` at the default.",
    )

    @field_validator("memory_budget_bytes")
    @classmethod
    def holds_two_requests(cls, budget: int, info: ValidationInfo) -> int:
        """Refuses a budget of which one request may hold more than half."""
        largest = info.data.get("max_request_bytes", 0)
        if 2 * largest > budget:
            raise ValueError(f"it must be at least twice max_request_bytes={largest}")
        return budget
