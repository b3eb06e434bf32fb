"""What an object journal costs a month on Amazon S3: a pure function of load and settings, and its table.

List prices of S3 Standard in us-east-1 (N. Virginia), as of mid-2025, first 50 TB, before any discount; transfer within
the region is free. Look them up before you rely on them: https://aws.amazon.com/s3/pricing/
"""

from dataclasses import dataclass

PUT_USD = 0.005 / 1000
STORED_USD_PER_GB_MONTH = 0.023
MONTH_S = 730 * 3600
ENTRY_BYTES = 64e6


@dataclass(frozen=True)
class Cost:
    """USD a month for each part, and the requests a second that they are made of."""

    journal_puts_per_s: float
    chain_puts_per_s: float
    journal_usd: float
    chain_usd: float
    retained_usd: float

    @property
    def total_usd(self) -> float:
        """All of it."""
        return self.journal_usd + self.chain_usd + self.retained_usd


def puts_per_s(budget_per_s: float, put_s: float, window: int) -> float:
    """Returns the puts a second of one broker under steady load: its budget (0: none), at most what its window lets
    through."""
    return min(budget_per_s or window / put_s, window / put_s)


def monthly(
    bytes_per_s: float,
    *,
    brokers: int = 1,
    budget_per_s: float = 8,
    put_s: float = 0.05,
    window: int = 4,
    open_segments: int = 4,
    flush_s: float = 300,
    parquet_ratio: float = 0.5,
    unreleased_bytes: float = 256e6,
    retention_days: float = 7,
) -> Cost:
    """A month of steady load, spread over brokers; each message is journalled once and stored once as Parquet.

    Deletions are free. A segment's tail becomes a file when it is full or `flush_s` old, whichever comes first.
    """
    journal = brokers * puts_per_s(budget_per_s, put_s, window)
    chain = max(open_segments / flush_s, bytes_per_s / ENTRY_BYTES)
    held_gb = min(unreleased_bytes * brokers, bytes_per_s * flush_s) / 1e9
    kept_gb = bytes_per_s * parquet_ratio * retention_days * 86_400 / 1e9
    return Cost(
        journal_puts_per_s=journal,
        chain_puts_per_s=chain,
        journal_usd=journal * MONTH_S * PUT_USD + held_gb * STORED_USD_PER_GB_MONTH,
        chain_usd=chain * MONTH_S * PUT_USD,
        retained_usd=kept_gb * STORED_USD_PER_GB_MONTH,
    )


def table() -> str:
    """The table of docs/operate/costs.md, in Markdown."""
    rows = ["| load | brokers | `journal_puts_per_s` | journal puts/s | journal | files | a week kept | total |"]
    rows.append("| --- " * 8 + "|")
    for megabytes, brokers in ((1, 3), (10, 3), (100, 8)):
        for budget_per_s in (8, 0):
            cost = monthly(megabytes * 1e6, brokers=brokers, budget_per_s=budget_per_s)
            rows.append(
                f"| {megabytes} MB/s | {brokers} | {budget_per_s} | {cost.journal_puts_per_s:,.0f} "
                f"| ${cost.journal_usd:,.0f} | ${cost.chain_usd:,.0f} | ${cost.retained_usd:,.0f} "
                f"| ${cost.total_usd:,.0f} |"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
