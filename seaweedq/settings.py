"""One frozen settings object, from which the command line, SEAWEEDQ_* variables, TOML and docs/reference/settings.md
derive. `seaweedq.cli.server.given_settings` reads the settings.

Names contain units: `_s` for seconds, `_bytes` for bytes. Each description states the setting's trade-off. Each group
of fields is a class, and a heading in docs/reference/settings.md."""

import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

KIB, MIB = 1024, 1024 * 1024


class Group(BaseModel, defer_build=True):
    """The settings of one subject. Abstract: never instantiated, so pydantic need not build a validator."""


class StoreSettings(Group):
    """The settings of the data folder and the object store."""

    data_dir: Path = Field(
        Path("./seaweedq-data"),
        description="Folder for the journal, embedded coordination and the default store.",
    )
    store: str = Field(
        "",
        description="URL of the object store: file:///path or s3://bucket/prefix. Empty: the folder `store` in the "
        "data folder.",
    )
    s3_endpoints: str = Field(
        "",
        pattern=r"^(\s*https?://[^\s,]+\s*,?)*$",
        examples=["https://s3.example.com,https://s3-2.example.com"],
        description="Comma-separated endpoint URLs of an S3-compatible store, all with the same data. Empty: "
        "AWS_ENDPOINT_URL_S3, or the region's endpoint. Credentials and region come from AWS's own "
        "variables and files.",
    )
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        "auto",
        description="Where requests name the bucket: in the path or in the host name. `auto`: boto decides.",
    )
    s3_sse: Literal["none", "AES256", "aws:kms"] = Field(
        "none",
        description="Server-side encryption of every object, including clients' uploads. `none`: the bucket's "
        "default, which is AES256 on AWS. With `aws:kms`, readers need permission to use the key.",
    )
    s3_sse_kms_key: str = Field(
        "",
        pattern=r"^[!-~]*$",
        examples=["arn:aws:kms:eu-west-1:111122223333:key/1234abcd"],
        description="ID or ARN of the key for s3_sse=aws:kms. Empty: the account's default S3 key.",
    )


class CoordinationSettings(Group):
    """The settings of the key-value store in which brokers coordinate."""

    coordination: str = Field(
        "embedded",
        pattern=r"^(embedded|etcd://[^/,\s]+(,[^/,\s]+)*)$",
        examples=["embedded", "etcd://10.0.0.1:2379,10.0.0.2:2379"],
        description="Key-value store for brokers, topics and segment owners. `embedded`: SQLite in the data folder,"
        " for one machine. `etcd://host:port,...`: for clusters.",
    )
    etcd_prefix: str = Field(
        "seaweedq/", description="Prefix of all keys in etcd. Clusters with different prefixes can share an etcd."
    )
    etcd_user: str = Field("", description="etcd user name. Empty: no authentication.")
    etcd_password: str = Field(
        "",
        repr=False,
        description="etcd password. Set it in the environment, because `ps` shows command lines.",
    )
    etcd_password_file: str = Field("", description="File that contains the etcd password. Read once, at startup.")
    etcd_ca_file: str = Field(
        "",
        description="PEM file with etcd's CA certificate; enables TLS. Required with etcd_user or etcd_cert_file, "
        "unless every etcd endpoint is on loopback.",
    )
    etcd_cert_file: str = Field("", description="PEM file with this broker's client certificate for etcd (mutual TLS).")
    etcd_key_file: str = Field("", description="PEM file with the private key for etcd_cert_file.")
    snapshot_s: float = Field(
        60,
        gt=0,
        description="Minimum interval between the snapshots of coordination that the leader writes to the store. If"
        " coordination is lost, changes that exist only there and are newer than the last snapshot are "
        "lost, too. Snapshots over 60 MB are taken less often.",
    )
    allow_plain_etcd: bool = Field(
        False,
        description="Allow auth=required with a remote etcd without TLS. Anyone who can read or modify the traffic "
        "can then grant themselves every permission.",
    )


