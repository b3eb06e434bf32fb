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
        description="Folder of the journal, of embedded coordination and, by default, of the store.",
    )
    store: str = Field(
        "",
        description="URL of the object store that holds the messages: file:///path or s3://bucket/prefix. Empty: the "
        "folder `store` in the data folder.",
    )
    s3_endpoints: str = Field(
        "",
        pattern=r"^(\s*https?://[^\s,]+\s*,?)*$",
        description="URLs of the S3-compatible store, separated by commas; all must serve the same data. Empty: "
        "AWS_ENDPOINT_URL_S3 or the region decides. Credentials and region come from AWS's own variables and files.",
    )
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        "auto",
        description="Where requests to the store name the bucket: in the path or in the host. `auto` leaves the "
        "choice to boto.",
    )
    s3_sse: Literal["none", "AES256", "aws:kms"] = Field(
        "none",
        description="Encryption that each object is written with: Parquet, journals, payloads, those that clients put "
        "themselves, too. `none` leaves it to the bucket; AWS then encrypts with AES256 by itself. With `aws:kms` each "
        "reader of the files needs the right to use the key.",
    )
    s3_sse_kms_key: str = Field(
        "",
        pattern=r"^[!-~]*$",
        description="Id or ARN of the key for s3_sse=aws:kms. Empty: the account's own key for S3.",
    )


class CoordinationSettings(Group):
    """The settings of the key-value store in which brokers coordinate."""

    coordination: str = Field(
        "embedded",
        pattern=r"^(embedded|etcd://[^/,\s]+(,[^/,\s]+)*)$",
        description="The key-value store that records members, owners and topics. `embedded` is a SQLite file in the "
        "data folder, for one machine; `etcd://host:port,...` is for clusters.",
    )
    etcd_prefix: str = Field(
        "seaweedq/", description="Prefix of all keys in etcd. Several clusters can share one etcd under different ones."
    )
    etcd_user: str = Field("", description="User name for etcd. Empty: no authentication.")
    etcd_password: str = Field(
        "",
        repr=False,
        description="Password for etcd. Set it in the environment: `ps` shows the command line.",
    )
    etcd_password_file: str = Field("", description="A file with that password, in its place. It is read at the start.")
    etcd_ca_file: str = Field(
        "",
        description="Certificate authority of etcd, PEM. If set, TLS is used. Required with etcd_user or "
        "etcd_cert_file, unless all of etcd is on loopback.",
    )
    etcd_cert_file: str = Field("", description="This broker's certificate for etcd, PEM, for mutual TLS.")
    etcd_key_file: str = Field("", description="Private key of that certificate, PEM.")
    snapshot_s: float = Field(
        60,
        gt=0,
        description="How often the leader puts a snapshot of coordination into the store, if something has changed. "
        "What coordination alone knew of the time since then is lost with it. One of over 60 MB comes less often.",
    )
    allow_plain_etcd: bool = Field(
        False,
        description="Permit auth=required with an etcd beyond loopback that is asked without TLS. Whoever can read or "
        "change packets on the way could give themselves every right.",
    )


class ClusterSettings(Group):
    """The settings of a broker's place in its cluster: its journal, its secret, its name."""

    journal: Literal["auto", "file", "object"] = Field(
        "auto",
        description="Where messages become durable first: in files of the data folder, or as objects of the store, "
        "which survive the loss of the machine. `auto`: object with etcd, else file.",
    )
    brokers: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of broker processes on this machine; they listen on consecutive ports. They share the "
        "store and coordination, and take over each other's segments.",
    )
    member: int = Field(
        0,
        ge=0,
        le=64,
        description="Number of this process among the `brokers`. Do not set it: their parent process does.",
    )
    cluster_secret: str = Field(
        "",
        repr=False,
        description="Shared secret by which brokers authenticate to each other, at best of 32 random characters; "
        "several, separated by commas, while it is changed. Required with etcd; otherwise generated and kept in the "
        "data folder. Its holder can do everything that a broker can. Set it in the environment: `ps` shows the "
        "command line.",
    )
    cluster_secret_file: str = Field("", description="A file with that secret, in its place. It is read at the start.")
    advertise_url: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="URL at which other brokers and clients reach this broker. Empty: the address that it listens on.",
    )
    zone: str = Field("", description="Availability zone of this broker; segments are spread over zones.")
    name: str = Field(
        "broker",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$",
        description="This broker's name. Its id is the name and a random number drawn at each start.",
    )


