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
        description="URL of the object store: file:///path or s3://bucket/prefix. Without a URL, the store is "
        "the folder `store` in the data folder.",
    )
    s3_endpoints: str = Field(
        "",
        pattern=r"^(\s*https?://[^\s,]+\s*,?)*$",
        examples=["https://s3.example.com,https://s3-2.example.com"],
        description="Comma-separated endpoint URLs of an S3-compatible store, all with the same data. Without "
        "endpoints, brokers use AWS_ENDPOINT_URL_S3 or, if it is not set, the endpoint of the AWS "
        "region. Brokers read the credentials and the region from AWS's own variables and files.",
    )
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        "auto",
        description="Position of the bucket's name in S3 requests: in the path or in the host name. With `auto`, "
        "boto decides.",
    )
    s3_sse: Literal["none", "AES256", "aws:kms"] = Field(
        "none",
        description="Server-side encryption of every object, including clients' uploads. With `none`, the "
        "bucket's default encryption applies, which is AES256 on AWS. With `aws:kms`, everyone who "
        "reads the files needs permission to use the key.",
    )
    s3_sse_kms_key: str = Field(
        "",
        pattern=r"^[!-~]*$",
        examples=["arn:aws:kms:eu-west-1:111122223333:key/1234abcd"],
        description="ID or ARN of the KMS key for s3_sse=aws:kms. Without s3_sse_kms_key, S3 uses the account's "
        "default key.",
    )


class CoordinationSettings(Group):
    """The settings of the key-value store in which brokers coordinate."""

    coordination: str = Field(
        "embedded",
        pattern=r"^(embedded|etcd://[^/,\s]+(,[^/,\s]+)*)$",
        examples=["embedded", "etcd://10.0.0.1:2379,10.0.0.2:2379"],
        description="Key-value store that records the brokers, the topics and the segments' owners. On one "
        "machine, coordination can be `embedded`, which is SQLite in the data folder. For a cluster, "
        "coordination must be etcd: `etcd://host:port,...`.",
    )
    etcd_prefix: str = Field(
        "seaweedq/",
        description="Prefix of all keys in etcd. Several clusters can share one etcd if their prefixes differ.",
    )
    etcd_user: str = Field(
        "", description="User name for etcd. Without a user name, the broker does not authenticate to etcd."
    )
    etcd_password: str = Field(
        "",
        repr=False,
        description="Password for etcd. Set the etcd password in the environment, because `ps` shows command lines.",
    )
    etcd_password_file: str = Field(
        "", description="File that contains the etcd password. The broker reads the password file only at startup."
    )
    etcd_ca_file: str = Field(
        "",
        description="PEM file with etcd's CA certificate; enables TLS. A CA file for etcd is required with "
        "etcd_user or etcd_cert_file, unless every etcd endpoint is on loopback.",
    )
    etcd_cert_file: str = Field("", description="PEM file with this broker's client certificate for etcd (mutual TLS).")
    etcd_key_file: str = Field("", description="PEM file with the private key for etcd_cert_file.")
    snapshot_s: float = Field(
        60,
        gt=0,
        description="Minimum time between two snapshots of coordination, which the leader writes to the store. "
        "If coordination is lost, changes after the last snapshot are lost as well, unless they are "
        "also recorded in the store. The leader writes snapshots over 60 MB less often.",
    )
    allow_plain_etcd: bool = Field(
        False,
        description="Allow auth=required even if the connection to a remote etcd has no TLS. Anyone who can read "
        "or modify the traffic to etcd can then grant themselves every permission.",
    )


