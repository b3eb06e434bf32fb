"""Reads brokers' metrics for commands. A broker that the user did not name receives the token only over https or on
loopback, as with the client."""

import re

from seaweedq.cli.shared.contexts import credentials_of
from seaweedq.errors import ClientError

_ANSWER_S = 10.0
_SAMPLE = re.compile(r"^(\w+(?:\{[^\n]*\})?) (\S+)$", re.MULTILINE)


def metrics_text(url: str, address: str) -> str:
    """Returns the metrics of the broker at an address, as text. `url` names the command's brokers. Raises
    ClientError."""
    import httpx

    from seaweedq.client.core.attempts import may_see_token, parse_urls

    credentials, address = credentials_of(url), address.rstrip("/")
    is_trusted = address in parse_urls(url) or may_see_token(address)
    try:
        answer = httpx.get(
            f"{address}/metrics",
            headers=credentials.headers() if is_trusted else {},
            timeout=_ANSWER_S,
            verify=credentials.verify(address),
        )
    except httpx.HTTPError as error:
        raise ClientError(f"{address} does not answer: {error}") from None
    if answer.status_code != 200:
        raise ClientError(f"{address} answers {answer.status_code}: {answer.text[:300]}")
    return answer.text


def samples_of(text: str) -> dict[str, float]:
    """Parses a scrape: values by metric name with labels."""
    return {name: float(value) for name, value in _SAMPLE.findall(text)}
