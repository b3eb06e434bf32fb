"""Draws mutants from a seed, and finds the tests that find them.

Each is a small change at a place that is drawn from all rooms alike: a condition is negated, a comparison takes or
loses its equality, `and` becomes `or`, a number grows by one, a call whose answer nobody takes goes. The tests of the
module's own folder are asked, then those of the folder above it. `python -m tests.mutants.draw --seed 1 --count 60`
prints `drawn.toml`.
"""

import argparse
import ast
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.mutants.catalogue import Mutant, sources
from tests.mutants.run import Copy
from tests.support.paths import ROOT

PACKAGE = ROOT / "seaweedq"
FOUND_AT = "FAILED "
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
Change = tuple[str, ast.AST, Callable[[], ast.AST]]


def changes(tree: ast.AST) -> Iterator[Change]:
    """(what it does, the node, its replacement) of each change that a module allows."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
            yield "negates", node.test, lambda test=node.test: ast.UnaryOp(ast.Not(), test)  # type: ignore[misc]
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            other = COMPARISONS[type(node.ops[0])]()
            yield "compares by another sign", node, lambda n=node, o=other: ast.Compare(n.left, [o], n.comparators)  # type: ignore[misc]
        elif isinstance(node, ast.BoolOp):
            joined = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "swaps and with or", node, lambda n=node, o=joined: ast.BoolOp(o, n.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield "adds one", node, lambda n=node: ast.Constant(n.value + 1)  # type: ignore[misc]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
            yield "leaves a call out", node, lambda: ast.Pass()


def room(path: Path) -> str:
    """The room of a module: two folders for the broker's and the interface's, else one."""
    parts = path.relative_to(PACKAGE).parts[:-1]
    return "/".join(parts[: 2 if parts[:1] in (("broker",), ("api",), ("client",)) else 1])


def draw(rng: random.Random) -> Mutant | None:
    """One mutant, or None where the draw had no place."""
    texts = sources()
    rooms = sorted({room(path) for path in texts})
    chosen = rng.choice(rooms)
    path = rng.choice([path for path in texts if room(path) == chosen])
    text = texts[path]
    possible = list(changes(ast.parse(text)))
    if not possible:
        return None
    what, node, replacement = rng.choice(possible)
    segment = ast.get_source_segment(text, node)
    if segment is None or "\n" in segment:
        return None
    lines = text.splitlines(keepends=True)
    at, column = node.lineno - 1, node.col_offset  # type: ignore[attr-defined]
    new_line = (
        lines[at].encode()[:column].decode()
        + ast.unparse(ast.fix_missing_locations(replacement()))
        + lines[at].encode()[node.end_col_offset :].decode()  # type: ignore[attr-defined]
    )
    for first in range(at, max(at - 12, -1), -1):
        old = "".join(lines[first : at + 1])
        if sum(other.count(old) for other in texts.values()) == 1:
            name = f"{path.relative_to(PACKAGE).with_suffix('')}:{node.lineno}"  # type: ignore[attr-defined]
            return Mutant(name, what, old, "".join(lines[first:at]) + new_line, ())
    return None


def asked(path: Path) -> list[str]:
    """The folders of tests that mirror a module, the nearest first."""
    folder = ROOT / "tests" / path.relative_to(PACKAGE).parent
    found = []
    while folder != ROOT / "tests":
        if folder.is_dir():
            found.append(str(folder.relative_to(ROOT)))
        folder = folder.parent
    return found[:2]


def finder(copy: Copy, mutant: Mutant) -> tuple[str, ...]:
    """The test that finds a mutant, if any does."""
    (path,) = mutant.places()
    for folder in asked(path):
        try:
            end = copy.failing(mutant, [folder], ["--tier", "default", "-n", "2"])
        except RuntimeError as error:
            end = str(error)
        if end is not None:
            named = [
                line.removeprefix(FOUND_AT).split(" - ")[0] for line in end.splitlines() if line.startswith(FOUND_AT)
            ]
            return (named[0] if named else folder,)
    return ()


def as_toml(mutant: Mutant) -> str:
    """A mutant as `drawn.toml` has it; a JSON text is a TOML text."""
    fields = {
        "name": mutant.name,
        "rule": mutant.rule,
        "old": mutant.old,
        "new": mutant.new,
        "tests": list(mutant.tests),
    }
    return "\n".join(["[[mutant]]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items()), ""])


def main() -> None:
    """Draws, asks, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60)
    given = parser.parse_args()
    rng, drawn = random.Random(given.seed), dict[str, Mutant]()
    while len(drawn) < given.count:
        if mutant := draw(rng):
            drawn[mutant.name] = mutant
    print(f"# Drawn by: python -m tests.mutants.draw --seed {given.seed} --count {given.count}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for mutant in drawn.values():
            tests = finder(copy, mutant)
            print(as_toml(Mutant(mutant.name, mutant.rule, mutant.old, mutant.new, tests)), flush=True)
            print(f"{mutant.name}: {tests[0] if tests else 'NOT FOUND'}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
