"""One frozen settings object, from which the command line, SEAWEEDQ_* variables, TOML and docs/reference/settings.md
derive. `seaweedq.cli.server.given_settings` reads the settings.

Names contain units: `_s` for seconds, `_bytes` for bytes. Each description states the setting's trade-off. Each group
of fields is a class, and a heading in docs/reference/settings.md."""

import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, ValidationInfo, field_validator

KIB, MIB = 1024, 1024 * 1024
MAX_BROKERS = 64


class Group(BaseModel, defer_build=True):
    """The settings of one subject. Abstract: never instantiated, so pydantic need not build a validator."""


class BrokerRange(NamedTuple):
    """How many brokers run on one machine: at least and at most. The load decides between the two."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}..{self.most}"

    @classmethod
    def parse(cls, given: Any) -> "BrokerRange":
        """Parses a number, or a text such as 1..8. Raises ValueError."""
        if isinstance(given, BrokerRange):
            return given
        found = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", str(given), re.ASCII)
        least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= least <= most <= MAX_BROKERS:
            raise ValueError(
                f"it must be a number from 1 to {MAX_BROKERS}, or a range of such numbers, for example 1..8"
            )
        return cls(least, most)


class StoreSettings(Group):
    """The settings of the data folder and the object store."""

    data_dir: Path = Field(
        Path("./seaweedq-data"),
        description="Folder for the broker's journal and, by default, for the coordination database and the object "
        "store.",
    )
    store: str = Field(
        "",
        description="URL of the object store: file:///path or s3://bucket/prefix. By default, the store is the folder "
        "`store` in data_dir.",
    )
    s3_endpoints: str = Field(
        "",
        pattern=r"^(\s*https?://[^\s,]+\s*,?)*$",
        examples=["https://s3.example.com,https://s3-2.example.com"],
        description="Comma-separated endpoint URLs of one S3-compatible store; by default AWS_ENDPOINT_URL_S3, or "
        "the endpoint of the AWS region. Credentials and region come from AWS's own variables and files.",
    )
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        "auto",
        description="Place of the bucket's name in S3 requests: the path (`path`) or the host name (`virtual`). "
        "With `auto`, the library boto decides.",
    )
    s3_sse: Literal["none", "AES256", "aws:kms"] = Field(
        "none",
        description="Server-side encryption of all objects in the store. With `aws:kms`, every program that reads "
        "the files needs permission to use the key.",
    )
    s3_sse_kms_key: str = Field(
        "",
        pattern=r"^[!-~]*$",
        examples=["arn:aws:kms:eu-west-1:111122223333:key/1234abcd"],
        description="ID or ARN of the KMS key for s3_sse=aws:kms. By default, S3 uses the account's default key.",
    )


class CoordinationSettings(Group):
    """The settings of the key-value store in which brokers coordinate."""

    coordination: str = Field(
        "embedded",
        pattern=r"^(embedded|etcd://[^/,\s]+(,[^/,\s]+)*)$",
        examples=["embedded", "etcd://10.0.0.1:2379,10.0.0.2:2379"],
        description="Key-value store through which brokers coordinate: `embedded` (SQLite in data_dir) on one "
        "machine, or `etcd://host:port,...` for a cluster.",
    )
    etcd_prefix: str = Field(
        "seaweedq/",
        description="Prefix of the cluster's keys in etcd. Clusters that share an etcd need different prefixes.",
    )
    etcd_user: str = Field("", description="User name for etcd.")
    etcd_password: str = Field(
        "",
        repr=False,
        description="Password of etcd_user. Set the password in the environment, because `ps` shows command lines.",
    )
    etcd_password_file: str = Field("", description="File with the password of etcd_user.")
    etcd_ca_file: str = Field(
        "",
        description="PEM file with the CA of etcd's certificate, for TLS connections to etcd. If etcd_user or "
        "etcd_cert_file is set, this setting is required, unless all etcd endpoints are on loopback.",
    )
    etcd_cert_file: str = Field("", description="PEM file with this broker's client certificate for etcd (mutual TLS).")
    etcd_key_file: str = Field("", description="PEM file with the private key for etcd_cert_file.")
    snapshot_s: float = Field(
        60,
        gt=0,
        description="Minimum time between two snapshots of the coordination database; the store keeps the snapshots. "
        "If coordination is lost, changes after the last snapshot may be lost.",
    )
    allow_plain_etcd: bool = Field(
        False,
        description="Whether auth=required is allowed if connections to a remote etcd do not use TLS. Anyone who can "
        "modify the "
        "traffic to etcd can then grant themselves every permission.",
    )


class ClusterSettings(Group):
    """The settings of a broker in its cluster: journal, secret, name."""

    journal: Literal["auto", "file", "object", "mirrored"] = Field(
        "auto",
        description="Place to which the broker writes a message before it acknowledges the message: the data folder "
        "(`file`), the store (`object`), or the memory of other brokers (`mirrored`; experimental, "
        "requires etcd). `auto` means `object` if the cluster uses etcd, and `file` otherwise.",
    )
    brokers: Annotated[BrokerRange, PlainValidator(BrokerRange.parse), PlainSerializer(str)] = Field(
        BrokerRange(1, 1),
        description="Number of broker processes, up to 64, that `seaweedq serve` starts on this machine, with "
        "consecutive ports. With a range, such as `1..8`, brokers start and stop as the load changes.",
    )
    member: int = Field(
        0,
        ge=0,
        le=MAX_BROKERS,
        description="Index of this process among the processes that the setting `brokers` starts. Do not set `member` "
        "yourself.",
    )
    cluster_secret: str = Field(
        "",
        repr=False,
        description="Secret with which brokers authenticate to each other, ideally 32 random characters; required "
        "with etcd. To rotate the secret, set the old and the new secret, separated by a comma. Set the "
        "secret in the environment.",
    )
    cluster_secret_file: str = Field("", description="File with the cluster secret.")
    advertise_url: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        examples=["https://broker-1.example.com:8080"],
        description="URL at which clients and other brokers reach this broker. By default, the URL contains the "
        "address on which the broker listens.",
    )
    zone: str = Field("", description="Availability zone of this broker. The balancer spreads segments across zones.")
    capacity_messages_per_s: float = Field(
        0,
        ge=0,
        le=1e9,
        description="Number of inbound messages per second that this broker can handle, for the metric "
        "seaweedq_brokers_wanted; 0 means unlimited.",
    )
    capacity_bytes_per_s: float = Field(
        0,
        ge=0,
        le=1e12,
        description="Number of inbound bytes per second that this broker can handle, for the metric "
        "seaweedq_brokers_wanted; 0 means unlimited.",
    )
    capacity_segments: int = Field(
        2_000,
        ge=0,
        le=1_000_000,
        description="Number of open segments that this broker can own, for the metric seaweedq_brokers_wanted; 0 "
        "means unlimited.",
    )
    name: str = Field(
        "broker",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$",
        examples=["broker-1"],
        description="Name of this broker. The broker's ID is this name and a random number that changes at each start.",
    )


class AccessSettings(Group):
    """The settings of access: tokens, the audit, names and origins, TLS."""

    auth: Literal["auto", "none", "required"] = Field(
        "auto",
        description="Whether requests need a token. With `none`, a request without a token may do everything. "
        "`auto` means `none` if host and advertise_url are on loopback; otherwise, a broker with `auto` "
        "refuses to start.",
    )
    admin_token_file: str = Field(
        "",
        description="File with the admin token, which has at least 32 characters and permits everything on this "
        "broker. If the file changes, the broker reads the new token. With embedded coordination and auth other than "
        "`auto`, the default is the file `admin-token` in data_dir, which the broker creates.",
    )
    audit: Literal["auto", "topic", "log", "none"] = Field(
        "auto",
        description="Destination of audit records about changes and denied requests: the broker's log (`log`), or "
        "its log and the topic `seaweedq.audit` (`topic`). `auto` means `topic` if auth is `required`, "
        "and `none` otherwise.",
    )
    allowed_hosts: str = Field(
        "",
        pattern=r"^(\s*(\*|(\*\.)?[A-Za-z0-9._-]+)\s*(,|$))*$",
        examples=["queue.example.com,*.example.com"],
        description="Comma-separated host names with which clients may address this broker, such as `*.example.com`, "
        "or `*` for all names. For other hosts, the broker answers 421. IP addresses, `localhost` "
        "and the host of advertise_url are always allowed.",
    )
    cors_origins: str = Field(
        "",
        pattern=r"^(\s*https?://[A-Za-z0-9._:\[\]-]+/?\s*(,|$))*$",
        examples=["https://app.example.com"],
        description="Comma-separated origins of other sites whose web pages may send requests to this broker, such as "
        "`https://app.example.com`.",
    )
    tls_cert_file: str = Field(
        "",
        description="PEM file with this broker's certificate and its intermediate certificates. `port` then accepts "
        "only TLS 1.2 or newer. The broker loads a renewed certificate and key within 10 s, if the two match.",
    )
    tls_key_file: str = Field("", description="PEM file with the unencrypted private key for tls_cert_file.")
    client_ca_file: str = Field(
        "",
        description="PEM file with the CAs of client certificates; requires tls_cert_file. Clients may show a "
        "certificate instead of a token. The broker loads a changed file within 10 s. If a client connected with a "
        "certificate before the change, the broker then answers the client's next request with 503, and closes the "
        "connection.",
    )
    client_certificate_name: Literal["san", "subject"] = Field(
        "san",
        description="Part of a client certificate that names the client's principal: the common name (`subject`), or "
        "a DNS name (`san`). Exactly one of the certificate's names of that kind must be the name of a principal.",
    )
    tls_ca_file: str = Field(
        "",
        description="PEM file with the CA of the other brokers' https certificates. By default, the broker trusts "
        "the system's CAs.",
    )


class OidcSettings(Group):
    """The settings of JSON Web Tokens of an OpenID Connect issuer."""

    oidc_issuer: str = Field(
        "",
        pattern=r"^(https?://[^\s?#]+)?$",
        examples=["https://login.example.com"],
        description="URL of an OpenID Connect issuer whose JSON Web Tokens the broker also accepts; requires "
        "oidc_audience. The URL must equal the claim `iss` of these tokens.",
    )
    oidc_audience: str = Field("", description="Audience that a JSON Web Token must name in its claim `aud`.")
    oidc_algorithms: str = Field(
        "RS256,ES256",
        description="Comma-separated signature algorithms that the broker accepts in JSON Web Tokens, from RS256, "
        "RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 and EdDSA.",
    )
    oidc_principal_claim: str = Field(
        "sub",
        description="Name or path (such as `realm_access/name`) of the claim that contains a principal's name in a "
        "JSON Web Token. Choose a claim that users cannot change. If oidc_principal_claim is "
        "empty, no token acts as a principal.",
    )
    oidc_roles_claim: str = Field(
        "roles",
        description="Name or path (such as `realm_access/roles`) of the claim that contains the caller's role, or a "
        "list of roles, in a JSON Web Token. In the claims `scope` and `scp`, spaces separate the "
        "roles.",
    )
    oidc_roles: str = Field(
        "",
        examples=["reader=describe,read:flights*; operator=cluster metrics"],
        description="Grants of each role, such as `reader=describe,read:flights*; operator=cluster metrics`. "
        "Commas separate the actions of a grant, and a colon precedes the names of topics. Spaces separate grants, and "
        "semicolons separate roles. A caller that is not a principal has the grants of all its "
        "roles; a principal has only its own grants.",
    )
    jwks_max_age_s: float = Field(
        86_400,
        ge=60,
        le=7 * 86_400,
        description="Time for which brokers continue to use the issuer's keys while the issuer does not answer. "
        "Afterwards, requests with JSON Web Tokens get 503.",
    )
    oidc_ca_file: str = Field(
        "",
        description="PEM file with the CA of the issuer's certificate. The broker reads the file at each fetch of the "
        "issuer's keys. By default, the broker trusts the system's CAs.",
    )
    oidc_token_file: str = Field(
        "",
        description="File with a token that the broker sends when it fetches the issuer's keys. If Kubernetes is "
        "the issuer, this token is required. The broker reads the file at each fetch.",
    )


class AddressSettings(Group):
    """The settings of a broker's addresses and of its log."""

    host: str = Field(
        "127.0.0.1",
        description="Address on which the broker listens. On an address other than loopback, auth must be "
        "`required` or `none`.",
    )
    port: int = Field(
        8080,
        ge=0,
        le=65_535,
        description="Port on which the broker listens. With port 0, the system chooses a free port.",
    )
    peer_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="Separate port for other brokers, with mutual TLS 1.3. With 0, other brokers use `port`.",
    )
    advertise_peer_url: str = Field(
        "",
        pattern=r"^(https://[^\s/]+)?$",
        examples=["https://broker-1.example.com:8443"],
        description="URL at which other brokers reach peer_port. By default, the broker derives this URL from "
        "advertise_url.",
    )
    grpc_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="Separate port for gRPC clients; requires the extra `grpc` of the Python package. With 0, the "
        "broker does not serve gRPC.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest severity of the log lines that the broker prints."
    )
    log_format: Literal["text", "json"] = Field(
        "text",
        description="Format of log lines.",
    )
    otel_endpoint: str = Field(
        "",
        pattern=r"^(https?://[^\s/@]+(/[^\s@]*)?)?$",
        examples=["http://collector.example.com:4318"],
        description="URL of an OpenTelemetry collector, to which this broker sends spans as OTLP over HTTP, at the "
        "path /v1/traces; requires the extra `otel` of the Python package.",
    )