class ClusterSettings(Group):
    """The settings of a broker in its cluster: journal, secret, name."""

    journal: Literal["auto", "file", "object", "mirrored"] = Field(
        "auto",
        description="Storage in which messages first become durable. With journal=file, messages first become "
        "durable in the data folder. With journal=object, they first become durable in the store, "
        "which survives the loss of the machine. With journal=mirrored (experimental; requires "
        "etcd), messages are in the memory of several brokers within milliseconds, and in the store "
        "seconds later. If a broker and all its mirrors fail at the same time, the messages of the "
        "last journal_exposure_s seconds are lost. With journal=auto, the journal is `object` with "
        "etcd, and `file` otherwise.",
    )
    brokers: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of broker processes on this machine, on consecutive ports. The processes share the "
        "store and coordination; if one of them fails, the others take over its segments.",
    )
    member: int = Field(
        0,
        ge=0,
        le=64,
        description="Number of this process among the `brokers`. Do not set `member` yourself: the parent "
        "process sets it.",
    )
    cluster_secret: str = Field(
        "",
        repr=False,
        description="Shared secret with which brokers authenticate to each other, ideally 32 random characters. "
        "To rotate the cluster secret, set both the old and the new secret, separated by a comma. "
        "The cluster secret is required with etcd; without etcd, the broker generates a secret in "
        "the data folder. Anyone who has the cluster secret can act as a broker. Set the cluster "
        "secret in the environment, because `ps` shows command lines.",
    )
    cluster_secret_file: str = Field(
        "", description="File that contains the cluster secret. The broker reads the secret file only at startup."
    )
    advertise_url: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        examples=["https://broker-1.example.com:8080"],
        description="URL at which clients and other brokers reach this broker. By default, advertise_url is the "
        "address on which the broker listens.",
    )
    zone: str = Field("", description="Availability zone of this broker. The balancer spreads segments across zones.")
    name: str = Field(
        "broker",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$",
        examples=["broker-1"],
        description="Name of this broker. The broker's ID is its name followed by a number that is drawn at each "
        "start.",
    )


class AccessSettings(Group):
    """The settings of access: tokens, the audit, names and origins, TLS."""

    auth: Literal["auto", "none", "required"] = Field(
        "auto",
        description="Whether requests need a token. With auth=required, every request needs a token, except "
        "probes and signed payload URLs. With auth=none, a request without a token may do "
        "everything, but the broker still checks the token of a request that has one. With "
        "auth=auto, `none` applies if `host` and `advertise_url` are on loopback; otherwise, the "
        "broker refuses to start.",
    )
    admin_token_file: str = Field(
        "",
        description="File with the admin token, which has at least 32 characters and permits everything on this "
        "broker. Use the admin token to issue the first tokens, or to regain access. The broker "
        "rereads the token file when it changes. If admin_token_file is empty, coordination is "
        "embedded and auth is not `auto`, the broker uses the file `admin-token` in the data folder, "
        "and creates this file if it is missing.",
    )
    audit: Literal["auto", "topic", "log", "none"] = Field(
        "auto",
        description="Destination of the audit records about changes and denied requests. With audit=log, the "
        "broker writes audit records to its log. With audit=topic, the broker writes audit records "
        "to its log and to the topic `seaweedq.audit`. With audit=auto, `topic` applies if auth is "
        "`required`, and `none` otherwise.",
    )
    allowed_hosts: str = Field(
        "",
        pattern=r"^(\s*(\*|(\*\.)?[A-Za-z0-9._-]+)\s*(,|$))*$",
        examples=["queue.example.com,*.example.com"],
        description="Additional host names of this broker, comma-separated: `queue.example.com`, "
        "`*.example.com`, or `*`. IP addresses, `localhost` and the host of advertise_url are always "
        "allowed. To prevent DNS rebinding, the broker answers 421 to requests for hosts that are "
        "not allowed. Web pages from the hosts in allowed_hosts may send requests to the broker, but "
        "not pages from hosts that only `*` matches.",
    )
    cors_origins: str = Field(
        "",
        pattern=r"^(\s*https?://[A-Za-z0-9._:\[\]-]+/?\s*(,|$))*$",
        examples=["https://app.example.com"],
        description="Other origins whose web pages may send requests to this broker, comma-separated: "
        "`https://app.example.com`. Requests from pages of other origins need a token, as all other "
        "requests do; browsers never add stored credentials.",
    )
    tls_cert_file: str = Field(
        "",
        description="PEM file with this broker's certificate and its intermediate certificates. With a "
        "certificate, `port` accepts only TLS 1.2 or newer. The broker loads renewed files within 10 "
        "s, without dropping connections. If the renewed certificate and key do not match, the "
        "broker keeps the old pair and logs a warning.",
    )
    tls_key_file: str = Field("", description="PEM file with the unencrypted private key for tls_cert_file.")
    tls_ca_file: str = Field(
        "",
        description="PEM file with the CA that signed the https certificates of the other brokers. Without a CA "
        "file, the broker trusts the system's CAs. The broker reads the CA file only at startup.",
    )