class ClusterSettings(Group):
    """The settings of a broker in its cluster: journal, secret, name."""

    journal: Literal["auto", "file", "object", "mirrored"] = Field(
        "auto",
        description="Where messages first become durable. `file`: in the data folder. `object`: in the store, which"
        " survives the loss of the machine. `mirrored` (experimental): in the memory of this broker and other brokers,"
        " within milliseconds, and in the store seconds later; needs etcd. If all these brokers fail at once, the"
        " messages of the last journal_exposure_s are lost. `auto`: `object` with etcd, otherwise `file`.",
    )
    brokers: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of broker processes on this machine, on consecutive ports. They share store and "
        "coordination, and take over each other's segments.",
    )
    member: int = Field(
        0,
        ge=0,
        le=64,
        description="Number of this process among the `brokers`. Only the parent process sets this.",
    )
    cluster_secret: str = Field(
        "",
        repr=False,
        description="Shared secret with which brokers authenticate to each other, ideally 32 random characters. To "
        "rotate the secret, give the old and the new one, comma-separated. Required with etcd, "
        "otherwise generated in the data folder. Whoever has the secret can act as a broker. Set it in "
        "the environment, because `ps` shows command lines.",
    )
    cluster_secret_file: str = Field("", description="File that contains the cluster secret. Read once, at startup.")
    advertise_url: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        examples=["https://broker-1.example.com:8080"],
        description="URL at which clients and other brokers reach this broker. Empty: the address it listens on.",
    )
    zone: str = Field("", description="Availability zone of this broker. The balancer spreads segments across zones.")
    name: str = Field(
        "broker",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$",
        examples=["broker-1"],
        description="Name of this broker. Its ID is the name plus a number drawn at each start.",
    )


class AccessSettings(Group):
    """The settings of access: tokens, the audit, names and origins, TLS."""

    auth: Literal["auto", "none", "required"] = Field(
        "auto",
        description="Whether requests need a token. `required`: all except probes and signed payload URLs. `none`: "
        "requests without a token may do everything; a token is still checked. `auto`: `none` on "
        "loopback; with another `host` or `advertise_url` the broker refuses to start.",
    )
    admin_token_file: str = Field(
        "",
        description="File with a token of at least 32 characters that may do everything on this broker, to issue "
        "the first tokens or to regain access. Reread when it changes. Empty, with embedded "
        "coordination and auth other than `auto`: `admin-token` in the data folder, created if missing.",
    )
    audit: Literal["auto", "topic", "log", "none"] = Field(
        "auto",
        description="Where changes and denied requests are recorded. `log`: in the log. `topic`: in the log and in "
        "the topic `seaweedq.audit`. `auto`: `topic` with auth=required, otherwise `none`.",
    )
    allowed_hosts: str = Field(
        "",
        pattern=r"^(\s*(\*|(\*\.)?[A-Za-z0-9._-]+)\s*(,|$))*$",
        examples=["queue.example.com,*.example.com"],
        description="Additional host names of this broker, comma-separated: `queue.example.com`, `*.example.com`, "
        "or `*`. IP addresses, `localhost` and the host of advertise_url are always allowed; other "
        "hosts get 421, which prevents DNS rebinding. Web pages from allowed names may send requests, "
        "except names that only `*` allows.",
    )
    cors_origins: str = Field(
        "",
        pattern=r"^(\s*https?://[A-Za-z0-9._:\[\]-]+/?\s*(,|$))*$",
        examples=["https://app.example.com"],
        description="Other origins whose web pages may call this broker, comma-separated: "
        "`https://app.example.com`. Their requests need a token like all others; browsers never send "
        "stored credentials.",
    )
    tls_cert_file: str = Field(
        "",
        description="PEM file with this broker's certificate and its intermediates. `port` then accepts only TLS "
        "1.2 or newer. Renewed files are loaded within 10 s without dropping connections; if "
        "certificate and key do not match, the broker keeps the old pair and logs a warning.",
    )
    tls_key_file: str = Field("", description="PEM file with the unencrypted private key for tls_cert_file.")
    tls_ca_file: str = Field(
        "",
        description="PEM file with the CA of other brokers' https certificates. Empty: the system's CAs. Read once,"
        " at startup.",
    )


class AddressSettings(Group):
    """The settings of a broker's addresses and of its log."""

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. For a non-loopback address, `auth` must be `required` or `none`.",
    )
    port: int = Field(8080, ge=0, le=65_535, description="Port to listen on. 0: any free port.")
    peer_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="Separate port for other brokers, with mutual TLS 1.3. Its keys derive from cluster_secret, so "
        "no certificates are needed. 0: brokers use `port`.",
    )
    advertise_peer_url: str = Field(
        "",
        pattern=r"^(https://[^\s/]+)?$",
        examples=["https://broker-1.example.com:8443"],
        description="URL at which other brokers reach `peer_port`. Empty: the host of advertise_url, or the listen "
        "address.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest severity of log lines to print."
    )


