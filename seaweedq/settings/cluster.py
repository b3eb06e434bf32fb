"""The settings of a broker's place in its cluster: its journal, its secret, its name."""

from typing import Literal

from pydantic import Field

from seaweedq.settings.group import Group


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
