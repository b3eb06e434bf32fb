"""The settings of a broker's life: its lease, its intervals, its stop."""

from pydantic import Field

from seaweedq.settings.group import Group


class LifeSettings(Group):
    """The settings of a broker's life: its lease, its intervals, its stop."""

    lease_s: float = Field(
        5,
        ge=1,
        le=60,
        description="A broker that does not renew its lease for this long counts as dead. A shorter lease fails over "
        "faster and tolerates only shorter pauses.",
    )
    checkpoint_s: float = Field(
        10, ge=1, le=600, description="Interval at which cursors are copied from the journal to coordination."
    )
    retention_grace_s: float = Field(
        3_600,
        ge=60,
        le=604_800,
        description="How long files stay after retention has taken their messages: readers of files that began before "
        "end in it. A topic can have its own.",
    )
    metrics_subscriptions: int = Field(
        100,
        ge=0,
        le=100_000,
        description="Number of subscriptions whose lag /metrics shows, of those that this broker dispatches: the ones "
        "with the most unacked messages.",
    )
    shutdown_delay_s: float = Field(
        0,
        ge=0,
        le=600,
        description="How long a broker serves on after SIGTERM, with /readyz at 503, before its stop begins. Behind a "
        "load balancer: longer than it takes to notice, so that nothing is sent to a closed port. A second signal ends "
        "the wait.",
    )
    shutdown_s: float = Field(
        10, ge=1, le=600, description="How long a stop (SIGTERM) waits for flushes; the journal keeps the rest."
    )
