"""What the tests of references share: payloads that were put to a broker, and references to them."""

import hashlib
from typing import Any

import httpx


def begin(http: httpx.Client, topic: str, size: int, **more: Any) -> dict[str, Any]:
    """A new upload, without its bytes; `topic` is a path."""
    answer = http.post(f"{topic}/uploads", json={"size": size, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def upload(http: httpx.Client, topic: str, content: bytes, **more: Any) -> str:
    """The id of an upload whose bytes are there."""
    made = begin(http, topic, len(content), **more)
    answer = http.request(made["method"], made["url"], content=content, headers=made["headers"])
    assert answer.status_code in (200, 201), answer.text
    return str(made["upload_id"])


def naming(upload_id: str, **more: Any) -> dict[str, Any]:
    """A message with that payload."""
    return {"reference": {"upload_id": upload_id}, **more}


def publish(http: httpx.Client, topic: str, *messages: dict[str, Any], **headers: str) -> list[str]:
    """Publish messages: their ids."""
    body = messages[0] if len(messages) == 1 else {"messages": messages}
    answer = http.post(f"{topic}/messages", json=body, headers={k.replace("_", "-"): v for k, v in headers.items()})
    assert answer.status_code == 200, answer.text
    ids: list[str] = answer.json()["ids"]
    return ids


def read(http: httpx.Client, topic: str, segment: int = 0, **options: Any) -> list[dict[str, Any]]:
    """The messages of a fetch."""
    answer = http.get(f"{topic}/segments/{segment}/messages", params=options)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def digest(content: bytes) -> str:
    """Its SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()
