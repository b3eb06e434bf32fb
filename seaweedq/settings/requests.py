"""The settings that bound requests and connections in size, number and time."""

from ipaddress import ip_network

from pydantic import Field, field_validator

from seaweedq.settings.group import Group
from seaweedq.settings.sizes import KIB, MIB


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
