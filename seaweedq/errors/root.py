"""The root of the tree of errors, and the tree by slugs."""

from typing import Any, ClassVar


class SeaweedqError(Exception):
    """The root of the tree. `slug` is stable and ends the problem's `type`; `title` says the same in words.

    The client sees `detail`. Only logs contain `inside`: addresses of the installation, and their answers.
    """

    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, *, inside: str = "", **fields: Any) -> None:
        super().__init__(f"{detail}: {inside}" if inside else detail)
        self.detail = detail
        self.inside = inside
        self.fields = fields


def by_slug() -> dict[str, type[SeaweedqError]]:
    """Returns every class of the tree by its slug; of two with one slug that which is nearer to the root."""
    found: dict[str, type[SeaweedqError]] = {}
    todo = [SeaweedqError]
    while todo:
        kind = todo.pop()
        found.setdefault(kind.slug, kind)
        todo += kind.__subclasses__()
    return found
