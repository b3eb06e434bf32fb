"""Rebuilds coordination from the store, at a broker that waits for a rebuild. The route answers before the broker is
ready, and accepts only the token of `admin_token_file`, because other tokens are unknown without coordination."""

from typing import Annotated

from fastapi import Response
from msgspec import Meta, Struct

from seaweedq.access.rights import Action
from seaweedq.api.parameters import json_answer
from seaweedq.api.routes import OF_BODIES, Router
from seaweedq.api.services import PartsDep, body
from seaweedq.broker.rebuild import COMMAND, Report, TopicPlan, Wish, losses
from seaweedq.errors import RebuildConflict, Restored

MAX_JOURNALS, MAX_NAME = 1_000, 256
router = Router("cluster")


class RebuildRequest(Struct, forbid_unknown_fields=True):
    """With `dry_run`, nothing changes, and the answer is the plan. `without_journals` lists brokers whose unreadable
    journals you give up. `without_tokens` removes all principals and tokens."""

    dry_run: bool = False
    without_journals: Annotated[list[Annotated[str, Meta(max_length=MAX_NAME)]], Meta(max_length=MAX_JOURNALS)] = []
    without_tokens: bool = False


class RebuiltTopic(Struct):
    """How a topic differs from the state that the rebuild started from: segments sealed since, segments created since,
    segments closed because their ends are lost, uploads that now count as published, and imports that resume at a later
    row. A topic with `damage` waits: it accepts and delivers no messages."""

    topic: str
    segments_ended: int
    segments_begun: int
    segments_closed: int
    uploads_kept: int
    imports_moved: int
    damage: list[str]


class RebuildAnswer(Struct):
    """`generation` is the new generation of coordination, or 0 if nothing changed. `source` is the state that the
    rebuild started from (a snapshot, coordination itself, or the store alone), with its generation, number and
    revision.

    `keys` is the number of keys written to coordination. `journals` are replayed when their brokers join; journals in
    `left_out` are lost; journals in `hindering` block the rebuild, and each has its reason. Backups in `damaged` were
    not used. Backups in `unverified` grant no rights, and are used only if no snapshot is verified. `may_be_lost`
    describes in words what may differ from the state before the loss.
    """

    generation: int
    source: str
    state_generation: int
    state_number: int
    state_revision: int
    keys: int
    journals: list[str]
    left_out: list[str]
    hindering: dict[str, str]
    damaged: list[str]
    unverified: list[str]
    topics: list[RebuiltTopic]
    may_be_lost: list[str]


_EXAMPLE = {
    "generation": 2,
    "source": "snapshot",
    "state_generation": 1,
    "state_number": 1441,
    "state_revision": 90210,
    "keys": 412,
    "journals": ["broker.1f2e"],
    "left_out": [],
    "hindering": {},
    "damaged": [],
    "unverified": [],
    "topics": [
        {
            "topic": "flights",
            "segments_ended": 1,
            "segments_begun": 2,
            "segments_closed": 0,
            "uploads_kept": 0,
            "imports_moved": 0,
            "damage": [],
        }
    ],
    "may_be_lost": [
        ("uploads that were started after the state on which the rebuild is based, and signed URLs issued since then")
    ],
}


@router.route(
    "POST",
    "/v1/cluster/rebuild",
    Action.CLUSTER,
    "rebuildCluster",
    "Rebuild coordination from the store",
    answers={200: RebuildAnswer},
    refuses=(*OF_BODIES, RebuildConflict),
    shows=_EXAMPLE,
)
async def rebuild(
    parts: PartsDep, wanted: Annotated[RebuildRequest, body(RebuildRequest, {"dry_run": True})]
) -> Response:
    """Rebuilds coordination from the store after coordination was lost or restored from a backup. Send the request to a
    broker that is waiting for a rebuild.

    A rebuild may take minutes, and continues if the client disconnects. A second request waits for the running rebuild,
    or restarts an interrupted rebuild. With `auth`, only the token of `admin_token_file` is valid until the rebuild is
    done; other callers get 503 `not-ready`. 409 `rebuild-conflict` means that this broker is serving, another rebuild
    is running, a journal cannot be read, or `without_journals` names an unknown journal."""
    waiting = parts.broker.waiting
    if waiting is None and not wanted.dry_run and await parts.broker.begin_to_wait():
        raise Restored(
            "some topics can be served again only after a rebuild, so all brokers now stop serving requests to prepare "
            "for it; send this rebuild request again as soon as this broker's /readyz answers 503",
            command=COMMAND,
        )
    if waiting is None:
        raise RebuildConflict(
            "rebuild refused: this broker is serving or starting, and has seen no sign that "
            "coordination was lost or restored to an earlier state"
        )
    wish = Wish(frozenset(wanted.without_journals), wanted.without_tokens)
    report = await (waiting.propose(wish) if wanted.dry_run else waiting.rebuild(wish))
    return json_answer(_answer(report))


def _answer(report: Report) -> RebuildAnswer:
    made = report.plan
    return RebuildAnswer(
        report.generation,
        report.source,
        report.state.generation,
        report.state.number,
        report.state.revision,
        len(made.keys),
        list(made.journals),
        list(made.left_out),
        dict(report.hindered),
        list(report.damaged),
        list(report.unverified),
        [_topic(name, one) for name, one in sorted(made.topics.items()) if one.differs],
        losses(made, report.source),
    )


def _topic(name: str, one: TopicPlan) -> RebuiltTopic:
    return RebuiltTopic(name, one.ended, one.begun, one.closed, one.uploads, one.imports, list(one.damage))
