"""Links to payloads end with the token that got them."""

import asyncio
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.brokers.in_process_cluster import until
from tests.support.http.with_tokens import EVERYTHING, Http, access, id_of


async def test_links_end_no_later_than_the_token_that_got_them(tmp_path: Path) -> None:
    async with access(tmp_path, 2) as http:
        await http.principal("p", EVERYTHING)
        uploads = "/v1/topics/a/uploads"
        made = (await http("POST", uploads, http.admin, json={"size": 3})).json()
        assert await http.status("PUT", made["url"].removeprefix("http://b0"), content=b"abc", token=None) < 300
        message = {"reference": {"upload_id": made["upload_id"]}}
        published = await http("POST", "/v1/topics/a/messages", http.admin, json=message)
        assert published.status_code == 200, published.text
        for name in ("s0", "s1"):
            await http("PUT", f"/v1/topics/a/subscriptions/{name}", http.admin, json={"start": "earliest"})
        token = await http.token(principal="p", expires_s=60)
        shown = (await http("GET", f"/v1/tokens/{id_of(token)}", http.admin)).json()
        until_s = datetime.fromisoformat(shown["expires_at"]).timestamp()
        for broker in range(2):
            found = [await linked(http, token, broker), (await http("POST", uploads, token, json={"size": 3})).text]
            assert all(until_s - 30 < end <= until_s for text in found for end in ends_of(text)), found
            assert all(ends_of(text) for text in found)
            for path, one in (
                ("/v1/topics/a/stream", http.admin),  # what others have just got is kept, with its links
                ("/v1/topics/a/stream", token),
                ("/v1/topics/a/stream", http.admin),
                (f"/v1/topics/a/subscriptions/s{broker}/stream", token),
            ):
                ends = await ends_in_stream(http, path, one, broker)
                assert ends
                assert all((end <= until_s) == (one == token) for end in ends), (path, one == token)
        assert ends_of(await linked(http, http.admin, 0))[0] > until_s + 60, "others have links that last"


async def linked(http: Http, token: str, broker: int) -> str:
    """The topic's messages, with their links."""
    return (await http("GET", "/v1/topics/a/segments/0/messages?offset=0", token, broker)).text


async def ends_in_stream(http: Http, path: str, token: str, broker: int) -> list[int]:
    """When the links in the first messages of a stream end."""
    sent: list[Any] = []
    task = asyncio.create_task(http.stream(path, token, broker, sent, b"start=earliest"))
    await until(lambda: any(ends_of(str(part.get("body"))) for part in sent))
    task.cancel()
    await asyncio.wait([task])
    return [end for part in sent for end in ends_of(str(part.get("body")))]


def ends_of(text: str) -> list[int]:
    """When the links in an answer end."""
    return [int(found) for found in re.findall(r"expires=(\d+)", text)]