class TopicSettings(Group):
    """The settings of topics: how they are created, and how many there may be."""

    auto_create_topics: bool = Field(
        True,
        description="Whether the broker creates a missing topic when a client publishes or uploads to the topic.",
    )
    max_topics: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of topics in the cluster.",
    )
    max_segments: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of segments in the cluster, including sealed segments. At the maximum, brokers "
        "answer 429 to requests for new topics, and split no segments.",
    )


class RequestSettings(Group):
    """The settings that limit requests and connections in size, number and time."""

    max_message_bytes: int = Field(
        MIB,
        ge=KIB,
        le=16 * MIB,
        description="Maximum size of a message's value. The key and the headers together have the same limit.",
    )
    max_request_bytes: int = Field(
        16 * MIB,
        ge=64 * KIB,
        le=256 * MIB,
        description="Maximum size of a decompressed request body.",
    )
    request_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="Time within which the body of a request must arrive.",
    )
    head_timeout_s: float = Field(
        10,
        gt=0,
        le=3600,
        description="Time within which the headers of each request must arrive completely. For the first request on a "
        "connection, the time starts when the connection opens.",
    )
    max_connections: int = Field(
        0,
        ge=0,
        description="Maximum number of open connections to this broker, of which streams and long polls may use at "
        "most three quarters. Above the maximum, the broker closes the connection that has been idle "
        "longest. With 0, the maximum is the lower of 16,384 and `0.9 * open-file limit - 256`.",
    )
    max_connections_per_address: int = Field(
        0,
        ge=0,
        description="Maximum number of open connections from one client address (for IPv6, from one /64 network), "
        "except for loopback. For clients behind trusted_proxies, the maximum applies to requests in flight instead of "
        "connections. With 0, the maximum is a quarter of max_connections.",
    )
    trusted_proxies: str = Field(
        "",
        pattern=r"^[0-9A-Fa-f.:/,\s]*$",
        examples=["10.0.0.0/8,192.168.1.1"],
        description="Comma-separated addresses and networks of reverse proxies, such as `10.0.0.0/8`. For requests "
        "through these proxies, the client address is the last address in X-Forwarded-For that is not a trusted proxy.",
    )
    answer_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="Time after which the broker closes a connection if the client does not read an answer.",
    )
    publish_timeout_s: float = Field(
        15,
        gt=0,
        le=600,
        description="Time within which published messages must become durable after the request body has arrived. "
        "Flushes and the creation of topics have the same timeout.",
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
        description="Maximum size of an uploaded payload. A topic's own max_payload_bytes may be lower.",
    )
    max_open_uploads: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="Maximum number of a topic's unpublished uploads. Above the maximum, brokers answer 429.",
    )
    max_write_uploads: int = Field(
        100_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of a topic's unpublished uploads for writes (a write publishes many files at "
        "once). Above the maximum, "
        "brokers answer 429.",
    )
    upload_expires_s: int = Field(
        86_400,
        ge=60,
        le=7 * 86_400,
        description="Time after which an unpublished upload expires.",
    )
    upload_url_s: int = Field(
        3600,
        ge=10,
        le=86_400,
        description="Time for which the signed URL of a payload is valid.",
    )
    multipart_bytes: int = Field(
        1024 * MIB,
        ge=5 * MIB,
        le=5 * 1024**3,
        description="Size above which clients send an upload to S3 in parts (as a multipart upload). To verify a "
        "multipart upload, a broker must read the whole upload once.",
    )
    upload_grace_s: int = Field(
        3600,
        ge=1,
        le=7 * 86_400,
        description="Time for which brokers keep an expired upload. The time must exceed the clock skew between "
        "brokers.",
    )
    import_batch_rows: int = Field(
        131_072,
        ge=1000,
        le=262_144,
        description="Maximum number of rows that an import publishes in one batch; a batch also has at most 16 MiB.",
    )


