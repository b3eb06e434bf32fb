"""What a client does with a signed request, as told or otherwise."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from seaweedq.storage.interface import PayloadStore, SignedRequest


async def send(signed: SignedRequest, data: bytes | AsyncIterator[bytes] | None, **other: Any) -> httpx.Response:
    """Send it, with another `url`, `method` or `headers` where they are given; a header of None is left out."""
    changed: Mapping[str, str | None] = other.pop("headers", {})
    headers = {name: value for name, value in {**signed.headers, **changed}.items() if value is not None}
    request = {"url": signed.url, "method": signed.method, **other}
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        return await client.request(**request, headers=headers, content=data)


async def status(signed: SignedRequest, data: bytes | AsyncIterator[bytes] | None = b"12345", **other: Any) -> int:
    """What the store answers."""
    return (await send(signed, data, **other)).status_code


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def bring(
    store: PayloadStore, name: str, data: bytes, size: int | None = None, sha256: str | None = None
) -> bool:
    """Make a payload in the store's own way, announced as that large and with that digest; whether it was taken."""
    size = len(data) if size is None else size
    if not store.presigns:
        return await store.receive(name, once(data), size, sha256) is not None
    signed = await store.presign_put(name, 60, size, "text/plain", sha256)
    answer = await send(signed, data, headers={"Content-Length": f"{len(data)}"})
    assert answer.status_code in (200, 400, 403, 412), answer.text
    return answer.status_code == 200


def key_of(store: PayloadStore, name: str) -> str:
    """The key in the bucket of an object in an S3 store."""
    return store.uri(name).split("/", 3)[3]
