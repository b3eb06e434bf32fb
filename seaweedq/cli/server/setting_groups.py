"""The groups in which `serve --help` and docs/settings.md show the settings."""

from collections.abc import Mapping, Sequence

from seaweedq.settings import Settings

# The first setting of each group, in the order of the fields.
GROUPS = {
    "data_dir": "Store",
    "coordination": "Coordination",
    "journal": "Cluster",
    "auth": "Access",
    "host": "Address and log",
    "auto_create_topics": "Topics",
    "max_message_bytes": "Requests and connections",
    "max_payload_bytes": "Payloads and imports",
    "memory_budget_bytes": "Memory and files",
    "journal_file_bytes": "Journal and cache",
    "lease_s": "Life of a broker",
}


def groups() -> Mapping[str, Sequence[str]]:
    """Returns the names of all settings by their group."""
    found: dict[str, list[str]] = {}
    group = ""
    for name in Settings.model_fields:
        group = GROUPS.get(name, group)
        found.setdefault(group, []).append(name)
    return found