class MemorySettings(Group):
    """The settings of the memory budget, and of when tails become files."""

    memory_budget_bytes: int = Field(
        512 * MIB,
        ge=64 * MIB,
        description="Maximum memory for unflushed messages, requests and recoveries; at least twice "
        "max_request_bytes. All requests that are still arriving may together use at most a quarter of this memory "
        "(or max_request_bytes, if that is more), and all recoveries together at most a quarter. When more than half "
        "of this memory is in use, the broker flushes messages early; when all is in use, "
        "publishes get 503.",
    )

    flush_max_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=64 * MIB,
        description="When a segment's unflushed messages reach this size, the broker writes them to a Parquet file.",
    )
    flush_max_age_s: float = Field(
        300,
        ge=1,
        le=86_400,
        description="When the oldest of a segment's unflushed messages reaches this age, the broker writes the "
        "messages to a Parquet file.",
    )
    flush_min_bytes: int = Field(
        MIB,
        ge=0,
        le=64 * MIB,
        description="While a segment's unflushed messages are together smaller than this size, the broker writes them "
        "to a Parquet file only when the oldest message is 15 minutes old. The topic's `flush.max_age_s` "
        "replaces the 15 minutes. If the topic has no `flush.max_age_s`, but you set flush_max_age_s, this setting "
        "replaces the 15 minutes.",
    )

    mirror_memory_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Memory for the journal commits that this broker mirrors. When this memory is full, other "
        "brokers stop using this broker as a mirror.",
    )

    @field_validator("memory_budget_bytes")
    @classmethod
    def holds_two_requests(cls, budget: int, info: ValidationInfo) -> int:
        """Refuses a memory budget of which a single request could use more than half."""
        largest = info.data.get("max_request_bytes", 0)
        if 2 * largest > budget:
            raise ValueError(f"the value must be at least {2 * largest}, which is twice max_request_bytes")
        return budget