class AddressSettings(Group):
    """The settings of a broker's addresses and of its log."""

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. For a non-loopback address, `auth` must be `required` or `none`.",
    )
    port: int = Field(
        8080, ge=0, le=65_535, description="Port to listen on. With port 0, the system chooses a free port."
    )
    peer_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="Separate port for requests from other brokers, with mutual TLS 1.3. Brokers derive the TLS "
        "keys of the peer port from cluster_secret, so it needs no certificates. With peer_port=0, "
        "other brokers use `port`.",
    )
    advertise_peer_url: str = Field(
        "",
        pattern=r"^(https://[^\s/]+)?$",
        examples=["https://broker-1.example.com:8443"],
        description="URL at which other brokers reach `peer_port`. By default, other brokers use the host of "
        "advertise_url or, without it, the address on which this broker listens.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest severity of log lines to print."
    )


class TopicSettings(Group):
    """The settings of topics: how they are created, and how many there may be."""

    auto_create_topics: bool = Field(
        True,
        description="Create a topic when a client publishes or uploads to a topic that does not exist. Automatic "
        "creation is convenient on a laptop, but a misspelled topic name creates a new topic.",
    )
    max_topics: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of topics in the cluster. Once the cluster has max_topics topics, the broker "
        "answers 429 to requests for new topics.",
    )
    max_segments: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of segments in the cluster, including sealed segments. Once the cluster has "
        "max_segments segments, the broker refuses new topics with 429, and no longer splits "
        "segments. Every broker keeps all segment records in memory.",
    )


class RequestSettings(Group):
    """The settings that limit requests and connections in size, number and time."""

    max_message_bytes: int = Field(
        MIB,
        ge=KIB,
        le=16 * MIB,
        description="Maximum size of a message's value; the message's key and headers together have the same limit.",
    )
    max_request_bytes: int = Field(
        16 * MIB,
        ge=64 * KIB,
        le=256 * MIB,
        description="Maximum size of a decompressed request body. Each request may use up to max_request_bytes "
        "of memory.",
    )
    request_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="Timeout for receiving a request body. If a request body takes longer than "
        "request_timeout_s, the broker answers 408.",
    )
    head_timeout_s: float = Field(
        10,
        gt=0,
        le=3600,
        description="Time limit for the first request on a new connection, and for the request line and headers "
        "of each request. The broker closes slower connections.",
    )
    max_connections: int = Field(
        0,
        ge=0,
        description="Maximum number of open connections; if there are more, the broker closes the connection "
        "that has been idle longest. Streams and long polls may use three quarters of "
        "max_connections. The broker accepts a few additional connections for probes and from other "
        "brokers. With max_connections=0, the maximum is 256 less than nine tenths of the open-file "
        "limit, but not more than 16,384.",
    )
    max_connections_per_address: int = Field(
        0,
        ge=0,
        description="Maximum number of open connections per client address (per /64 network for IPv6), except "
        "for loopback; if an address has more, the broker closes the oldest idle connection of this "
        "address. For clients behind `trusted_proxies`, the same limit applies to requests in flight "
        "instead of connections. With max_connections_per_address=0, the maximum is a quarter of "
        "max_connections.",
    )
    trusted_proxies: str = Field(
        "",
        pattern=r"^[0-9A-Fa-f.:/,\s]*$",
        examples=["10.0.0.0/8,192.168.1.1"],
        description="Addresses and networks of reverse proxies, comma-separated: `10.0.0.0/8`. For requests from "
        "trusted proxies, the client address is the last address in X-Forwarded-For that is not a "
        "trusted proxy.",
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
        description="Timeout for published messages to become durable, measured from the end of the request "
        "body. publish_timeout_s also applies to flushes and new topics, which must reach the store. "
        "After publish_timeout_s, the broker answers 503.",
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
        description="Maximum size of an uploaded payload. A topic may set a lower limit for its payloads. S3 "
        "accepts at most 5 TiB.",
    )
    max_open_uploads: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="Maximum number of unpublished uploads per topic; the broker answers 429 to further uploads. "
        "Each unpublished upload may use space in the store until it expires.",
    )
    max_write_uploads: int = Field(
        100_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of unused uploads for writes per topic; the broker answers 429 to further "
        "uploads. Uploads for writes do not count toward max_open_uploads.",
    )
    upload_expires_s: int = Field(
        86_400,
        ge=60,
        le=7 * 86_400,
        description="Time within which an upload must be published. Until an upload expires, coordination keeps "
        "a record of the upload.",
    )
    upload_url_s: int = Field(
        3600,
        ge=10,
        le=86_400,
        description="Lifetime of a payload's signed URL; until it expires, anyone who has the URL can use it.",
    )
    multipart_bytes: int = Field(
        1024 * MIB,
        ge=5 * MIB,
        le=5 * 1024**3,
        description="Size above which clients send an upload to S3 in parts, which they can retry and send in "
        "parallel. To verify a multipart upload, a broker reads it once; S3 itself verifies a single "
        "put.",
    )
    upload_grace_s: int = Field(
        3600,
        ge=1,
        le=7 * 86_400,
        description="Keep an unpublished upload for this long after it expires. The grace time must exceed the "
        "clock skew between brokers.",
    )
    import_batch_rows: int = Field(
        131_072,
        ge=1000,
        le=262_144,
        description="Maximum number of rows in each batch of an import; a batch also has at most 16 MiB. Smaller "
        "batches need less memory, but more time. A running import keeps the value with which it "
        "started.",
    )


