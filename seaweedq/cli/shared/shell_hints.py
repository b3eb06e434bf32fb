"""Commands to paste: how to reach a topic from curl, SQL and, in a session of its own, Spark.

Where a broker asks for tokens, curl reads the header that shows one from a pipe (`-H @-`): so no token is printed, and
none is among the arguments of a process, which every user of a machine sees.
"""

import re
from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # which `seaweedq topic show` needs not, and takes long to import
    from seaweedq.settings import Settings


def lines(url: str, topic: str, path: str, value: str = '{"n": 1}', header: str = "") -> list[str]:
    """Returns commands for a topic: `url` is a broker's, `path` the topic's directory on the store, as a URL.

    `value` is a valid value of the topic, as JSON; if it is empty, no command publishes. `header` is the command of a
    shell that prints the header with the token; if it is empty, curl shows none.
    """
    curl = f"{header} | curl -H @-" if header else "curl"
    body = f"-H 'content-type: application/json' -d '{{\"value\": {value}}}'"
    publish = f"{curl} {url}/v1/topics/{topic}/messages {body}"
    shown = f"{curl} {url}/v1/topics/{topic}"
    fetch = f"{curl} '{url}/v1/topics/{topic}/segments/0/messages?limit=2'"
    return [
        *([publish, shown] if value else [shown, fetch]),
        f"seaweedq pull {topic} --subscription mine --start earliest --url {url}",
        f"seaweedq sql {quote(_count(topic))} --url {url}",
        f'spark.read.parquet("{location(path)}").show()  # in pyspark',
    ]


def server_lines(settings: "Settings", url: str, topic: str) -> list[str]:
    """Returns the commands that a broker with these settings greets with. Where it asks for tokens the first one names
    the file of a token, from which the others take it."""
    path = f"{settings.store_path}/topics/{topic}"
    if settings.auth != "required":
        return lines(url, topic, path)
    file = settings.admin_token_path
    named = quote(str(file.absolute())) if file else "FILE-WITH-YOUR-TOKEN"
    return [f"export SEAWEEDQ_TOKEN_FILE={named}", *lines(url, topic, path, header=_of_file(named))]


def header_of(environment: Mapping[str, str]) -> str:
    """Returns the command of a shell that prints the header with the token that a client takes from these variables;
    empty if it takes none."""
    if environment.get("SEAWEEDQ_TOKEN"):
        return """printf 'Authorization: Bearer %s' "$SEAWEEDQ_TOKEN\""""  # a builtin: no process has the token
    return _of_file('"$SEAWEEDQ_TOKEN_FILE"') if environment.get("SEAWEEDQ_TOKEN_FILE") else ""


def _of_file(named: str) -> str:
    return f"sed 's/^/Authorization: Bearer /' {named}"


def _count(topic: str) -> str:
    name = topic if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", topic) else f'"{topic}"'
    return f"SELECT segment, count(*) FROM {name} GROUP BY segment"


def location(path: str) -> str:
    """Returns a directory as Spark expects it: a plain path for a file:// URL, and s3a:// for s3://."""
    return re.sub("^s3://", "s3a://", path.removeprefix("file://").rstrip("/"))