class JournalSettings(Group):
    """The settings of journals: their files or puts."""

    journal_file_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        description="Size at which the broker starts a new journal file.",
    )
    journal_max_unreleased_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="When the unflushed messages in the journal exceed this size, the broker writes the oldest "
        "messages to Parquet files. A larger journal allows larger files, but makes recoveries longer.",
    )
    journal_puts_per_s: float | None = Field(
        None,
        ge=0,
        le=10_000,
        description="Object journal: maximum average number of puts per second; 0.5 or more, or 0 for no limit. A "
        "lower limit costs less, but makes publishes wait longer. By default, the limit is 8 if the store charges for "
        "puts, as AWS does; otherwise there is no limit.",
    )
    journal_linger_s: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Object journal: minimum time between the starts of two consecutive puts. If only "
        "journal_linger_max_s is set, the minimum is 0.02 s. If journal_linger_s or journal_linger_max_s is set, the "
        "default of journal_puts_per_s is 0 (no limit).",
    )
    journal_linger_max_s: float | None = Field(
        None,
        ge=0,
        le=5,
        description="Object journal: while puts queue up, the time between the starts of two puts grows from "
        "journal_linger_s to this limit. If only journal_linger_s is set, the limit is 0.25 s.",
    )
    put_usd_per_1000: float = Field(
        0,
        ge=0,
        le=100,
        description="Price in US dollars of 1,000 puts to the store, for the metric seaweedq_journal_usd_per_month.",
    )
    journal_window: int = Field(
        4,
        ge=1,
        le=64,
        description="Maximum number of a journal's concurrent puts. In a mirrored journal, this is also the maximum "
        "number of commits that wait for mirrors.",
    )
    journal_mirrors: int = Field(
        2,
        ge=1,
        le=3,
        description="Mirrored journal: number of other brokers that must have a commit in memory before the broker "
        "acknowledges the commit.",
    )
    journal_least_mirrors: int = Field(
        1,
        ge=1,
        le=3,
        description="Mirrored journal: minimum number of mirrors. If fewer than journal_mirrors other brokers are "
        "available, but at least this number, the broker uses the available brokers as mirrors. If fewer than this "
        "number are available, the broker acknowledges a commit only once the commit is in the store.",
    )
    journal_exposure_s: float | None = Field(
        10,
        ge=1,
        le=3600,
        description="Mirrored journal: maximum time for which a commit exists only in memory. If the broker and all "
        "its mirrors fail together, up to this many seconds of messages are lost. A shorter time needs more puts.",
    )
    mirror_patience_s: float = Field(
        0.5,
        ge=0.1,
        le=60,
        description="Mirrored journal: time after which the broker replaces or drops a mirror that does not answer. "
        "Until then, publishes wait for the mirror.",
    )

    @field_validator("journal_puts_per_s")
    @classmethod
    def lets_publishes_end(cls, per_s: float | None) -> float | None:
        """Refuses a limit at which commits wait longer than publishes, so that all publishes would get 503."""
        if per_s is not None and 0 < per_s < 0.5:
            raise ValueError(
                "the value must be 0 (no maximum) or at least 0.5: with a lower value, a commit can take longer than a "
                "publish may wait"
            )
        return per_s


