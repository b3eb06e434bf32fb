"""One frozen settings object. The command line, SEAWEEDQ_* variables, TOML and docs/settings.md all come from it;
`seaweedq.cli.server.given_settings` reads them.

The names carry the units: `_s` seconds, `_bytes` bytes. Each description states the trade-off of its setting. Each
group of fields is a class of its own, and a heading in docs/settings.md.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, field_validator

from seaweedq.settings.access import AccessSettings
from seaweedq.settings.address import AddressSettings
from seaweedq.settings.cluster import ClusterSettings
from seaweedq.settings.coordination import CoordinationSettings
from seaweedq.settings.group import Group
from seaweedq.settings.journal import JournalSettings
from seaweedq.settings.life import LifeSettings
from seaweedq.settings.memory import MemorySettings
from seaweedq.settings.payloads import PayloadSettings
from seaweedq.settings.requests import RequestSettings
from seaweedq.settings.store import StoreSettings
from seaweedq.settings.topics import TopicSettings

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
    def journal_kind(self) -> Literal["file", "object"]:
        """Returns the kind of journal, with the default filled in."""
        if self.journal != "auto":
            return self.journal
        return "file" if self.coordination == "embedded" else "object"

    @property
    def admin_token_path(self) -> Path | None:
        """Returns the file of the token that may do everything, None where there is none."""
        if self.admin_token_file:
            return Path(self.admin_token_file)
        drawn = self.auth != "auto" and self.coordination == "embedded"
        return self.data_dir / "admin-token" if drawn else None

    @property
    def home(self) -> Path:
        """Returns the folder of this process: the data folder, or its member's subfolder."""
        return self.data_dir if self.brokers == 1 else self.data_dir / "members" / str(self.member)
