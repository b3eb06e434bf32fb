"""Opens the coordination that the settings name: the only place where its kind is chosen."""

from urllib.parse import urlsplit

from seaweedq.cli.server.credentials.secret import secret_of
from seaweedq.cli.server.exposure import is_loopback
from seaweedq.clock import Clock
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.sqlite.backend import EmbeddedCoordination
from seaweedq.errors import InvalidRequest
from seaweedq.extras import install_command
from seaweedq.settings import Settings

ETCD = "etcd://"
POLL_S, ALONE_S = 0.05, 1.0  # a broker that is alone writes everything itself, and sees that at once


def open_coordination(settings: Settings, clock: Clock, pools: Pools) -> Coordination:
    """Opens the coordination that the settings name. Raises InvalidRequest if an extra is not installed, or if a file
    cannot be read. `pools` get its thread, if it has one."""
    if not settings.coordination.startswith(ETCD):
        poll_s = POLL_S if settings.brokers > 1 else ALONE_S
        embedded = EmbeddedCoordination(settings.data_dir / "coordination.db", clock, poll_s=poll_s)
        pools.add(embedded.thread)
        return embedded
    try:
        from seaweedq.coordination.etcd.backend import EtcdCoordination
        from seaweedq.coordination.etcd.transport import Access
    except ModuleNotFoundError:
        raise InvalidRequest(
            f"coordination={settings.coordination!r} needs etcd3: {install_command('etcd')}", field="coordination"
        ) from None
    except ImportError as error:
        raise InvalidRequest(f"coordination={settings.coordination!r}: {error}", field="coordination") from None
    _check_encrypted(settings)
    access = Access(
        endpoints=settings.coordination.removeprefix(ETCD).split(","),
        user=settings.etcd_user,
        password=secret_of(settings, "etcd_password"),
        ca_file=settings.etcd_ca_file,
        cert_file=settings.etcd_cert_file,
        key_file=settings.etcd_key_file,
    )
    try:
        return EtcdCoordination(access, settings.etcd_prefix)
    except OSError as error:
        raise InvalidRequest(
            f"a file named by the settings etcd_* cannot be read: {error}", field="etcd_ca_file"
        ) from None


def _check_encrypted(settings: Settings) -> None:
    """Raises InvalidRequest where a user or a certificate is for an etcd that would be asked in plain text (without a
    CA there is no TLS), or where rights would come over it that nobody has allowed to come so."""
    given = [name for name in ("etcd_user", "etcd_cert_file") if getattr(settings, name)]
    far = [one for one in settings.coordination.removeprefix(ETCD).split(",") if not _is_loopback(one)]
    if given and far and not settings.etcd_ca_file:
        raise InvalidRequest(
            f"{given[0]} is set and etcd_ca_file is not: without a certificate authority there is no TLS, and what is "
            f"sent to {far[0]} could be read on the way",
            field="etcd_ca_file",
        )
    if settings.auth == "required" and far and not settings.etcd_ca_file and not settings.allow_plain_etcd:
        raise InvalidRequest(
            f"auth=required, and etcd at {far[0]} is asked without TLS: who can change what is sent there has every "
            "right; set etcd_ca_file, or allow_plain_etcd=true where nobody else is in that network",
            field="allow_plain_etcd",
        )


def _is_loopback(endpoint: str) -> bool:
    return is_loopback(urlsplit(f"//{endpoint}").hostname or "")
