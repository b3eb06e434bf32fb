"""The versions of a typed topic's schema. A change of the topic (handlers/topics) makes the next version."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

from fastapi import Response
from msgspec import Struct

from seaweedq.access.rights import Action
from seaweedq.api.parameters import PathSchema, PathTopic, json_answer
from seaweedq.api.routes import TOPIC, Router
from seaweedq.api.services import Parts, given
from seaweedq.broker.topics import Catalog, SchemaVersions


class SchemasAnswer(Struct):
    """The ids of all versions of a topic's schema, from oldest to newest."""

    schema_ids: list[int]


class SchemaAnswer(Struct):
    """A version of a topic's schema, in Iceberg's JSON format. `schema_id` is the version's id. `warnings` says how
    each field that this version renames or drops affects publishers and readers of files."""

    schema_id: int
    schema: dict[str, Any]
    warnings: list[str]


FIELDS = [
    {"id": 1, "name": "carrier", "required": True, "type": "string"},
    {"id": 2, "name": "delay", "required": False, "type": "long"},
]
SHOWN = {"schema_id": 1, "schema": {"type": "struct", "schema-id": 1, "fields": FIELDS}, "warnings": []}


@dataclass(frozen=True)
class SchemaServices:
    """The services of these routes."""

    catalog: Catalog
    schemas: SchemaVersions

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.broker.catalog, parts.broker.schemas)


Services = Annotated[SchemaServices, given(SchemaServices)]
router = Router("topics")


@router.route(
    "GET",
    f"{TOPIC}/schemas",
    Action.DESCRIBE,
    "listSchemas",
    "List the versions of a topic's schema",
    answers={200: SchemasAnswer},
    refuses=(404, 409),
    shows={"schema_ids": [0, 1]},
)
async def list_schemas(services: Services, topic: PathTopic) -> Response:
    """Lists the ids of all versions of a typed topic's schema. For other topics, the list is empty."""
    found = await services.catalog.require(topic)
    return json_answer(SchemasAnswer([*await services.schemas.ids(found)]))


@router.route(
    "GET",
    f"{TOPIC}/schemas/{{schema}}",
    Action.DESCRIBE,
    "getSchema",
    "Get a version of a topic's schema",
    answers={200: SchemaAnswer},
    refuses=(404, 409),
    shows=SHOWN,
)
async def show_schema(services: Services, topic: PathTopic, schema: PathSchema) -> Response:
    """Returns one version of a typed topic's schema, and the warnings for the change that made this version."""
    found = await services.catalog.require(topic)
    fields = await services.schemas.read(found, schema)
    return json_answer(SchemaAnswer(schema, fields, await services.schemas.warnings(found, schema, fields)))
