"""The settings of journals: their files or puts; and of the readers' cache."""

from pydantic import Field, field_validator

from seaweedq.settings.group import Group
from seaweedq.settings.sizes import KIB, MIB


class JournalSettings(Group):
    """The settings of journals: their files or puts; and of the readers' cache."""

    journal_file_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        description="A new journal file begins when one reaches this size. Disk space is freed a file at a time.",
    )
    journal_max_unreleased_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="When the journal holds more than this, the oldest tails are flushed. A larger value makes larger "
        "Parquet files and longer recoveries.",
    )
    journal_puts_per_s: float | None = Field(
        None,
        ge=0,
        le=10_000,
        description="Object journal: puts of a broker a second in the long run, at least 0.5; 1,000 more may come at "
        "once after a rest. Fewer cost less and publishes wait longer for one; 0: no bound. Empty: 8 where the store "
        "charges for puts (S3 without an endpoint, or one of a provider that does), else 0.",
    )
    journal_linger_s: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Object journal: minimum time between the starts of two puts, in place of a budget of puts. Empty: "
        "none, or 0.02 where journal_linger_max_s is set.",
    )
    journal_linger_max_s: float | None = Field(
        None,
        ge=0,
        le=5,
        description="Object journal: the linger grows up to this time while puts queue up. Empty: 0.25 where "
        "journal_linger_s is set.",
    )
    put_usd_per_1000: float = Field(
        0,
        ge=0,
        le=100,
        description="Price of 1,000 puts to the store. If set, the metric seaweedq_journal_usd_per_month tells "
        "what the journal's puts cost at their present rate.",
    )
    journal_window: int = Field(4, ge=1, le=64, description="Object journal: maximum number of concurrent puts.")
    cache_bytes: int = Field(
        128 * MIB,
        ge=0,
        description="Size of the cache of decoded row groups for readers. The cache is emptied when the memory budget "
        "is used up.",
    )

    @field_validator("journal_puts_per_s")
    @classmethod
    def lets_publishes_end(cls, per_s: float | None) -> float | None:
        """Refuses a budget at which a commit waits longer than publishes do, which would all be 503."""
        if per_s is not None and 0 < per_s < 0.5:
            raise ValueError("it must be 0 (no bound) or at least 0.5: a commit waits for up to two puts")
        return per_s
