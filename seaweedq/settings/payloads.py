"""The settings of uploads, of the links to payloads, and of imports."""

from pydantic import Field

from seaweedq.settings.group import Group
from seaweedq.settings.sizes import MIB


class PayloadSettings(Group):
    """The settings of uploads, of the links to payloads, and of imports."""

    max_payload_bytes: int = Field(
        5 * 1024**4,
        ge=MIB,
        le=5 * 1024**4,
        description="Largest payload of an upload. A topic may set a lower limit. No S3 accepts more than 5 TiB.",
    )
    max_open_uploads: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="Maximum number of uploads of a topic that have begun and are not published yet; more get 429. "
        "Each may occupy its bytes in the store until it expires.",
    )
    upload_expires_s: int = Field(
        86_400,
        ge=60,
        le=7 * 86_400,
        description="How long after its creation an upload can be completed and published. Coordination keeps its "
        "record that long.",
    )
    upload_url_s: int = Field(
        3600,
        ge=10,
        le=86_400,
        description="How long a signed URL to put or get a payload is valid. Its holder needs no other permission.",
    )
    multipart_bytes: int = Field(
        1024 * MIB,
        ge=5 * MIB,
        le=5 * 1024**3,
        description="Uploads larger than this go to S3 in parts, which can be retried and sent in parallel. S3 itself "
        "checks the digest of a single put; a broker reads an upload in parts once to check it.",
    )
    upload_grace_s: int = Field(
        3600,
        ge=1,
        le=7 * 86_400,
        description="How long an unpublished upload is kept after its expiry. It must be longer than the brokers' "
        "clocks may differ.",
    )
    import_batch_rows: int = Field(
        131_072,
        ge=1000,
        le=262_144,
        description="Number of rows that an import publishes at a time, or as many as fit in 16 MiB. Fewer rows need "
        "less memory and more time. An import that has begun keeps the value it began with.",
    )
