"""README's moving picture: in each frame the three terminals show the same number of messages."""

import re

from tests.support.paths import ROOT

ACKNOWLEDGED = re.compile(r">acknowledged ([\d,]+)<")
COUNTED = re.compile(r">(\d{2,})</text></g>")
WATCHED = re.compile(r"([\d.]+k) messages")


def test_all_terminals_show_the_same_numbers_of_messages() -> None:
    picture = (ROOT / "docs" / "images" / "readme.svg").read_text()
    counted = {int(number) for number in COUNTED.findall(picture)}
    assert len(counted) > 10
    assert {int(number.replace(",", "")) for number in ACKNOWLEDGED.findall(picture)} == counted
    assert set(WATCHED.findall(picture)) == {f"{number / 1000:.1f}k" for number in counted}
