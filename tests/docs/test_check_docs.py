"""scripts/check_docs.py finds what is not there, and nothing else."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.fixture
def project(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "seaweedq" / "broker").mkdir(parents=True)
    (tmp_path / "seaweedq" / "broker" / "flush.py").touch()
    (tmp_path / "tests" / "test_it.py").write_text("def test_there(): pass\n")
    (tmp_path / "docs" / "other.md").write_text("# A `code` heading, twice\n\n# A `code` heading, twice\n")
    return tmp_path


def complaints(root):
    """What the script says of the pages below a folder."""
    code = f"import check_docs, pathlib; [print(c) for c in check_docs.complaints(pathlib.Path({str(root)!r}))]"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts", capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.process
@pytest.mark.parametrize(
    "text",
    [
        "[a](docs/other.md), [b](docs/other.md#a-code-heading-twice-1), [c](#top), [d](https://x.invalid/y)\n\n# Top\n",
        "`seaweedq/broker/flush.py`, `broker/flush.py`, `tests/`, `test_there`, `test_it`",
        "`./seaweedq-data`, `/v1/topics`, `a/b`, `application/json`",
        "```sh\ncat docs/none.md [x](none.md) `seaweedq/none.py`\n```\n",
        "`[x](none.md)`",
    ],
)
def test_what_is_there_is_no_complaint(project, text):
    (project / "page.md").write_text(text)
    assert complaints(project) == []


@pytest.mark.process
@pytest.mark.parametrize(
    "text",
    [
        "[a](docs/none.md)",
        "[a](docs/other.md#none)",
        "[a](#none)",
        "`seaweedq/broker/none.py`",
        "`broker/none.py`",
        "`tests/none/`",
        "`test_nowhere`",
    ],
)
def test_what_is_not_there_is_one_complaint(project, text):
    (project / "page.md").write_text(text)
    assert len(complaints(project)) == 1


def test_the_settings_page_is_compared(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import chart_schema
    import settings_doc

    monkeypatch.setattr(settings_doc, "PAGE", tmp_path / "settings.md")
    monkeypatch.setattr(chart_schema, "SCHEMA", tmp_path / "values.schema.json")
    chart_schema.SCHEMA.write_text('{"properties": {"config": {}}}')
    assert settings_doc.main(["--check"]) == 1
    late = capsys.readouterr().err
    assert "settings.md is out of date" in late
    assert "values.schema.json is out of date" in late
    assert settings_doc.main([]) == 0
    assert settings_doc.main(["--check"]) == 0
