"""The part `config` of the chart's values.schema.json, made from seaweedq.settings.Settings.

scripts/settings_doc.py writes it along with docs/reference/settings.md, and checks both. All other parts of the
schema are written by hand.
"""

import json
from pathlib import Path
from typing import Any

from seaweedq.settings import Settings

SCHEMA = Path(__file__).parent.parent / "helm" / "seaweedq" / "values.schema.json"
# Settings that the chart fills from values of its own, and the two that are for one machine alone.
CHART_SETS = {
    *("advertise_url", "cluster_secret", "coordination", "data_dir", "host", "journal", "name", "port", "zone"),
    *("advertise_peer_url", "peer_port"),
    *("etcd_ca_file", "etcd_cert_file", "etcd_key_file", "etcd_password", "etcd_prefix", "etcd_user"),
    *("admin_token_file", "tls_ca_file", "tls_cert_file", "tls_key_file"),
    *("s3_addressing", "s3_endpoints", "store"),
    *("allowed_hosts", "brokers", "member"),
}
LEFT_OUT = {"title", "description", "default"}


def text() -> str:
    """Returns the whole schema with `config` as the settings say it."""
    schema = json.loads(SCHEMA.read_text())
    schema["properties"]["config"] = config()
    return json.dumps(schema, indent=1) + "\n"


def config() -> dict[str, Any]:
    """Returns the schema of `config`: each setting that the chart does not fill itself, with its type and bounds.

    `auth` must be said there, so that helm refuses an upgrade before a pod that would not start replaces another one.
    """
    fields = Settings.model_json_schema()["properties"]
    fields["auth"]["enum"].remove("auto")  # a pod is never on loopback alone, and with `auto` would not start
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["auth"],
        "properties": {
            name: {key: value for key, value in _given(field).items() if key not in LEFT_OUT}
            for name, field in fields.items()
            if name not in CHART_SETS
        },
    }


def _given(field: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a value that is given: none is left out, not null."""
    return next((one for one in field.get("anyOf", ()) if one["type"] != "null"), field)
