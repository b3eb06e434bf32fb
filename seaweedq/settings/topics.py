"""The settings of topics: how they come, and how many there may be."""

from pydantic import Field

from seaweedq.settings.group import Group


class TopicSettings(Group):
    """The settings of topics: how they come, and how many there may be."""

    auto_create_topics: bool = Field(
        True,
        description="Publishing or uploading to an unknown topic creates it with the defaults. Handy on a laptop, but "
        "a misspelt name creates a topic.",
    )
    max_topics: int = Field(
        10_000, ge=1, le=1_000_000, description="Maximum number of topics of the cluster; more get 429."
    )
    max_segments: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of segments of the cluster, with those that are sealed and not removed yet; more "
        "get 429, and segments no longer split. Each broker holds the records of all of them.",
    )