class TopicSettings(Group):
    """The settings of topics: how they are created, and how many there may be."""

    auto_create_topics: bool = Field(
        True,
        description="Create unknown topics on publish or upload. Convenient on a laptop, but a misspelled name "
        "creates a topic.",
    )
    max_topics: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of topics in the cluster. Creating more gets 429.",
    )
    max_segments: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of segments in the cluster, including sealed segments. Above it, new topics get"
        " 429, and segments no longer split. Every broker keeps all segment records in memory.",
    )


class RequestSettings(Group):
    """The settings that limit requests and connections in size, number and time."""

    max_message_bytes: int = Field(
        MIB, ge=KIB, le=16 * MIB, description="Maximum size of a message's value, and of its key and headers together."
    )
    max_request_bytes: int = Field(
        16 * MIB,
        ge=64 * KIB,
        le=256 * MIB,
        description="Maximum size of a decompressed request body. Each request may use this much memory.",
    )
    request_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="Timeout for receiving a request body. Slower requests get 408.",
    )
    head_timeout_s: float = Field(
        10,
        gt=0,
        le=3600,
        description="Timeout for a connection's first request, and for each request line and headers. Slower "
        "connections are closed.",
    )
    max_connections: int = Field(
        0,
        ge=0,
        description="Maximum number of connections; above it, the longest idle connection is closed. Streams and "
        "long polls may use three quarters. Probes and other brokers have a few extra connections. 0: "
        "nine tenths of the open-file limit minus 256, at most 16,384.",
    )
    max_connections_per_address: int = Field(
        0,
        ge=0,
        description="Maximum number of connections per client address (per /64 for IPv6), except loopback; above "
        "it, the oldest idle connection is closed. Behind `trusted_proxies`, requests in flight count "
        "instead. 0: a quarter of max_connections.",
    )
    trusted_proxies: str = Field(
        "",
        pattern=r"^[0-9A-Fa-f.:/,\s]*$",
        examples=["10.0.0.0/8,192.168.1.1"],
        description="Addresses and networks of reverse proxies, comma-separated: `10.0.0.0/8`. The client address "
        "is then the last address in X-Forwarded-For that is not a trusted proxy.",
    )
    answer_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="Close connections whose client stops reading for this long. Unread responses use memory.",
    )
    publish_timeout_s: float = Field(
        15,
        gt=0,
        le=600,
        description="Timeout for published messages to become durable, counted from the end of the request's body, "
        "and for flushes and new topics to reach the store. Later the broker answers 503.",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def has_networks(cls, text: str) -> str:
        """Refuses a value that is neither an IP address nor a network."""
        for one in text.split(","):
            if one.strip():
                ip_network(one.strip(), strict=False)
        return text


class PayloadSettings(Group):
    """The settings of uploads, signed payload URLs and imports."""

    max_payload_bytes: int = Field(
        5 * 1024**4,
        ge=MIB,
        le=5 * 1024**4,
        description="Maximum size of an uploaded payload. Topics may set a lower limit. S3 accepts at most 5 TiB.",
    )
    max_open_uploads: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="Maximum number of unpublished uploads per topic; more get 429. Each may use space in the store"
        " until it expires.",
    )
    max_write_uploads: int = Field(
        100_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of unused uploads for writes per topic; more get 429. They do not count toward "
        "max_open_uploads.",
    )
    upload_expires_s: int = Field(
        86_400,
        ge=60,
        le=7 * 86_400,
        description="Time within which an upload must be published. The upload's record stays in coordination for "
        "that time.",
    )
    upload_url_s: int = Field(
        3600,
        ge=10,
        le=86_400,
        description="Lifetime of a payload's signed URL, which anyone can use.",
    )
    multipart_bytes: int = Field(
        1024 * MIB,
        ge=5 * MIB,
        le=5 * 1024**3,
        description="Send larger uploads to S3 in parts, which can be retried and sent in parallel. To verify a "
        "multipart upload, a broker reads it once; S3 itself verifies a single put.",
    )
    upload_grace_s: int = Field(
        3600,
        ge=1,
        le=7 * 86_400,
        description="Keep an unpublished upload for this long after it expires. Must exceed the clock skew between "
        "brokers.",
    )
    import_batch_rows: int = Field(
        131_072,
        ge=1000,
        le=262_144,
        description="Maximum number of rows in an import's batch, which also has at most 16 MiB. Smaller batches "
        "need less memory and more time. A running import keeps its value.",
    )