class MemorySettings(Group):
    """The settings of the memory budget, and of when tails become files."""

    memory_budget_bytes: int = Field(
        512 * MIB,
        ge=64 * MIB,
        description="Memory budget for tails, requests and recoveries; it must be at least twice "
        "max_request_bytes. Incoming requests may use a quarter of the budget, and recoveries "
        "another quarter. When more than half of the budget is in use, the broker flushes tails "
        "early. When the whole budget is in use, the broker answers publishes with 503.",
    )

    flush_max_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=64 * MIB,
        description="Write a segment's tail, which is its messages that are not in a file yet, to a Parquet file "
        "when the tail reaches this size. Larger files are faster to scan, but need more memory.",
    )
    flush_max_age_s: float = Field(
        300,
        ge=1,
        le=86_400,
        description="Write a segment's tail to a Parquet file when its oldest message has waited for this long. "
        "A shorter time makes tables fresher, but also makes files smaller.",
    )
    flush_min_bytes: int = Field(
        MIB,
        ge=0,
        le=64 * MIB,
        description="A tail smaller than flush_min_bytes is written to a file only after 15 minutes, unless the "
        "topic sets `flush.max_age_s`.",
    )

    mirror_memory_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Memory for the journal commits that this broker mirrors for other brokers. When the mirror "
        "memory is full, other brokers stop using this broker as a mirror.",
    )

    @field_validator("memory_budget_bytes")
    @classmethod
    def holds_two_requests(cls, budget: int, info: ValidationInfo) -> int:
        """Refuses a memory budget of which a single request could use more than half."""
        largest = info.data.get("max_request_bytes", 0)
        if 2 * largest > budget:
            raise ValueError(f"the value must be at least twice max_request_bytes={largest}")
        return budget