class CacheSettings(Group):
    """The settings of the caches for readers of old messages."""

    memory_cache_bytes: int = Field(
        128 * MIB,
        ge=0,
        description="Maximum size of the cache of decoded row groups in memory.",
    )
    cache_dir: str = Field(
        "",
        description="Folder on a local disk in which the broker caches parts of Parquet files from S3. If several "
        "consumers read old messages, the broker then reads each file from S3 only once.",
    )
    cache_bytes: int = Field(
        10 * 1024 * MIB,
        ge=MIB,
        description="Maximum size of each broker's cache in cache_dir.",
    )


class LifeSettings(Group):
    """The settings of a broker's lifetime: lease, intervals, shutdown."""

    lease_s: float = Field(
        5,
        ge=1,
        le=60,
        description="Time after which other brokers consider a broker dead if it does not renew its lease. With a "
        "shorter lease, failover is faster, but a shorter pause of the broker or of etcd makes the broker lose its "
        "lease.",
    )
    checkpoint_s: float = Field(
        10,
        ge=1,
        le=600,
        description="Interval at which brokers copy the acknowledgement state of subscriptions from the journal to "
        "coordination.",
    )
    retention_grace_s: float = Field(
        3_600,
        ge=60,
        le=604_800,
        description="Time for which brokers keep a file after retention has removed the file's messages from the "
        "topic, so that programs that are still reading the file can finish. A topic's `grace_s` overrides this "
        "setting.",
    )
    metrics_subscriptions: int = Field(
        100,
        ge=0,
        le=100_000,
        description="Maximum number of subscriptions that each broker reports at /metrics; the broker reports those "
        "with the largest lag.",
    )
    shutdown_delay_s: float = Field(
        0,
        ge=0,
        le=600,
        description="Time for which the broker continues to serve after SIGTERM, while /readyz answers 503. Choose "
        "a longer time than the load balancer needs to notice the 503.",
    )
    shutdown_s: float = Field(
        10,
        ge=1,
        le=600,
        description="Maximum time for which a stopping broker waits for flushes. Messages that are not flushed in "
        "time stay in the journal.",
    )


GROUPS: Mapping[str, type[Group]] = {
    "Store": StoreSettings,
    "Coordination": CoordinationSettings,
    "Cluster": ClusterSettings,
    "Access": AccessSettings,
    "JSON Web Tokens": OidcSettings,
    "Address and log": AddressSettings,
    "Topics": TopicSettings,
    "Requests and connections": RequestSettings,
    "Payloads and imports": PayloadSettings,
    "Memory and files": MemorySettings,
    "Journal": JournalSettings,
    "Read caches": CacheSettings,
    "Life of a broker": LifeSettings,
}


# pydantic orders the fields from the last base to the first.
class Settings(
    LifeSettings,
    CacheSettings,
    JournalSettings,
    MemorySettings,
    PayloadSettings,
    RequestSettings,
    TopicSettings,
    AddressSettings,
    OidcSettings,
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

    @field_validator("store", "s3_endpoints", "coordination", "advertise_url", "advertise_peer_url", "oidc_issuer")
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
        return self.data_dir if self.brokers.most == 1 else self.data_dir / "members" / str(self.member)
