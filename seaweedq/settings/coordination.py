"""The settings of the key-value store in which brokers coordinate."""

from pydantic import Field

from seaweedq.settings.group import Group


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
    allow_plain_etcd: bool = Field(
        False,
        description="Permit auth=required with an etcd beyond loopback that is asked without TLS. Whoever can read or "
        "change packets on the way could give themselves every right.",
    )