class MemorySettings(Group):
    """The settings of the memory budget, and of when tails become files."""

    memory_budget_bytes: int = Field(
        512 * MIB,
        ge=64 * MIB,
        description="Memory budget for tails, requests and recoveries; at least twice max_request_bytes. Incoming "
        "requests may use a quarter, recoveries another. Above half, tails are flushed early; above the"
        " budget, publishes get 503.",
    )

    flush_max_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=64 * MIB,
        description="Write a tail to a Parquet file when it reaches this size. Larger files scan faster and need "
        "more memory.",
    )
    flush_max_age_s: float = Field(
        300,
        ge=1,
        le=86_400,
        description="Write a tail to a Parquet file when it reaches this age. A shorter age makes tables fresher "
        "and files smaller.",
    )
    flush_min_bytes: int = Field(
        MIB,
        ge=0,
        le=64 * MIB,
        description="Smaller tails may wait for up to 15 minutes, unless the topic sets `flush.max_age_s`.",
    )

    mirror_memory_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Memory for commits that this broker holds for other brokers. When it is full, they drop this "
        "mirror.",
    )

    @field_validator("memory_budget_bytes")
    @classmethod
    def holds_two_requests(cls, budget: int, info: ValidationInfo) -> int:
        """Refuses a memory budget of which a single request could use more than half."""
        largest = info.data.get("max_request_bytes", 0)
        if 2 * largest > budget:
            raise ValueError(f"it must be at least twice max_request_bytes={largest}")
        return budget


class JournalSettings(Group):
    """The settings of journals: their files or puts; and of the readers' cache."""

    journal_file_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        description="Start a new journal file at this size. Disk space is freed one file at a time.",
    )
    journal_max_unreleased_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Flush the oldest tails when the journal holds more than this. Larger values give larger "
        "Parquet files and longer recoveries.",
    )
    journal_puts_per_s: float | None = Field(
        None,
        ge=0,
        le=10_000,
        description="Object journal: limit on the average number of puts per second and broker, at least 0.5; up to"
        " 1,000 unused puts are saved for bursts. A lower limit costs less and makes publishes wait "
        "longer. 0: no limit. Empty: 8 if the store charges for puts, as AWS does, otherwise 0.",
    )
    journal_linger_s: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Object journal: minimum time between the starts of two puts, instead of journal_puts_per_s. "
        "Empty: none, or 0.02 if journal_linger_max_s is set.",
    )
    journal_linger_max_s: float | None = Field(
        None,
        ge=0,
        le=5,
        description="Object journal: the linger time grows up to this value while puts queue up. Empty: 0.25 if "
        "journal_linger_s is set.",
    )
    put_usd_per_1000: float = Field(
        0,
        ge=0,
        le=100,
        description="Price of 1,000 puts, for the metric seaweedq_journal_usd_per_month.",
    )
    journal_window: int = Field(
        4,
        ge=1,
        le=64,
        description="Object journal: maximum number of concurrent puts. Mirrored journal: also of commits that wait "
        "for mirrors.",
    )
    journal_mirrors: int = Field(
        2,
        ge=1,
        le=3,
        description="Mirrored journal: number of other brokers that hold each commit before it is acknowledged. More "
        "mirrors survive more failures, and cost traffic.",
    )
    journal_least_mirrors: int = Field(
        1,
        ge=1,
        le=3,
        description="Mirrored journal: with fewer mirrors than this, commits are acknowledged once they are in the "
        "store, as with an object journal.",
    )
    journal_exposure_s: float | None = Field(
        10,
        ge=1,
        le=3600,
        description="Mirrored journal: commits that are in memory alone for this long are put into the store, many in "
        "one object. Lower values lose less if all memory fails at once, and cost more puts. Empty: as long as there "
        "are mirrors, nothing is put before it is in a Parquet file.",
    )
    mirror_patience_s: float = Field(
        0.5,
        ge=0.1,
        le=60,
        description="Mirrored journal: a mirror that does not answer for this long is replaced or dropped. Meanwhile, "
        "publishes wait.",
    )
    cache_bytes: int = Field(
        128 * MIB,
        ge=0,
        description="Size of the read cache of decoded row groups. If the memory budget is used up, the cache is "
        "emptied.",
    )

    @field_validator("journal_puts_per_s")
    @classmethod
    def lets_publishes_end(cls, per_s: float | None) -> float | None:
        """Refuses a limit at which commits wait longer than publishes, so that all publishes would get 503."""
        if per_s is not None and 0 < per_s < 0.5:
            raise ValueError("it must be 0 (no limit) or at least 0.5, because a commit waits for up to two puts")
        return per_s