class JournalSettings(Group):
    """The settings of journals: their files or puts; and of the readers' cache."""

    journal_file_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        description="Start a new journal file at this size. The broker frees disk space one journal file at a time.",
    )
    journal_max_unreleased_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Flush the oldest tails when the journal contains more bytes of unflushed messages than "
        "this. A larger journal allows larger Parquet files, but makes recoveries longer.",
    )
    journal_puts_per_s: float | None = Field(
        None,
        ge=0,
        le=10_000,
        description="Object journal: maximum average number of puts per second for each broker, at least 0.5. A "
        "broker saves up to 1,000 unused puts for bursts. A lower maximum costs less, but makes "
        "publishes wait longer. With journal_puts_per_s=0, there is no maximum. By default, the "
        "maximum is 8 puts per second if the store charges for puts, as AWS does; otherwise, puts "
        "are not limited.",
    )
    journal_linger_s: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Object journal: minimum time between the starts of two puts; if it is set, "
        "journal_puts_per_s is 0 by default. By default, there is no minimum time between puts; if "
        "journal_linger_max_s is set, the default is 0.02 s.",
    )
    journal_linger_max_s: float | None = Field(
        None,
        ge=0,
        le=5,
        description="Object journal: upper limit for the time between the starts of two puts, which grows from "
        "journal_linger_s while puts queue up. If only journal_linger_s is set, the time between "
        "puts grows up to 0.25 s.",
    )
    put_usd_per_1000: float = Field(
        0,
        ge=0,
        le=100,
        description="Price of 1,000 puts in US dollars, for the metric seaweedq_journal_usd_per_month.",
    )
    journal_window: int = Field(
        4,
        ge=1,
        le=64,
        description="Object journal: maximum number of concurrent puts. In a mirrored journal, journal_window is "
        "also the maximum number of commits that wait for mirrors.",
    )
    journal_mirrors: int = Field(
        2,
        ge=1,
        le=3,
        description="Mirrored journal: number of other brokers that must have each commit in memory before it is "
        "acknowledged. With more mirrors, messages survive more failures, but network traffic "
        "increases.",
    )
    journal_least_mirrors: int = Field(
        1,
        ge=1,
        le=3,
        description="Mirrored journal: if a broker has fewer mirrors than journal_least_mirrors, a commit is "
        "acknowledged only once it is in the store, as with an object journal.",
    )
    journal_exposure_s: float | None = Field(
        10,
        ge=1,
        le=3600,
        description="Mirrored journal: the longest time that a commit exists only in memory. After this time, the "
        "broker writes all waiting commits to the store, many of them in each object. With a lower "
        "journal_exposure_s, fewer messages are lost "
        "if all mirrors fail at the same time, but the broker needs more puts. Without "
        "journal_exposure_s, messages that have mirrors reach the store only in Parquet files.",
    )
    mirror_patience_s: float = Field(
        0.5,
        ge=0.1,
        le=60,
        description="Mirrored journal: replace or drop a mirror that does not answer for this long. Until a "
        "silent mirror is replaced or dropped, publishes wait for it.",
    )
    cache_bytes: int = Field(
        128 * MIB,
        ge=0,
        description="Size of the read cache of decoded row groups. When the memory budget is used up, the broker "
        "empties the cache.",
    )

    @field_validator("journal_puts_per_s")
    @classmethod
    def lets_publishes_end(cls, per_s: float | None) -> float | None:
        """Refuses a limit at which commits wait longer than publishes, so that all publishes would get 503."""
        if per_s is not None and 0 < per_s < 0.5:
            raise ValueError(
                "the value must be 0 (no limit) or at least 0.5, because a commit waits for up to two puts"
            )
        return per_s


class LifeSettings(Group):
    """The settings of a broker's lifetime: lease, intervals, shutdown."""

    lease_s: float = Field(
        5,
        ge=1,
        le=60,
        description="A broker that does not renew its lease for this long is considered dead. A shorter lease "
        "makes failover faster, but tolerates only shorter pauses.",
    )
    checkpoint_s: float = Field(
        10,
        ge=1,
        le=600,
        description="Interval at which brokers copy the subscriptions' cursors from the journal to coordination.",
    )
    retention_grace_s: float = Field(
        3_600,
        ge=60,
        le=604_800,
        description="Keep deleted files for this long, so that readers that already opened a table can finish. A "
        "topic's own `grace_s` overrides this setting.",
    )
    metrics_subscriptions: int = Field(
        100,
        ge=0,
        le=100_000,
        description="Number of subscriptions that each broker reports at /metrics: those with the largest lag.",
    )
    shutdown_delay_s: float = Field(
        0,
        ge=0,
        le=600,
        description="After SIGTERM, keep serving requests for this long, while /readyz answers 503. Behind a "
        "load balancer, set a longer time than the load balancer's health-check delay, so that no "
        "request reaches a closed port. A second signal ends the delay.",
    )
    shutdown_s: float = Field(
        10,
        ge=1,
        le=600,
        description="Maximum time that a shutdown waits for flushes. Messages that are not flushed in time "
        "remain in the journal.",
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
                "a URL must not contain a user or a password; set etcd_user and etcd_password "
                "instead, or for S3 the usual AWS variables"
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
