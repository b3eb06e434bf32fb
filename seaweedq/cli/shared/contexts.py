"""Contexts: names for brokers, each with a URL, a token file and a CA file. All contexts of a user are in one file.

A command uses the current context if neither `--url` nor SEAWEEDQ_URL names brokers, so a context's token is sent only
to that context's brokers. A token in the environment overrides the context's. The file contains no tokens, has mode
0600, and is replaced as a whole. `Client()` never reads the file."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seaweedq.errors import ClientError

if TYPE_CHECKING:
    from seaweedq.client.http import Credentials

_MEMBERS = {"url", "token_file", "ca_file"}
Contexts = dict[str, dict[str, str]]


class ContextUrl(str):
    """A context's URL, with the context's name and files. A file that is not set is empty."""

    name: str
    token_file: str
    ca_file: str

    @staticmethod
    def of(name: str, context: dict[str, str]) -> "ContextUrl":
        """Returns the URL of the context with this name."""
        url = ContextUrl(context["url"])
        url.name, url.token_file, url.ca_file = name, context.get("token_file", ""), context.get("ca_file", "")
        return url

    def first(self) -> "ContextUrl":
        """Returns the first of the context's URLs, for commands that use only one broker."""
        files = {"token_file": self.token_file, "ca_file": self.ca_file}
        return ContextUrl.of(self.name, {"url": self.split(",")[0].strip(), **files})

    def files(self) -> dict[str, Any]:
        """Returns a client's arguments for the context. A token or CA in the environment overrides the context's."""
        has_token = os.environ.get("SEAWEEDQ_TOKEN") or os.environ.get("SEAWEEDQ_TOKEN_FILE")
        has_ca = os.environ.get("SEAWEEDQ_CA_FILE")
        return {
            "token_file": None if has_token else self.token_file or None,
            "ca_file": None if has_ca else self.ca_file or None,
        }


def credentials_of(url: str) -> "Credentials":
    """Returns the token that a command sends to the brokers at a URL, and the CA that it trusts there."""
    from seaweedq.client.http import Credentials

    return Credentials(**url.files()) if isinstance(url, ContextUrl) else Credentials()


def export_files(url: str) -> None:
    """Sets environment variables for the context's files, because Spark's readers and writers look only there."""
    if isinstance(url, ContextUrl):
        os.environ.update({f"SEAWEEDQ_{name.upper()}": file for name, file in url.files().items() if file})


def contexts_path() -> Path:
    """Returns the path of the contexts' file: below XDG_CONFIG_HOME, or else ~/.config. Raises ClientError without a
    home folder."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # the specification has relative ones ignored
        try:
            folder = str(Path.home() / ".config")
        except RuntimeError:
            raise ClientError("there is no home folder to store contexts in; set XDG_CONFIG_HOME") from None
    return Path(folder) / "seaweedq" / "contexts.json"


def read_contexts() -> tuple[str | None, Contexts]:
    """Returns the name of the current context (None if there is none), and all contexts. Raises ClientError if the file
    cannot be read."""
    path = contexts_path()
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None, {}
    except OSError as error:
        raise ClientError(f"the contexts file {path} cannot be read: {error.strerror}") from None
    import json

    try:
        found = json.loads(text)
        contexts = {str(name): _context(one) for name, one in found["contexts"].items()}
        current = found["current"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ClientError(f"{path} is not a valid file of contexts; correct the file, or remove it") from None
    return current if current in contexts else None, contexts


def _context(one: dict[str, str]) -> dict[str, str]:
    if "url" not in one or not one.keys() <= _MEMBERS or not all(isinstance(each, str) for each in one.values()):
        raise ValueError
    return dict(one)


def write_contexts(current: str | None, contexts: Contexts) -> None:
    """Replaces the file; its mode is 0600. Raises ClientError."""
    import json
    import tempfile

    path = Path(os.path.realpath(contexts_path()))  # a link stays one
    text = json.dumps({"current": current, "contexts": contexts}, indent=2) + "\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, written = tempfile.mkstemp(prefix=".contexts-", dir=path.parent)  # it has mode 0600
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(written, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(written)
            raise
    except OSError as error:
        raise ClientError(f"{path} cannot be written: {error.strerror}") from None


def current_url(default: str) -> str:
    """Returns the URL of the current context, or else the default. Raises ClientError."""
    current, contexts = read_contexts()
    return ContextUrl.of(current, contexts[current]) if current else default
