"""The metrics of a broker under measurement, as it says them itself."""

import httpx


def metrics_of(url: str) -> dict[str, float]:
    """Returns the value of each metric by its name, with its labels as in the text: `name{label="value"}`."""
    lines = httpx.get(f"{url}/metrics", trust_env=False, timeout=30).raise_for_status().text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
