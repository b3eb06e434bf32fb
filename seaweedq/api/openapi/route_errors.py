"""The errors that a route can answer with, of all those that share a status: what OpenAPI says of each route.

An error that is about something is one of the routes that have it in their path, or take it in their body.
"""

from seaweedq import errors
from seaweedq.api.problems import STATUS
from seaweedq.api.routes import SEGMENT, SUBSCRIPTION, TOPIC, UPLOAD

PUBLISH = f"POST {TOPIC}/messages"
RESHAPES = tuple(f"POST {SEGMENT}/{change}" for change in ("split", "merge", "roll"))
# A first publish or upload creates its topic, a subscription its topic for dead letters.
CREATES = (f"PUT {TOPIC}", PUBLISH, f"POST {TOPIC}/uploads", f"PUT {SUBSCRIPTION}", f"PATCH {SUBSCRIPTION}")
LEASED = tuple(f"POST {SUBSCRIPTION}/{verb}" for verb in ("pull", "ack", "nack", "extend"))
READ = (f"GET {SEGMENT}/messages", f"GET {TOPIC}/stream", f"GET {TOPIC}/offsets")
OF_UPLOADS = (f"* {UPLOAD}", f"POST {TOPIC}/uploads", f"* {TOPIC}/imports", PUBLISH)
NEVER: tuple[str, ...] = ()
# Routes; `*` is each method, and all that is below the path. An error that is not here is one of every route with its
# status.
ROUTES_OF: dict[type[errors.SeaweedqError], tuple[str, ...]] = {
    errors.ForeignOrigin: NEVER,  # of every route, and nothing that a client of the document meets
    errors.PeerRefused: NEVER,
    errors.RouteNotFound: NEVER,
    errors.InvalidPositions: (f"GET {TOPIC}/stream", f"GET {SUBSCRIPTION}/stream"),
    errors.TopicNotFound: (f"* {TOPIC}", "PUT /v1/principals/{principal}"),
    errors.SegmentNotFound: (f"* {SEGMENT}",),
    errors.SubscriptionNotFound: (f"* {SUBSCRIPTION}",),
    errors.PrincipalNotFound: ("* /v1/principals", "POST /v1/tokens"),
    errors.TokenNotFound: ("* /v1/tokens/{token}",),
    errors.UploadNotFound: OF_UPLOADS,
    errors.PayloadNotFound: (f"GET {SEGMENT}/messages/{{offset}}/payload", f"GET {UPLOAD}/content"),
    errors.TopicConflict: (f"PUT {TOPIC}", f"PATCH {TOPIC}", f"PUT {SUBSCRIPTION}", f"PATCH {SUBSCRIPTION}"),
    errors.SubscriptionConflict: (f"* {SUBSCRIPTION}",),
    errors.SegmentConflict: (*RESHAPES, f"POST {SEGMENT}/move"),
    errors.TopicBeingDeleted: (f"* {TOPIC}",),
    errors.SequenceOutOfOrder: (PUBLISH, f"POST {TOPIC}/imports"),
    errors.NoDeadLetters: (f"POST {SUBSCRIPTION}/nack",),
    errors.LevelConflict: ("POST /v1/cluster/level",),
    errors.UploadIncomplete: OF_UPLOADS,
    errors.UploadConflict: OF_UPLOADS,
    errors.LeaseOfAnother: LEASED,
    errors.UploadExpired: OF_UPLOADS,
    errors.LeaseEnded: LEASED,
    errors.BelowRetention: READ,
    errors.MessageTooLarge: (PUBLISH, f"POST {TOPIC}/imports"),
    errors.PayloadTooLarge: (f"POST {TOPIC}/uploads",),
    errors.BadRequest: NEVER,  # those below it have titles of their own
    errors.InvalidName: (f"* {TOPIC}", "* /v1/principals"),
    errors.InvalidMessages: (PUBLISH,),
    errors.UploadMismatch: OF_UPLOADS,
    errors.InvalidUpload: OF_UPLOADS,
    errors.InvalidImport: (f"POST {TOPIC}/imports",),
    errors.TooManyUploads: (f"POST {TOPIC}/uploads",),
    errors.TooManyTopics: CREATES,
    errors.TooManySegments: (*CREATES, *RESHAPES, f"POST {SUBSCRIPTION}/seek"),
    errors.Unavailable: NEVER,
    errors.PartlyTaken: (PUBLISH, f"POST {TOPIC}/imports"),
    errors.PeerTooOld: (f"* {TOPIC}",),
    errors.NotOwner: (f"* {TOPIC}",),
    errors.JournalUnavailable: (PUBLISH, *LEASED),
    errors.StoreUnavailable: (f"* {TOPIC}",),
    errors.Fenced: NEVER,
}


def titles(status: int, method: str, path: str) -> list[str]:
    """Returns the titles of the errors of a status that a route can answer with."""
    kinds = [kind for kind, one in STATUS.items() if one == status and not issubclass(kind, errors.ClientError)]
    return sorted({kind.title for kind in kinds if _is_of(kind, method, path)})


def _is_of(kind: type[errors.SeaweedqError], method: str, path: str) -> bool:
    routes = ROUTES_OF.get(kind)
    if routes is None:
        return True
    named = (route.split(" ", 1) for route in routes)
    return any(
        (one == method and path == start) or (one == "*" and f"{path}/".startswith(f"{start}/")) for one, start in named
    )
