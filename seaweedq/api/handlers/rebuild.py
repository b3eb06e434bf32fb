"""The rebuild of coordination from the store, by a broker that waits for one. It answers before the broker is ready, to
the token of `admin_token_file`: nobody else is known without coordination."""

from typing import Annotated

from fastapi import Response
from msgspec import Meta, Struct

from seaweedq.access.rights import Action
from seaweedq.api.parameters import json_answer
from seaweedq.api.routes import OF_BODIES, Router
from seaweedq.api.services import PartsDep, body
from seaweedq.broker.rebuild import Report, TopicPlan, Wish, losses
from seaweedq.errors import RebuildConflict

MAX_JOURNALS, MAX_NAME = 1_000, 256
router = Router("cluster")


class RebuildRequest(Struct, forbid_unknown_fields=True):
    """With `dry_run` nothing changes, and the answer is the plan. `without_journals` are brokers whose unreadable
    journals may be lost. `without_tokens` drops principals and tokens."""

    dry_run: bool = False
    without_journals: Annotated[list[Annotated[str, Meta(max_length=MAX_NAME)]], Meta(max_length=MAX_JOURNALS)] = []
    without_tokens: bool = False


class RebuiltTopic(Struct):
    """The differences of a topic from the state that was taken: segments that were sealed since, that began since, and
    that are closed because their ends are gone; uploads that count as published, and imports that go on further behind.
    A topic with `damage` waits: it takes and gives nothing."""

    topic: str
    segments_ended: int
    segments_begun: int
    segments_closed: int
    uploads_kept: int
    imports_moved: int
    damage: list[str]


class RebuildAnswer(Struct):
    """The new `generation` of coordination, 0 if nothing was done. `source` is the state that was taken: a snapshot,
    coordination itself, or nothing but the store; with its generation, number and revision.

    `keys` is the number of keys that coordination gets. `journals` are replayed as brokers join; `left_out` are lost;
    those in `hindering`, with the reason, keep a rebuild from being done. Backups that are `damaged` were not used;
    those that are `unverified` give no rights, and are used only if no snapshot is verified. `may_be_lost` says in
    words what is not as it was.
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
    "may_be_lost": ["uploads that were begun since the state, and links that were given out"],
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
    """Rebuilds coordination from the store, after it was lost or went back to a backup, on a broker that waits for it.

    It may take minutes, and goes on if its client goes away; another request waits for the same end, or begins an
    interrupted rebuild anew. With `auth`, only the token of `admin_token_file` counts until it is done; others get 503
    `not-ready`. 409 `rebuild-conflict`: this broker serves, another rebuild is under way, a journal cannot be read, or
    one to leave out is unknown.
    """
    waiting = parts.broker.waiting
    if waiting is None and not wanted.dry_run and await parts.broker.begin_to_wait():
        raise RebuildConflict("topics wait for a rebuild: all brokers stop to serve now, for it. Ask again in a moment")
    if waiting is None:
        raise RebuildConflict("this broker serves, or starts: it has seen no sign that coordination went back")
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
