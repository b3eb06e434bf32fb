"""Removes secrets from text: known secrets, and everything that looks like a secret. It removes too much rather than
too little."""

import re
from collections.abc import Callable, Iterable, Mapping

FEWEST = 4  # letters of a known secret: a shorter one would take pieces out of every word
_TAKEN = "***"
_QUOTED = r""""(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?"""
_TO_THE_END, _WORD = r"[^\n]*", r"[^\s,;&}]+"
_HEADERS = "(?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-amz-security-token"
_WORDS = "secret|password|passwd|token|credential|signature|access_?key|private_?key"
_IS = r"['\"]?\s*[:=]\s*"
_NOTHING = ('""', "''", "null", "None", "true", "false")


def _taken(found: re.Match[str]) -> str:
    """Replaces the value after a name. JSON stays valid JSON."""
    name, value = found.groups()
    quote = value[:1] if value[:1] in ("'", '"') else '"' if '"' in name else ""
    return found[0] if value in _NOTHING else f"{name}{quote}{_TAKEN}{quote}"


_PATTERNS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), _TAKEN),
    (re.compile(r"sq1_[\w.~+/=-]+"), f"sq1_{_TAKEN}"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), _TAKEN),  # a JSON web token
    (re.compile(r"://[^\s'\"]*@"), f"://{_TAKEN}@"),
    (re.compile(rf"\b((?:{_HEADERS})['\"]?(?:{_IS}|\s*,\s*))({_QUOTED}|{_TO_THE_END})", re.IGNORECASE), _taken),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{4,}", re.IGNORECASE), r"\1 ***"),
    (re.compile(rf"([?&;][\w.-]*(?:sig|{_WORDS})[\w.-]*=)[^&\s\"'<>]+", re.IGNORECASE), r"\1***"),
    (
        re.compile(rf"((?:{_WORDS})(?![\w-]*_file)[\w-]*{_IS})({_QUOTED}|{_WORD})", re.IGNORECASE),
        _taken,
    ),
)
_SECRET_NAME = re.compile("SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|_KEY|_DSN")


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Returns the values of variables whose names mark them as secret."""
    return [value for name, value in environment.items() if _SECRET_NAME.search(name) and not name.endswith("_FILE")]


class Redactor:
    """Removes these secrets, and text that looks like a secret."""

    def __init__(self, secrets: Iterable[str]) -> None:
        pieces = {piece.strip() for one in secrets for piece in (one, *one.split(","), *one.splitlines())}
        known = sorted((one for one in pieces if len(one) >= FEWEST), key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """Returns the text without secrets."""
        if self._known:
            text = self._known.sub(_TAKEN, text)
        for pattern, taken in _PATTERNS:
            text = pattern.sub(taken, text)
        return text
