"""One frozen settings object. The command line, SEAWEEDQ_* variables, TOML and docs/reference/settings.md all come
from it; `seaweedq.cli.server.given_settings` reads them.

The names carry the units: `_s` seconds, `_bytes` bytes. Each description states the trade-off of its setting. Each
group of fields is a class of its own, and a heading in docs/reference/settings.md.
"""

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
        description="Folder for the journal, embedded coordination and, by default, the store.",
    )
    store: str = Field(
        "",
        description="URL of the object store for messages: file:///path or s3://bucket/prefix. Empty: the folder "
        "`store` in the data folder.",
    )
    s3_endpoints: str = Field(
        "",
        pattern=r"^(\s*https?://[^\s,]+\s*,?)*$",
        description="Comma-separated endpoint URLs of an S3-compatible store; all must serve the same data. "
        "Empty: AWS_ENDPOINT_URL_S3, or the region's endpoint. Credentials and region come from the "
        "usual AWS variables and files.",
    )
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        "auto",
        description="How requests name the bucket: in the path or in the host name. `auto`: boto decides.",
    )
    s3_sse: Literal["none", "AES256", "aws:kms"] = Field(
        "none",
        description="Server-side encryption for every object written: Parquet files, journals, payloads and "
        "clients' uploads. `none`: the bucket's default, which is AES256 on AWS. With `aws:kms`, "
        "readers of the files need permission to use the key.",
    )
    s3_sse_kms_key: str = Field(
        "",
        pattern=r"^[!-~]*$",
        description="ID or ARN of the key for s3_sse=aws:kms. Empty: the account's default S3 key.",
    )


class CoordinationSettings(Group):
    """The settings of the key-value store in which brokers coordinate."""

    coordination: str = Field(
        "embedded",
        pattern=r"^(embedded|etcd://[^/,\s]+(,[^/,\s]+)*)$",
        description="Key-value store for brokers, topics and segment owners. `embedded`: a SQLite file in the "
        "data folder, for one machine. `etcd://host:port,...`: for clusters.",
    )
    etcd_prefix: str = Field(
        "seaweedq/", description="Prefix of all keys in etcd. Clusters with different prefixes can share one etcd."
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
        description="PEM file with etcd's CA certificate; enables TLS. Required with etcd_user or "
        "etcd_cert_file, unless every etcd endpoint is on loopback.",
    )
    etcd_cert_file: str = Field("", description="PEM file with this broker's client certificate for etcd (mutual TLS).")
    etcd_key_file: str = Field("", description="PEM file with the private key for etcd_cert_file.")
    snapshot_s: float = Field(
        60,
        gt=0,
        description="Minimum interval between snapshots of coordination. The leader writes a snapshot to the "
        "store if something has changed. If coordination is lost, you also lose every change that "
        "was made after the last snapshot and existed only in coordination. Snapshots over 60 MB "
        "are taken less often.",
    )
    allow_plain_etcd: bool = Field(
        False,
        description="Allow auth=required with a remote etcd without TLS. Anyone who can read or modify that "
        "traffic can grant themselves every permission.",
    )


class ClusterSettings(Group):
    """The settings of a broker's place in its cluster: its journal, its secret, its name."""

    journal: Literal["auto", "file", "object"] = Field(
        "auto",
        description="Where messages become durable first: in files in the data folder (`file`), or as objects in "
        "the store (`object`), which survive the loss of the machine. `auto`: `object` with etcd, "
        "otherwise `file`.",
    )
    brokers: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of broker processes on this machine, on consecutive ports. They share the store and "
        "coordination, and take over each other's segments.",
    )
    member: int = Field(
        0,
        ge=0,
        le=64,
        description="Number of this process among the `brokers`. The parent process sets it; do not set it yourself.",
    )
    cluster_secret: str = Field(
        "",
        repr=False,
        description="Shared secret with which brokers authenticate to each other, ideally 32 random characters. "
        "While you rotate it, give both secrets, comma-separated. Required with etcd; otherwise "
        "generated and kept in the data folder. Anyone who has the secret can do everything that a "
        "broker can. Set it in the environment, because `ps` shows command lines.",
    )
    cluster_secret_file: str = Field("", description="File that contains the cluster secret. Read once, at startup.")
    advertise_url: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="URL at which clients and other brokers reach this broker. Empty: the address it listens on.",
    )
    zone: str = Field("", description="Availability zone of this broker. Segments are spread across zones.")
    name: str = Field(
        "broker",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$",
        description="Name of this broker. The broker's ID is this name and a random number drawn at each start.",
    )


