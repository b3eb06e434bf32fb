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


def puts_per_s(linger_s: float, put_s: float, window: int, linger_max_s: float) -> float:
    """What one broker under steady load puts: one a linger, and never more than the window lets through."""
    return 1 / min(max(linger_s, put_s / window), max(linger_max_s, put_s / window))


def monthly(
    bytes_per_s: float,
    *,
    brokers: int = 1,
    linger_s: float = 0.02,
    linger_max_s: float = 0.25,
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
    journal = brokers * puts_per_s(linger_s, put_s, window, linger_max_s)
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
    """The table of docs/costs.md, in Markdown."""
    rows = ["| load | brokers | linger | journal puts/s | journal | files | a week kept | total |"]
    rows.append("| --- " * 8 + "|")
    for megabytes, brokers in ((1, 1), (10, 2), (100, 8)):
        for linger_s in (0.02, 0.1, 0.25):
            cost = monthly(megabytes * 1e6, brokers=brokers, linger_s=linger_s)
            rows.append(
                f"| {megabytes} MB/s | {brokers} | {linger_s * 1000:.0f} ms | {cost.journal_puts_per_s:,.0f} "
                f"| ${cost.journal_usd:,.0f} | ${cost.chain_usd:,.0f} | ${cost.retained_usd:,.0f} "
                f"| ${cost.total_usd:,.0f} |"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