class AccessSettings(Group):
    """The settings of who may ask: tokens, the audit, names and origins, TLS."""

    auth: Literal["auto", "none", "required"] = Field(
        "auto",
        description="Whether requests need a token. `required`: all but probes and links to payloads. `none`: those "
        "without one may do everything; a token that is sent is judged all the same. `auto` is `none` on loopback; "
        "where `host` or `advertise_url` is another address, a broker with it does not start.",
    )
    admin_token_file: str = Field(
        "",
        description="File with a token of at least 32 characters that may do everything on this broker: the first "
        "token, and the way back in. It is read again when it changes. Empty, with auth other than `auto` and embedded "
        "coordination: `admin-token` in the data folder, which is drawn if it is not there.",
    )
    audit: Literal["auto", "topic", "log", "none"] = Field(
        "auto",
        description="Where changes and denials are recorded: as lines of the log (`log`), or as lines and as rows of "
        "the topic `seaweedq.audit` (`topic`), which is created with the first row. `auto` is `topic` with "
        "auth=required, else `none`.",
    )
    allowed_hosts: str = Field(
        "",
        pattern=r"^(\s*(\*|(\*\.)?[A-Za-z0-9._-]+)\s*(,|$))*$",
        description="Further names by which clients may address this broker, separated by commas: `queue.example.com`, "
        "`*.example.com`, or `*` for any. Addresses, `localhost` and the host of advertise_url always pass; a request "
        "for another host gets 421, since a name that somebody else's DNS points here lets web pages reach the broker. "
        "Pages of these names may send requests, except where it is `*` that allows them.",
    )
    cors_origins: str = Field(
        "",
        pattern=r"^(\s*https?://[A-Za-z0-9._:\[\]-]+/?\s*(,|$))*$",
        description="Origins of other sites whose pages may use this broker, separated by commas: "
        "`https://app.example.com`. Such a page needs a token of its own, as others do: answers never allow the "
        "credentials that a browser keeps.",
    )
    tls_cert_file: str = Field(
        "",
        description="Certificate that the broker shows, with those of its issuers behind it, PEM. If set, clients and "
        "other brokers speak TLS 1.2 or newer at `port`, and nothing else. A renewed pair of files is taken within "
        "10 s, and no connection is lost; of a pair that does not fit the broker warns, and goes on with the one "
        "before.",
    )
    tls_key_file: str = Field("", description="Private key of that certificate, PEM, without a password.")
    tls_ca_file: str = Field(
        "",
        description="Certificate authority by which this broker checks other brokers whose URLs are https, PEM. Empty: "
        "those of the system. It is read at the start.",
    )


class AddressSettings(Group):
    """The settings of where a broker listens, and of what it logs."""

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. On any but a loopback address a broker starts only if `auth` is "
        "`required` or `none`.",
    )
    port: int = Field(8080, ge=0, le=65_535, description="Port to listen on; 0 selects a free one.")
    peer_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="Port for other brokers alone, on the same address: mutual TLS 1.3 under keys that come of "
        "cluster_secret, so nobody needs certificates for it. Calls between brokers are "
        "answered there, and no longer at `port`. 0: there is none, and brokers call each other at `port`.",
    )
    advertise_peer_url: str = Field(
        "",
        pattern=r"^(https://[^\s/]+)?$",
        description="URL at which other brokers reach `peer_port`. Empty: the host of advertise_url, or the address "
        "that it listens on, and that port.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest severity of the log lines that are printed."
    )


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


class RequestSettings(Group):
    """The settings that bound requests and connections in size, number and time."""

    max_message_bytes: int = Field(
        MIB, ge=KIB, le=16 * MIB, description="Largest value of a message, and largest key together with its headers."
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
        description="How long a request's body may take to arrive before the broker answers 408.",
    )
    head_timeout_s: float = Field(
        10,
        gt=0,
        le=3600,
        description="How long a connection's first request, and then the line and headers of each, may take to arrive "
        "before the broker closes the connection.",
    )
    max_connections: int = Field(
        0,
        ge=0,
        description="Maximum number of connections; over it the one that was quiet for longest is closed. Streams and "
        "requests that wait for messages have three quarters of it at most. A few more are taken for probes and other "
        "brokers. 0: nine tenths of the limit of open files less 256, at most 16,384.",
    )
    max_connections_per_address: int = Field(
        0,
        ge=0,
        description="Maximum number of connections from one address (of IPv6: from 64 bits of it); over it the oldest "
        "quiet one of them is closed. It does not hold on loopback. Behind `trusted_proxies` the requests that are "
        "being answered count in the place of connections. 0: a quarter of max_connections.",
    )
    trusted_proxies: str = Field(
        "",
        pattern=r"^[0-9A-Fa-f.:/,\s]*$",
        description="Addresses and networks of proxies before this broker, separated by commas: `10.0.0.0/8`. Of a "
        "request from one of them the client is the last address in X-Forwarded-For that is not one of them; the "
        "connections of these proxies themselves have no bound of their own.",
    )
    answer_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="How long a client may take no byte of its answer before the broker ends the connection. Answers "
        "that are not taken hold memory.",
    )
    publish_timeout_s: float = Field(
        15,
        gt=0,
        le=600,
        description="How long a publish may take from the end of its body until it is durable, and a flush or a new "
        "topic may wait for the store, before the broker answers 503.",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def has_networks(cls, text: str) -> str:
        """Refuses what is neither an address nor a network."""
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
        description="Largest payload of an upload. A topic may set a lower limit. No S3 accepts more than 5 TiB.",
    )
    max_open_uploads: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="Maximum number of uploads of a topic that have begun and are not published yet; more get 429. "
        "Each may occupy its bytes in the store until it expires.",
    )
    max_write_uploads: int = Field(
        100_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of uploads of a topic that have begun for writes, and that no write has taken yet; "
        "more get 429. max_open_uploads does not count them.",
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


class MemorySettings(Group):
    """The settings of the memory budget, and of when tails become files."""

    memory_budget_bytes: int = Field(
        512 * MIB,
        ge=64 * MIB,
        description="Memory for tails, requests in flight and recoveries, at least twice max_request_bytes. Requests "
        "that are still coming hold at most a quarter of it, recoveries another. Above half of it tails are flushed "
        "early; above all of it publishes get 503.",
    )

    flush_max_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=64 * MIB,
        description="A tail that reaches this size becomes a Parquet file. Larger files scan faster and hold more "
        "memory.",
    )
    flush_max_age_s: float = Field(
        300,
        ge=1,
        le=86_400,
        description="A tail that reaches this age becomes a file, even without new messages. A shorter age makes "
        "tables fresher and files smaller.",
    )
    flush_min_bytes: int = Field(
        MIB,
        ge=0,
        le=64 * MIB,
        description="Tails smaller than this may wait 15 minutes if the topic leaves `flush.max_age_s` at the default.",
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