class AccessSettings(Group):
    """The settings of access: tokens, the audit, names and origins, TLS."""

    auth: Literal["auto", "none", "required"] = Field(
        "auto",
        description="Whether requests need a token. `required`: all requests do, except probes and signed "
        "payload URLs. `none`: requests without a token may do everything; a token that is sent is "
        "still checked. `auto`: `none` if the broker is reachable only on loopback; with any other "
        "`host` or `advertise_url` the broker refuses to start.",
    )
    admin_token_file: str = Field(
        "",
        description="File with a token of at least 32 characters that grants every permission on this broker. "
        "Use it to issue the first tokens, or to regain access. Reread when it changes. Empty, with "
        "embedded coordination and auth other than `auto`: `admin-token` in the data folder, "
        "created if missing.",
    )
    audit: Literal["auto", "topic", "log", "none"] = Field(
        "auto",
        description="Where changes and denied requests are recorded. `log`: in the log. `topic`: in the log and "
        "in the topic `seaweedq.audit`, which the first record creates. `auto`: `topic` with "
        "auth=required, otherwise `none`.",
    )
    allowed_hosts: str = Field(
        "",
        pattern=r"^(\s*(\*|(\*\.)?[A-Za-z0-9._-]+)\s*(,|$))*$",
        description="Additional host names for this broker, comma-separated: `queue.example.com`, "
        "`*.example.com`, or `*` for any. IP addresses, `localhost` and the host of advertise_url "
        "are always allowed. Requests for other hosts get 421, which stops web pages from reaching "
        "the broker by DNS rebinding. Pages served from an allowed name may send requests, unless "
        "only `*` allows the name.",
    )
    cors_origins: str = Field(
        "",
        pattern=r"^(\s*https?://[A-Za-z0-9._:\[\]-]+/?\s*(,|$))*$",
        description="Other origins whose pages may call this broker, comma-separated: "
        "`https://app.example.com`. Their requests need a token like all others; responses never "
        "let a browser send the credentials that it has stored.",
    )
    tls_cert_file: str = Field(
        "",
        description="PEM file with this broker's certificate and its intermediates. If set, `port` accepts only "
        "TLS 1.2 or newer, from clients and brokers. The broker loads renewed files within 10 s "
        "without dropping connections; if certificate and key do not match, the broker logs a "
        "warning and keeps the old pair.",
    )
    tls_key_file: str = Field("", description="PEM file with the unencrypted private key for tls_cert_file.")
    tls_ca_file: str = Field(
        "",
        description="PEM file with the CA that signs the https certificates of other brokers. Empty: the system's"
        " CAs. Read once, at startup.",
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
        description="Separate port for other brokers, on the same address: mutual TLS 1.3 with keys derived from "
        "cluster_secret, so no certificates are needed. Brokers then call each other on this port "
        "only. 0: they use `port`.",
    )
    advertise_peer_url: str = Field(
        "",
        pattern=r"^(https://[^\s/]+)?$",
        description="URL at which other brokers reach `peer_port`. Empty: the host of advertise_url, or the "
        "listen address, with that port.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest severity of log lines to print."
    )


class TopicSettings(Group):
    """The settings of topics: how they come, and how many there may be."""

    auto_create_topics: bool = Field(
        True,
        description="Create unknown topics, with defaults, on publish or upload. Convenient on a laptop, but a "
        "misspelled name creates a topic.",
    )
    max_topics: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of topics in the cluster. Requests to create more get 429.",
    )
    max_segments: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of segments in the cluster, including sealed segments that still exist. "
        "Above it, requests for new topics get 429, and segments no longer split. Every broker "
        "keeps all segment records in memory.",
    )


