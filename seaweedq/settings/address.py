"""The settings of where a broker listens, and of what it logs."""

from typing import Literal

from pydantic import Field

from seaweedq.settings.group import Group


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
        "cluster_secret, so nobody needs certificates for it. From level 4 of the cluster on calls between brokers are "
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
