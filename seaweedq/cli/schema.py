"""`seaweedq schema`: show, compare, check and evolve the schema of a typed topic."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, connect, counted, path_text, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_json, say_table

app = typer.Typer(no_args_is_help=True, help="Show, compare, check and evolve the schema of a typed topic.")
SHOW = "Examples: seaweedq schema show rides · seaweedq schema show rides --version 0 -o json > rides-0.json"
DIFF = "Example: seaweedq schema diff rides 0"
CHECK = "Example: seaweedq schema check rides wider.json"
EVOLVE = "Examples: seaweedq schema evolve rides wider.json · seaweedq schema evolve rides wider.json --if-version 0"
_FIELDS = columns("id, name, type, required, doc", numbers="id")
_CHANGES = columns("id, field, change, from, to", numbers="id")
Facts = Mapping[str, Any]
File = Annotated[
    Path,
    typer.Argument(
        exists=True,
        dir_okay=False,
        help="File with an Iceberg schema, in the format that `schema show -o json` prints.",
    ),
]
Version = Annotated[int, typer.Argument(min=0, help="ID of a version.", show_default=False)]


@app.command(epilog=SHOW)
def show(
    topic: Topic,
    version: Annotated[
        int | None, typer.Option(min=0, help="ID of a version of the schema; by default the newest.")
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the fields in one version of a topic's schema, or with `-o json` the schema itself."""
    with connect(url) as client:
        schema = client.schema(topic, version)
    if output == JSON:
        say_json(schema)
        return
    rows = (
        [str(one["id"]), one["name"], one["type"], "yes" if one.get("required") else "no", one.get("doc") or "-"]
        for one in schema["fields"]
    )
    say(f"topic {topic}, version {schema.get('schema-id', 0)} of its schema")
    say_table(output, _FIELDS, rows)


@app.command(epilog=DIFF)
def diff(
    topic: Topic,
    before: Version,
    after: Annotated[int | None, typer.Argument(min=0, help="ID of a later version; by default the newest.")] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the changes from version BEFORE of a topic's schema to version AFTER (by default the newest)."""
    if after is not None and after < before:
        raise typer.BadParameter(
            f"the version must be at least {before}, the version BEFORE, not {after}", param_hint="AFTER"
        )
    with connect(url) as client:
        found = list(changes(client.schema(topic, before), client.schema(topic, after)))
    if output == JSON:
        for one in found:
            say_json(one)
        return
    rows = ([str(one["id"]), one["field"], one["change"], one["from"] or "-", one["to"] or "-"] for one in found)
    say_table(output, _CHANGES, rows, "no field has changed")


@app.command(epilog=CHECK)
def check(topic: Topic, file: File, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Check whether a topic would accept a schema as the next version, without changing anything. The command prints
    how the new schema would affect publishers, and programs that read the topic's files. The exit code is 1 if the
    topic would refuse the schema; the error then lists all reasons."""
    with connect(url) as client:
        before = client.schema(topic)
        found = client.evolve_schema(topic, parsed(file), if_schema_id=before.get("schema-id", 0), dry_run=True)
    _tell(output, topic, before, found, "would become")


@app.command(epilog=EVOLVE)
def evolve(
    topic: Topic,
    file: File,
    if_version: Annotated[
        int | None, typer.Option(min=0, help="Refuse the change unless the newest version has this ID.")
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Add a schema as the next version of a topic's schema. You can add optional fields, reorder fields, widen types,
    and make required fields optional. With --if-version, you can also rename fields, and drop any field except the
    key field. If the topic's setting `compatibility` is `forward` or `full`, the topic refuses some of these changes
    to its schema."""
    with connect(url) as client:
        before = client.schema(topic)
        found = client.evolve_schema(topic, parsed(file), if_schema_id=if_version)
    _tell(output, topic, before, found, "is")


def _tell(output: str, topic: str, before: Facts, answer: Facts, verb: str) -> None:
    number, warnings = answer["schema_id"], answer["warnings"]
    found = list(changes(before, answer["schema"]))
    if output == JSON:
        say_json({"topic": topic, "schema_id": number, "changes": found, "warnings": warnings})
        return
    say(f"the schema of topic {topic} {verb} version {number}, with {counted(len(found), 'changed field')}")
    for one in found:
        told = f": {one['from'] or 'nothing'} to {one['to']}" if one["to"] else ""
        say(f"  {one['field']}: {one['change']}{told}")
    for warning in warnings:
        say(f"warning: {warning}")


def parsed(file: Path) -> Any:
    """Returns a schema file's content. Raises BadParameter, which names the file, for one that is not JSON."""
    import msgspec

    from seaweedq.json_reasons import in_words

    try:
        return msgspec.json.decode(file.read_bytes())
    except msgspec.DecodeError as error:
        raise typer.BadParameter(in_words(error), param_hint=path_text(file)) from error


def changes(before: Facts, after: Facts) -> Iterator[dict[str, Any]]:
    """Yields the changed fields between two versions: the dropped ones, then the others in the order of the later
    version."""
    known, kept = {one["id"]: one for one in before["fields"]}, {one["id"] for one in after["fields"]}
    for number, one in known.items():
        if number not in kept:
            yield {"id": number, "field": one["name"], "change": "dropped", "from": one["type"], "to": None}
    for one in after["fields"]:
        old, told = known.get(one["id"]), {"id": one["id"], "field": one["name"]}
        if old is None:
            yield {**told, "change": "added", "from": None, "to": one["type"]}
            continue
        if old["name"] != one["name"]:
            yield {**told, "change": "renamed", "from": old["name"], "to": one["name"]}
        if _plain(old["type"]) != _plain(one["type"]):
            yield {**told, "change": "wider type", "from": old["type"], "to": one["type"]}
        if bool(old.get("required")) != bool(one.get("required")):
            yield {**told, "change": "optional", "from": "required", "to": "optional"}


def _plain(kind: str) -> str:
    return kind.replace(" ", "")