class RequestSettings(Group):
    """The settings that bound requests and connections in size, number and time."""

    max_message_bytes: int = Field(
        MIB, ge=KIB, le=16 * MIB, description="Maximum size of a message's value, and of its key and headers together."
    )
    max_request_bytes: int = Field(
        16 * MIB,
        ge=64 * KIB,
        le=256 * MIB,
        description="Maximum size of a request body after decompression. Each request in flight may use this much"
        " memory.",
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
        description="Timeout for the first request on a connection, and for the request line and headers of "
        "each request. Slower connections are closed.",
    )
    max_connections: int = Field(
        0,
        ge=0,
        description="Maximum number of connections; above it, the connection that has been idle longest is "
        "closed. Streams and long polls may use at most three quarters. A few extra connections are "
        "reserved for probes and other brokers. 0: nine tenths of the open-file limit minus 256, at "
        "most 16,384.",
    )
    max_connections_per_address: int = Field(
        0,
        ge=0,
        description="Maximum number of connections per client address (per /64 for IPv6); above it, the oldest "
        "idle one is closed. Loopback is exempt. Behind `trusted_proxies`, requests in flight are "
        "counted instead of connections. 0: a quarter of max_connections.",
    )
    trusted_proxies: str = Field(
        "",
        pattern=r"^[0-9A-Fa-f.:/,\s]*$",
        description="Addresses and networks of trusted reverse proxies, comma-separated: `10.0.0.0/8`. For their "
        "requests, the client address is the last one in X-Forwarded-For that is not a trusted proxy."
        " Connections from these proxies are not limited per address.",
    )
    answer_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="Close a connection if its client does not read for this long, because unread responses use "
        "memory.",
    )
    publish_timeout_s: float = Field(
        15,
        gt=0,
        le=600,
        description="Time within which published messages must become durable, counted from the end of the "
        "request's body, and within which flushes and new topics must reach the store. After this "
        "time the broker answers 503.",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def has_networks(cls, text: str) -> str:
        """Refuses a value that is neither an address nor a network."""
        for one in text.split(","):
            if one.strip():
                ip_network(one.strip(), strict=False)
        return text


class PayloadSettings(Group):
    """The settings of uploads, of the links to payloads, and of imports."""

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
        description="Maximum number of unpublished uploads per topic; more get 429. Each may occupy space in the "
        "store until it expires.",
    )
    max_write_uploads: int = Field(
        100_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of uploads per topic that were started for writes and that no write has "
        "used yet; more get 429. They do not count towards max_open_uploads.",
    )
    upload_expires_s: int = Field(
        86_400,
        ge=60,
        le=7 * 86_400,
        description="Time within which an upload must be completed and published. The upload's record stays in "
        "coordination for the same time.",
    )
    upload_url_s: int = Field(
        3600,
        ge=10,
        le=86_400,
        description="Lifetime of a signed URL for uploading or downloading a payload. Anyone who has the URL can "
        "use it.",
    )
    multipart_bytes: int = Field(
        1024 * MIB,
        ge=5 * MIB,
        le=5 * 1024**3,
        description="Uploads larger than this are sent to S3 in parts, which can be retried and sent in "
        "parallel. S3 verifies the digest of a single put itself; to verify a multipart upload, a "
        "broker reads it once.",
    )
    upload_grace_s: int = Field(
        3600,
        ge=1,
        le=7 * 86_400,
        description="Time that an unpublished upload is kept after it expires. Must exceed the clock skew between"
        " brokers.",
    )
    import_batch_rows: int = Field(
        131_072,
        ge=1000,
        le=262_144,
        description="Maximum number of rows in a batch of an import; a batch has at most 16 MiB, too. Smaller "
        "batches need less memory and more time. A running import keeps the value with which it "
        "started.",
    )


