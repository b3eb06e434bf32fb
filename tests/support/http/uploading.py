"""Uploads as a bare HTTP client does them."""

import hashlib
from typing import Any

import httpx

BYTES = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(BYTES).hexdigest()


def begin(http: httpx.Client, topic: str, size: int = len(BYTES), **more: Any) -> dict[str, Any]:
    """A new upload."""
    answer = http.post(f"{topic}/uploads", json={"size": size, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


def put(http: httpx.Client, upload: dict[str, Any], content: Any = BYTES, **headers: str) -> httpx.Response:
    """Its bytes, where it says."""
    return http.put(upload["url"], content=content, headers={**upload["headers"], **headers})


def uploaded(http: httpx.Client, topic: str, content: bytes = BYTES, **more: Any) -> dict[str, Any]:
    """An upload whose bytes are there."""
    upload = begin(http, topic, len(content), **more)
    assert put(http, upload, content).status_code == 201
    return upload


def problem_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and slug of a problem."""
    return answer.status_code, answer.json()["type"].rpartition("/")[2]
