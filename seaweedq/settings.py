"""One frozen settings object. The command line, SEAWEEDQ_* variables, TOML and docs/settings.md all come from it.

Units are in the names: `_s` seconds, `_bytes` bytes. Each field says what it trades.
"""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

KIB, MIB = 1024, 1024 * 1024


def redacted(value: Any) -> str:
    """A value as it may be shown: what could be a user and a password in a URL is left out."""
    return re.sub("://.*@", "://***@", repr(value), flags=re.DOTALL)


class Settings(BaseSettings):
    """All settings of a broker. Precedence: command line, environment, TOML file, default."""

    model_config = SettingsConfigDict(env_prefix="SEAWEEDQ_", frozen=True, extra="forbid", hide_input_in_errors=True)

    data_dir: Path = Field(
        Path("./seaweedq-data"), description="Folder for the journal, coordination and, by default, the store."
    )
    store: str = Field(
        "",
        description="Where messages are stored: file:///path or s3://bucket/prefix. Empty: the folder `store` in the "
        "data folder.",
    )
    s3_endpoints: str = Field(
        "",
        pattern=r"^(\s*https?://[^\s,]+\s*,?)*$",
        description="URLs of the S3-compatible store, separated by commas; all must serve the same data. Empty: what "
        "AWS_ENDPOINT_URL_S3 or the region says. Credentials and region come from AWS's own variables and files.",
    )
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        "auto",
        description="How buckets are named to the store: in the path or in the host. `auto` is boto's choice.",
    )
    coordination: str = Field(
        "embedded",
        pattern=r"^(embedded|etcd://[^/,\s]+(,[^/,\s]+)*)$",
        description="Who says who owns what. `embedded` is a SQLite file in the data folder, for one machine; "
        "`etcd://host:port,...` is for clusters.",
    )
    etcd_prefix: str = Field(
        "seaweedq/", description="What all keys in etcd begin with, so that several clusters can share one etcd."
    )
    etcd_user: str = Field("", description="User name for etcd. Empty: no authentication.")
    etcd_password: str = Field(
        "", repr=False, description="Password for etcd. On the command line `ps` shows it: use the environment."
    )
    etcd_ca_file: str = Field("", description="Certificate authority of etcd, PEM. Not empty: TLS is used.")
    etcd_cert_file: str = Field("", description="This broker's certificate for etcd, PEM, for mutual TLS.")
    etcd_key_file: str = Field("", description="The key of that certificate, PEM.")
    journal: Literal["auto", "file", "object"] = Field(
        "auto",
        description="Where messages become durable first: in files of the data folder, or as objects of the store, "
        "which survive the loss of the machine. `auto`: object with etcd, else file.",
    )
    brokers: int = Field(
        1,
        ge=1,
        le=64,
        description="Broker processes on this machine, on ports that follow one another. They share the store and "
        "coordination, and take over from one another.",
    )
    member: int = Field(
        0, ge=0, le=64, description="Which of the `brokers` this process is. Not for you: their parent sets it."
    )
    cluster_secret: str = Field(
        "",
        repr=False,
        description="What brokers show each other before they talk. Needed with etcd; drawn and kept in the data "
        "folder otherwise. Whoever has it can do what a broker can. On the command line `ps` shows it: use the "
        "environment.",
    )
    advertise_url: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="Where other brokers and clients reach this one. Empty: the address it listens on.",
    )
    zone: str = Field("", description="Availability zone; segments are spread over zones.")
    name: str = Field(
        "broker",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$",
        description="This broker's name; its id is the name and a number drawn at each start.",
    )
    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. Clients are not authenticated yet: any other than a loopback address is "
        "open to whoever reaches it.",
    )
    port: int = Field(8080, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log lines that are printed."
    )

    auto_create_topics: bool = Field(
        True,
        description="Publishing or uploading to an unknown topic creates it with the defaults. Handy on a laptop; a "
        "typing error makes a topic.",
    )
    max_message_bytes: int = Field(
        MIB, ge=KIB, le=16 * MIB, description="Largest value of one message, and largest key with its headers."
    )
    max_request_bytes: int = Field(
        16 * MIB,
        ge=64 * KIB,
        le=256 * MIB,
        description="Largest request body, decoded. Each request in flight may hold this much memory.",
    )
    request_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="How long the headers of a request may take to arrive before the connection is closed, then its "
        "body before 408.",
    )
    publish_timeout_s: float = Field(
        15,
        gt=0,
        le=600,
        description="How long a publish waits for its durability, a flush or a new topic for the store, before 503.",
    )
    max_payload_bytes: int = Field(
        5 * 1024**4,
        ge=MIB,
        le=5 * 1024**4,
        description="Largest payload of an upload. A topic may lower it. More than 5 TiB no S3 takes.",
    )
    max_open_uploads: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="Uploads of one topic that were begun and not published yet; more get 429. Each may leave its "
        "bytes in the store until it has expired.",
    )
    upload_expires_s: int = Field(
        86_400,
        ge=60,
        le=7 * 86_400,
        description="How long an upload may take, and how long it can be published. Its record is kept in coordination "
        "that long.",
    )
    upload_url_s: int = Field(
        3600,
        ge=10,
        le=86_400,
        description="How long a URL to put or get a payload holds. Whoever has it needs nothing else.",
    )
    multipart_bytes: int = Field(
        1024 * MIB,
        ge=5 * MIB,
        le=5 * 1024**3,
        description="Uploads over this go to S3 in parts, which can be sent again and side by side. Of a whole put S3 "
        "itself checks the digest; what came in parts a broker reads once, to check it.",
    )
    upload_grace_s: int = Field(
        3600,
        ge=1,
        le=7 * 86_400,
        description="How long behind its expiry an upload that nobody published stays. Longer than the brokers' clocks "
        "may differ.",
    )
    import_batch_rows: int = Field(
        131_072,
        ge=1000,
        le=262_144,
        description="Rows of an uploaded file that an import publishes at a time, or as many as 16 MiB hold. Fewer "
        "take less memory and longer. An import that has begun keeps its own.",
    )
    memory_budget_bytes: int = Field(
        512 * MIB,
        ge=64 * MIB,
        description="For tails and requests in flight. At half of it tails are flushed early; "
        "over it publishes get 503.",
    )

    flush_max_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=64 * MIB,
        description="A tail of this size becomes a Parquet file. Larger files scan faster and pin more memory.",
    )
    flush_max_age_s: float = Field(
        300,
        ge=1,
        le=86_400,
        description="A tail this old becomes a file, without new messages too. Shorter makes tables fresher and "
        "files smaller.",
    )
    flush_min_bytes: int = Field(
        MIB,
        ge=0,
        le=64 * MIB,
        description="Tails below this may wait 15 minutes where a topic leaves `flush.max_age_s` to the default.",
    )
    journal_file_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        description="A journal file of this size is followed by a new one. Space comes back a file at a time.",
    )
    journal_max_unreleased_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Over it the oldest tails are flushed. More of it makes larger Parquet files and longer "
        "recoveries.",
    )
    journal_linger_s: float = Field(
        0.02,
        ge=0,
        le=1,
        description="Object journal: at least so long lies between the starts of two puts, so that more messages "
        "share one. Longer costs latency and saves requests.",
    )
    journal_linger_max_s: float = Field(
        0.25, ge=0, le=5, description="Object journal: the linger grows up to this while puts queue up."
    )
    journal_window: int = Field(4, ge=1, le=64, description="Object journal: puts under way at a time.")
    cache_bytes: int = Field(
        128 * MIB,
        ge=0,
        description="Decoded row groups kept for readers. All of them go when the memory budget is used up.",
    )

    lease_s: float = Field(
        5,
        ge=1,
        le=60,
        description="A broker that does not renew for this long is dead. Shorter fails over faster and forgives "
        "fewer pauses.",
    )
    checkpoint_s: float = Field(
        10, ge=1, le=600, description="How often cursors are copied from the journal to coordination."
    )
    shutdown_s: float = Field(
        10, ge=1, le=600, description="How long SIGTERM waits for flushes; what is left is in the journal."
    )

    @field_validator("store", "s3_endpoints", "coordination", "advertise_url")
    @classmethod
    def has_no_credentials(cls, url: str) -> str:
        """A URL's user and password would be logged, and told to others."""
        if re.search("://[^/]*@", url):
            raise ValueError("no user and no password in a URL: etcd_user and etcd_password are for them, or AWS's own")
        return url

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line first, then the environment, then the TOML file named by `toml_file`."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def store_path(self) -> str:
        """The store's URL, with the default filled in."""
        return self.store or f"file://{self.data_dir.absolute() / 'store'}"

    @property
    def journal_kind(self) -> Literal["file", "object"]:
        """The journal, with the default filled in."""
        if self.journal != "auto":
            return self.journal
        return "file" if self.coordination == "embedded" else "object"

    @property
    def home(self) -> Path:
        """The folder that is this process's own: the data folder, or its member's part of it."""
        return self.data_dir if self.brokers == 1 else self.data_dir / "members" / str(self.member)
