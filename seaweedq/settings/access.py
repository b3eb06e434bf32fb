"""The settings of who may ask: tokens, the audit, names and origins, TLS."""

from typing import Literal

from pydantic import Field

from seaweedq.settings.group import Group


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
