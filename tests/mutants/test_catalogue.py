"""Each mutant can be made, and names tests that there are."""

import ast

from tests.mutants.catalogue import Mutant, everything, sources
from tests.support.paths import ROOT


def test_names_are_given_once() -> None:
    names = [mutant.name for mutant in everything()]
    assert len(names) == len(set(names))


def test_each_patch_has_one_place_and_leaves_a_module() -> None:
    texts = sources()
    for mutant in everything():
        places = [text for text in texts.values() for _ in range(text.count(mutant.old))]
        assert len(places) == 1, f"{mutant.name}: its text occurs {len(places)} times in the package"
        ast.parse(places[0].replace(mutant.old, mutant.new))
        assert mutant.old != mutant.new


def _exists(test: str) -> bool:
    path, _, name = test.partition("::")
    name = name.partition("[")[0]
    return (ROOT / path).exists() and (not name or f"def {name}(" in (ROOT / path).read_text())


def test_each_names_tests_that_there_are() -> None:
    missing = [(mutant.name, test) for mutant in everything() for test in mutant.tests if not _exists(test)]
    assert not missing


def test_a_text_that_is_there_twice_is_no_place() -> None:
    assert len(Mutant("", "", "from ", "", ()).places()) > 1
