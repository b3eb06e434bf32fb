"""The operations of the OpenAPI document as people name them, in the order of use, and what leads from one to another.

Generated clients have their functions and modules by these names: they are as public as the routes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from seaweedq.api.routes import SEGMENT, SUBSCRIPTION, TOPIC, UPLOAD

TAGS: Mapping[str, str] = {
    "topics": "Create, look at, change and delete topics. A publish to a topic that does not exist creates it.",
    "publish": "Publish messages. An answer of 200 says that they are durable.",
    "subscriptions": "Consume messages: each subscription keeps what is not acked, and shares it among its consumers.",
    "read": "Read messages without a subscription: from an offset, as a stream, or as files.",
    "uploads": "Upload large payloads, which messages then name. Bytes go to the store itself where it signs URLs.",
    "imports": "Publish the rows of an uploaded file as messages.",
    "segments": "Look at a topic's segments; split, merge, roll and move them by hand, as the balancer does.",
    "access": "Principals and their tokens, where the cluster asks for tokens.",
    "cluster": "The cluster's brokers and level; health and metrics of one broker.",
}


class Operation(NamedTuple):
    """An operation: its method and path, its id, a summary, and its tag."""

    method: str
    path: str
    id: str
    summary: str
    tag: str


OPERATIONS = tuple(
    Operation(*one)
    for one in (
        ("GET", "/v1/topics", "listTopics", "List topics", "topics"),
        ("PUT", TOPIC, "createTopic", "Create a topic", "topics"),
        ("GET", TOPIC, "getTopic", "Get a topic", "topics"),
        ("PATCH", TOPIC, "updateTopic", "Change a topic", "topics"),
        ("DELETE", TOPIC, "deleteTopic", "Delete a topic", "topics"),
        ("POST", f"{TOPIC}/flush", "flushTopic", "Write a topic's newest messages to files", "topics"),
        ("POST", f"{TOPIC}/messages", "publishMessages", "Publish messages", "publish"),
        ("GET", "/v1/subscriptions", "listAllSubscriptions", "List the subscriptions of all topics", "subscriptions"),
        ("GET", f"{TOPIC}/subscriptions", "listSubscriptions", "List a topic's subscriptions", "subscriptions"),
        ("PUT", SUBSCRIPTION, "createSubscription", "Create a subscription", "subscriptions"),
        ("GET", SUBSCRIPTION, "getSubscription", "Get a subscription and its lag", "subscriptions"),
        ("PATCH", SUBSCRIPTION, "updateSubscription", "Change a subscription", "subscriptions"),
        ("DELETE", SUBSCRIPTION, "deleteSubscription", "Delete a subscription", "subscriptions"),
        ("POST", f"{SUBSCRIPTION}/pull", "pullMessages", "Pull messages", "subscriptions"),
        ("POST", f"{SUBSCRIPTION}/ack", "ackMessages", "Ack messages", "subscriptions"),
        ("POST", f"{SUBSCRIPTION}/nack", "nackMessages", "Give messages back", "subscriptions"),
        ("POST", f"{SUBSCRIPTION}/extend", "extendLeases", "Extend the leases of messages", "subscriptions"),
        ("GET", f"{SUBSCRIPTION}/stream", "streamSubscription", "Stream a subscription's messages", "subscriptions"),
        ("POST", f"{SUBSCRIPTION}/seek", "seekSubscription", "Move a subscription in time", "subscriptions"),
        ("GET", f"{SEGMENT}/messages", "fetchMessages", "Fetch a segment's messages from an offset", "read"),
        ("GET", f"{SEGMENT}/messages/{{offset}}/payload", "getPayload", "Get a message's payload", "read"),
        ("GET", f"{TOPIC}/stream", "streamTopic", "Stream a topic's messages", "read"),
        ("GET", f"{TOPIC}/offsets", "findOffsets", "Find the offsets of a time", "read"),
        ("GET", f"{TOPIC}/files", "listFiles", "List a topic's files", "read"),
        ("POST", f"{TOPIC}/uploads", "createUpload", "Begin an upload", "uploads"),
        ("GET", UPLOAD, "getUpload", "Get an upload", "uploads"),
        ("POST", f"{UPLOAD}/parts", "signParts", "Sign URLs for parts of an upload", "uploads"),
        ("PUT", f"{UPLOAD}/content", "putContent", "Put an upload's bytes", "uploads"),
        ("POST", f"{UPLOAD}/complete", "completeUpload", "Complete an upload", "uploads"),
        ("DELETE", UPLOAD, "abortUpload", "Abort an upload", "uploads"),
        ("GET", f"{UPLOAD}/content", "getContent", "Get the bytes of a payload by its signed URL", "uploads"),
        ("POST", f"{TOPIC}/imports", "importUpload", "Import a file's rows as messages", "imports"),
        ("GET", f"{TOPIC}/imports/{{upload}}", "getImport", "Get an import", "imports"),
        ("GET", f"{TOPIC}/segments", "listSegments", "List a topic's segments", "segments"),
        ("GET", SEGMENT, "getSegment", "Get a segment", "segments"),
        ("GET", f"{TOPIC}/history", "getHistory", "Get the key space over time", "segments"),
        ("POST", f"{SEGMENT}/split", "splitSegment", "Split a segment", "segments"),
        ("POST", f"{SEGMENT}/merge", "mergeSegments", "Merge neighbouring segments", "segments"),
        ("POST", f"{SEGMENT}/roll", "rollSegment", "Roll a segment", "segments"),
        ("POST", f"{SEGMENT}/move", "moveSegment", "Move a segment to another broker", "segments"),
        ("GET", "/v1/whoami", "whoAmI", "Show whose token it is, and its rights", "access"),
        ("GET", "/v1/principals", "listPrincipals", "List principals", "access"),
        ("PUT", "/v1/principals/{principal}", "putPrincipal", "Create or change a principal", "access"),
        ("GET", "/v1/principals/{principal}", "getPrincipal", "Get a principal", "access"),
        ("DELETE", "/v1/principals/{principal}", "deletePrincipal", "Delete a principal", "access"),
        ("GET", "/v1/tokens", "listTokens", "List tokens", "access"),
        ("POST", "/v1/tokens", "createToken", "Issue a token", "access"),
        ("GET", "/v1/tokens/{token}", "getToken", "Get a token's facts", "access"),
        ("DELETE", "/v1/tokens/{token}", "revokeToken", "Revoke a token", "access"),
        ("GET", "/v1/cluster", "getCluster", "Get the brokers and the leader", "cluster"),
        ("POST", "/v1/cluster/level", "raiseLevel", "Raise the cluster's level", "cluster"),
        ("POST", "/v1/cluster/confirm", "confirmRestore", "Confirm a restored coordination", "cluster"),
        ("GET", "/healthz", "isAlive", "Tell whether the broker lives", "cluster"),
        ("GET", "/readyz", "isReady", "Tell whether the broker takes requests", "cluster"),
        ("GET", "/metrics", "getMetrics", "Get the metrics of the broker", "cluster"),
        ("GET", "/", "getLinks", "Get links, or the console", "cluster"),
    )
)

_TOPIC = {"topic": "$request.path.topic"}
_SUBSCRIPTION = {**_TOPIC, "subscription": "$request.path.subscription"}
_BILLING = {**_TOPIC, "subscription": "billing"}
_SEGMENT = {**_TOPIC, "segment": "$request.path.segment"}
_LISTED = {**_TOPIC, "segment": "$response.body#/segments/0/id"}
_TAKEN = {**_TOPIC, "segment": "$response.body#/segments/0/segment"}
_MADE = {**_TOPIC, "upload": "$response.body#/upload_id"}
_UPLOAD = {**_TOPIC, "upload": "$request.path.upload"}
_PRINCIPAL = {"principal": "$request.path.principal"}
_TOKEN = {"token": "$response.body#/id"}
_LEASE = {"lease": "$response.body#/lease"}
# From an operation's answer of these statuses to other operations, with their parameters and, for some, a body.
LEADS: tuple[tuple[str, tuple[int, ...], tuple[str, ...], Mapping[str, str], Any], ...] = (
    ("getLinks", (200,), ("listTopics", "listAllSubscriptions", "listPrincipals"), {}, None),
    ("getLinks", (200,), ("listTokens", "getCluster", "whoAmI"), {}, None),
    ("getLinks", (200,), ("isAlive", "isReady", "getMetrics"), {}, None),
    ("listTopics", (200,), ("createTopic",), {"topic": "flights"}, None),
    ("listPrincipals", (200,), ("putPrincipal",), {"principal": "importer"}, None),
    (
        "createTopic",
        (200, 201),
        ("getTopic", "updateTopic", "listSubscriptions", "listSegments", "listFiles", "findOffsets"),
        _TOPIC,
        None,
    ),
    ("createTopic", (200, 201), ("publishMessages",), _TOPIC, {"messages": [{"key": "ada", "value": {"n": 1}}]}),
    ("createTopic", (200, 201), ("createUpload", "flushTopic", "getHistory", "deleteTopic"), _TOPIC, None),
    ("createTopic", (200, 201), ("createSubscription",), _BILLING, {"start": "earliest"}),
    ("createSubscription", (200, 201), ("getSubscription", "updateSubscription", "pullMessages"), _SUBSCRIPTION, None),
    ("createSubscription", (200, 201), ("seekSubscription", "deleteSubscription"), _SUBSCRIPTION, None),
    ("pullMessages", (200,), ("ackMessages", "nackMessages", "extendLeases"), _SUBSCRIPTION, _LEASE),
    ("publishMessages", (200,), ("fetchMessages",), _TAKEN, None),
    ("listSegments", (200,), ("getSegment", "fetchMessages", "rollSegment", "splitSegment"), _LISTED, None),
    ("listSegments", (200,), ("mergeSegments",), _LISTED, {"with": "$response.body#/segments/1/id"}),
    ("getSegment", (200,), ("moveSegment",), _SEGMENT, None),
    ("createUpload", (201,), ("getUpload", "signParts", "completeUpload", "abortUpload"), _MADE, None),
    ("completeUpload", (200,), ("importUpload",), _TOPIC, {"upload_id": "$request.path.upload", "format": "ndjson"}),
    ("importUpload", (200, 202), ("getImport",), {**_TOPIC, "upload": "$response.body#/upload_id"}, None),
    ("getUpload", (200,), ("abortUpload",), _UPLOAD, None),
    ("putPrincipal", (200, 201), ("getPrincipal", "deletePrincipal"), _PRINCIPAL, None),
    ("putPrincipal", (200, 201), ("createToken",), {}, {"principal": "$request.path.principal"}),
    ("createToken", (201,), ("getToken", "revokeToken"), _TOKEN, None),
)


def arrange(document: dict[str, Any]) -> None:
    """Names the operations of a document, puts them in order, and links them. Raises KeyError for one that has no
    name."""
    paths, there = document["paths"], {}
    order = {(one.method.lower(), one.path): place for place, one in enumerate(OPERATIONS)}
    for path in sorted(paths, key=lambda path: min(order[method, path] for method in paths[path])):
        there[path] = dict(sorted(paths[path].items(), key=lambda one: order[one[0], path]))
        for method, operation in there[path].items():
            named = OPERATIONS[order[method, path]]
            operation |= {"operationId": named.id, "summary": named.summary, "tags": [named.tag]}
    document["paths"] = there
    document["tags"] = [{"name": name, "description": about} for name, about in TAGS.items()]
    _link({operation["operationId"]: operation for methods in there.values() for operation in methods.values()})


def _link(operations: Mapping[str, dict[str, Any]]) -> None:
    for source, statuses, targets, parameters, body in LEADS:
        for status in statuses:
            links = operations[source]["responses"][str(status)].setdefault("links", {})
            for target in targets:
                link: dict[str, Any] = {"operationId": target, "parameters": dict(parameters)}
                links[target] = link if body is None else {**link, "requestBody": body}