class LifeSettings(Group):
    """The settings of a broker's lifetime: lease, intervals, shutdown."""

    lease_s: float = Field(
        5,
        ge=1,
        le=60,
        description="A broker that does not renew its lease for this long counts as dead. A shorter lease makes "
        "failover faster, but tolerates only shorter pauses.",
    )
    checkpoint_s: float = Field(
        10,
        ge=1,
        le=600,
        description="Interval at which subscriptions' cursors are copied from the journal to coordination.",
    )
    retention_grace_s: float = Field(
        3_600,
        ge=60,
        le=604_800,
        description="Keep deleted files for this long, so that readers that already opened a table can finish. "
        "Topics may override it.",
    )
    metrics_subscriptions: int = Field(
        100,
        ge=0,
        le=100_000,
        description="Number of subscriptions in each broker's /metrics: those with the largest lag.",
    )
    shutdown_delay_s: float = Field(
        0,
        ge=0,
        le=600,
        description="Keep serving for this long after SIGTERM, with /readyz at 503. Behind a load balancer, set "
        "more than its health-check delay, so that no request reaches a closed port. A second signal "
        "skips the delay.",
    )
    shutdown_s: float = Field(
        10,
        ge=1,
        le=600,
        description="Maximum time that a shutdown waits for flushes. The journal keeps unflushed messages.",
    )


GROUPS: Mapping[str, type[Group]] = {
    "Store": StoreSettings,
    "Coordination": CoordinationSettings,
    "Cluster": ClusterSettings,
    "Access": AccessSettings,
    "Address and log": AddressSettings,
    "Topics": TopicSettings,
    "Requests and connections": RequestSettings,
    "Payloads and imports": PayloadSettings,
    "Memory and files": MemorySettings,
    "Journal and cache": JournalSettings,
    "Life of a broker": LifeSettings,
}


# pydantic orders the fields from the last base to the first.
class Settings(
    LifeSettings,
    JournalSettings,
    MemorySettings,
    PayloadSettings,
    RequestSettings,
    TopicSettings,
    AddressSettings,
    AccessSettings,
    ClusterSettings,
    CoordinationSettings,
    StoreSettings,
):
    """All settings of a broker."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
        defer_build=True,  # help shows the settings and checks none
    )

    @field_validator("store", "s3_endpoints", "coordination", "advertise_url", "advertise_peer_url")
    @classmethod
    def has_no_credentials(cls, url: str) -> str:
        """Refuses a URL with a user and a password, since URLs appear in logs and are sent to other brokers."""
        if re.search("://[^/]*@", url):
            raise ValueError(
                "a URL must not contain a user or a password; set etcd_user and etcd_password, or AWS's own variables"
            )
        return url

    @property
    def store_path(self) -> str:
        """Returns the store's URL, with the default filled in."""
        return self.store or f"file://{self.data_dir.absolute() / 'store'}"

    @property
    def store_in_data_dir(self) -> bool:
        """Returns whether the store is a folder inside the data folder, which nobody else may read or write."""
        return self.store_path.startswith(f"file://{self.data_dir.absolute()}/")

    @property
    def journal_kind(self) -> Literal["file", "object", "mirrored"]:
        """Returns the kind of journal, with the default filled in."""
        if self.journal != "auto":
            return self.journal
        return "file" if self.coordination == "embedded" else "object"

    @property
    def admin_token_path(self) -> Path | None:
        """Returns the path of the admin token's file, or None."""
        if self.admin_token_file:
            return Path(self.admin_token_file)
        drawn = self.auth != "auto" and self.coordination == "embedded"
        return self.data_dir / "admin-token" if drawn else None

    @property
    def home(self) -> Path:
        """Returns the folder of this process: the data folder, or its member's subfolder."""
        return self.data_dir if self.brokers == 1 else self.data_dir / "members" / str(self.member)