class MemorySettings(Group):
    """The settings of the memory budget, and of when tails become files."""

    memory_budget_bytes: int = Field(
        512 * MIB,
        ge=64 * MIB,
        description="Memory budget for tails, requests in flight and recoveries; at least twice "
        "max_request_bytes. Incoming requests may use a quarter of it, recoveries another quarter. "
        "Above half, tails are flushed early; above the whole budget, publishes get 503.",
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
        description="Write a tail to a Parquet file when it reaches this age, even without new messages. A "
        "shorter age makes tables fresher and files smaller.",
    )
    flush_min_bytes: int = Field(
        MIB,
        ge=0,
        le=64 * MIB,
        description="A tail smaller than this may wait for up to 15 minutes, unless its topic sets `flush.max_age_s`.",
    )

    @field_validator("memory_budget_bytes")
    @classmethod
    def holds_two_requests(cls, budget: int, info: ValidationInfo) -> int:
        """Refuses a budget of which one request may hold more than half."""
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
        description="Object journal: long-run limit on puts per second for each broker, at least 0.5. A broker "
        "saves up to 1,000 unused puts for bursts. A lower limit costs less and makes publishes "
        "wait longer. 0: no limit. Empty: 8 if the store charges for puts (S3 without an endpoint, "
        "or a provider that charges), otherwise 0.",
    )
    journal_linger_s: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Object journal: minimum time between the starts of two puts, instead of a puts-per-second "
        "budget. Empty: none, or 0.02 if journal_linger_max_s is set.",
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
        description="Price of 1,000 puts to the store. If set, the metric seaweedq_journal_usd_per_month shows "
        "the cost of the journal's puts at the current rate.",
    )
    journal_window: int = Field(4, ge=1, le=64, description="Object journal: maximum number of concurrent puts.")
    cache_bytes: int = Field(
        128 * MIB,
        ge=0,
        description="Size of the cache of decoded row groups for reads. It is emptied when the memory budget is "
        "used up.",
    )

    @field_validator("journal_puts_per_s")
    @classmethod
    def lets_publishes_end(cls, per_s: float | None) -> float | None:
        """Refuses a budget at which a commit waits longer than publishes do, which would all be 503."""
        if per_s is not None and 0 < per_s < 0.5:
            raise ValueError("it must be 0 (no bound) or at least 0.5: a commit waits for up to two puts")
        return per_s


class LifeSettings(Group):
    """The settings of a broker's life: its lease, its intervals, its stop."""

    lease_s: float = Field(
        5,
        ge=1,
        le=60,
        description="A broker that does not renew its lease for this long is considered dead. A shorter lease "
        "makes failover faster, but tolerates only shorter pauses.",
    )
    checkpoint_s: float = Field(
        10, ge=1, le=600, description="Interval at which cursors are copied from the journal to coordination."
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
        description="Number of subscriptions that each broker reports in /metrics: of those that it dispatches, "
        "the ones with the largest lag.",
    )
    shutdown_delay_s: float = Field(
        0,
        ge=0,
        le=600,
        description="Time to keep serving after SIGTERM, with /readyz at 503, before shutdown begins. Behind a "
        "load balancer, set it longer than its health-check delay, so that no request reaches a "
        "closed port. A second signal skips it.",
    )
    shutdown_s: float = Field(
        10,
        ge=1,
        le=600,
        description="How long a shutdown waits for flushes. The journal keeps whatever is not flushed.",
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
        """Returns whether the store is a folder within the data folder, which nobody else is to read or write."""
        return self.store_path.startswith(f"file://{self.data_dir.absolute()}/")

    @property
    def journal_kind(self) -> Literal["file", "object"]:
        """Returns the kind of journal, with the default filled in."""
        if self.journal != "auto":
            return self.journal
        return "file" if self.coordination == "embedded" else "object"

    @property
    def admin_token_path(self) -> Path | None:
        """Returns the file of the token that may do everything, None if there is none."""
        if self.admin_token_file:
            return Path(self.admin_token_file)
        drawn = self.auth != "auto" and self.coordination == "embedded"
        return self.data_dir / "admin-token" if drawn else None

    @property
    def home(self) -> Path:
        """Returns the folder of this process: the data folder, or its member's subfolder."""
        return self.data_dir if self.brokers == 1 else self.data_dir / "members" / str(self.member)
