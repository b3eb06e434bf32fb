"""The groups in which `serve --help` and docs/settings.md show the settings."""

from collections.abc import Mapping, Sequence

from seaweedq.settings import GROUPS


def groups() -> Mapping[str, Sequence[str]]:
    """Returns the names of all settings by their group."""
    return {group: list(settings.model_fields) for group, settings in GROUPS.items()}
