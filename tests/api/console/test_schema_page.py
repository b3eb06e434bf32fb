"""The console's page of a topic's schema: its versions, what each change means, and the form for the next one."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.api.console.test_console import console
from tests.support.browser import chromium

pytestmark = [
    pytest.mark.process,
    pytest.mark.long,
    pytest.mark.skipif(
        not chromium() and not os.environ.get("CI"), reason="there is no Chromium: `make chromium` installs it"
    ),
]
FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "city", "type": "string", "required": True},
    {"id": 2, "name": "n", "type": "int", "doc": "how many"},
]


async def test_versions_warnings_and_the_next_version_are_shown(tmp_path: Path) -> None:
    async with console(tmp_path) as (page, serving, http):
        config = {"format": "typed", "schema": {"fields": FIELDS}}
        assert (await http.put("/v1/topics/rides", json=config)).status_code == 201
        await http.put("/v1/topics/plain")
        await page.open(f"{serving.url}/#/topics/rides/schema")
        await page.shows("0 (newest)", "how many", "Next version")
        schema = "document.querySelector('textarea')"
        put = f"{schema}.dispatchEvent(new Event('input', {{bubbles: true}}))"
        await page.run(f"{schema}.value = {schema}.value.replace('\"n\"', '\"count\"'); {put}")
        await page.click("Check")
        await page.shows("This would become version 1.", "'n' is renamed to 'count': brokers refuse messages")
        assert (await http.get("/v1/topics/rides")).json()["schema_id"] == 0
        await page.click("Change")
        await page.shows("1 (newest)", "'n' is renamed to 'count'")
        names = "[...document.querySelectorAll('tbody tr')].map((one) => one.innerText.split('\\t')[4])"
        await page.until(f"{names}[1].trim() === 'n'")
        await page.fill("Version", "0")
        await page.until(f"{names}[1].trim() === '–' && !document.querySelector('[aria-label=Warnings]')")
        await page.run(
            f"{schema}.value = {schema}.value.replace('\"long\"', '\"int\"').replace('\"string\"', '\"int\"'); {put}"
        )
        await page.click("Change")
        await page.shows("Request failed", "only int to long")
        await page.open(f"{serving.url}/?#/topics/rides/files")
        await page.shows('EXCLUDE ("n") REPLACE (coalesce("count", "n") AS "count")', 'extra_columns="ignore"')
        await page.open(f"{serving.url}/?#/topics/plain/files")
        await page.shows("No files yet")
        await page.until(
            "document.querySelector('.tabs') && !document.querySelector('.tabs').innerText.includes('Schema')"
        )
