"""The settings: every field explains itself; command line over environment over file; errors name the setting."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from seaweedq.cli.main import app
from seaweedq.cli.server.given_settings import check_journal, settings_of, unknown_variables
from seaweedq.errors import InvalidRequest
from seaweedq.settings import GROUPS, Settings

# Numbers without a unit in their name.
COUNTS = {
    "port",
    "peer_port",
    "grpc_port",
    "capacity_segments",
    "member",
    "journal_window",
    "journal_least_mirrors",
    "journal_mirrors",
    "max_open_uploads",
    "max_write_uploads",
    "import_batch_rows",
    "max_connections",
    "max_connections_per_address",
    "max_topics",
    "max_segments",
    "metrics_subscriptions",
}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_field_has_a_description_and_a_unit(name: str) -> None:
    field = Settings.model_fields[name]
    assert field.description
    assert field.description.endswith(".")
    if field.annotation in (int, float) and name not in COUNTS:
        assert re.search(r"_(s|bytes|usd_per_1000)$", name), f"{name} has no unit in its name"
        assert field.metadata, f"{name} has no bounds"


def test_every_field_is_in_a_group_of_its_own_kind() -> None:
    assert [name for group in GROUPS.values() for name in group.model_fields] == list(Settings.model_fields)
    assert max(len(group.model_fields) for group in GROUPS.values()) <= 12


def test_defaults_are_valid_and_frozen() -> None:
    settings = Settings()
    assert Settings.model_validate(settings.model_dump()) == settings
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]


def test_every_field_is_an_option_of_serve() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300"}).output
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in shown


@pytest.mark.parametrize("toml", [None, 1111])
@pytest.mark.parametrize("environment", [None, 2222])
@pytest.mark.parametrize("given_", [None, 3333])
def test_command_line_over_environment_over_file(
    toml: int | None, environment: int | None, given_: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f"port = {toml}\n" if toml else "")
    if environment:
        monkeypatch.setenv("SEAWEEDQ_PORT", str(environment))
    assert settings_of(config, {"port": given_}).port == (given_ or environment or toml or 8080)


def test_each_source_sets_only_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('port = 1111\nname = "from-file"\nlease_s = 2.5\nauto_create_topics = false\n')
    monkeypatch.setenv("SEAWEEDQ_NAME", "from-env")
    settings = settings_of(config, {"data_dir": tmp_path, "port": None})
    assert (settings.port, settings.name, settings.lease_s) == (1111, "from-env", 2.5)
    assert settings.auto_create_topics is False
    assert settings.store_path == f"file://{tmp_path}/store"
    assert settings.store_in_data_dir
    assert not Settings(data_dir=tmp_path, store=f"file://{tmp_path}-2/store").store_in_data_dir
    assert not Settings(data_dir=tmp_path, store="s3://bucket/store").store_in_data_dir
    assert "flush_max_age_s" not in settings.model_fields_set


@pytest.mark.parametrize("name", [n for n, f in Settings.model_fields.items() if f.annotation in (int, float)])
@pytest.mark.parametrize("value", ["-1", "many", "nan", "1e400"])
def test_errors_name_the_setting_and_its_value(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"SEAWEEDQ_{name.upper()}", value)
    with pytest.raises(InvalidRequest, match=f"setting {name} must be .*, not '{value}' ") as raised:
        settings_of(None, {})
    assert raised.value.fields["field"] == name


@pytest.mark.parametrize(
    "url", ["etcd://me:geheim@a:1", "etcd://a:1,me:geheim@b:2", "etcd://me:ge heim@a", "etcd://m:geh/eim@a"]
)
def test_credentials_in_a_url_are_refused_and_not_echoed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAWEEDQ_COORDINATION", url)
    with pytest.raises(InvalidRequest, match=r"setting coordination.*'etcd://\*\*\*@") as raised:
        settings_of(None, {})
    assert "geh" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("s3_endpoints", "https://key:geheim@host:1"),
        ("store", "s3://key:geheim@bucket"),
        ("advertise_url", "http://u:geheim@h"),
    ],
)
def test_other_urls_with_credentials_are_refused(name: str, url: str) -> None:
    with pytest.raises(InvalidRequest, match=f"setting {name}=.*etcd_user and etcd_password") as raised:
        settings_of(None, {name: url})
    assert "geheim" not in str(raised.value)
    with pytest.raises(ValidationError) as bare:
        Settings.model_validate({name: url})
    assert "geheim" not in str(bare.value)


def test_a_path_may_have_an_at_sign() -> None:
    assert settings_of(None, {"store": "file:///home/me@work/store"}).store_path == "file:///home/me@work/store"


def test_an_unknown_setting_in_the_file_is_named(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("prot = 80\n")
    with pytest.raises(InvalidRequest, match=r"^prot in .*toml: there is no setting 'prot'; the nearest is port$"):
        settings_of(config, {})


def test_an_error_says_where_the_setting_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("lease_s = -1\n")
    with pytest.raises(InvalidRequest, match=r"lease_s must be .*, not -1 \(given by lease_s in .*broker.toml\)"):
        settings_of(config, {})
    monkeypatch.setenv("SEAWEEDQ_LEASE_S", "-2")
    with pytest.raises(InvalidRequest, match=r"lease_s must be .*, not '-2' \(given by SEAWEEDQ_LEASE_S\)"):
        settings_of(config, {})
    with pytest.raises(InvalidRequest, match=r"lease_s must be .*, not -3 \(given by --lease-s\)"):
        settings_of(config, {"lease_s": -3})


def test_units_are_taken_from_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('lease_s = "2500ms"\nmax_request_bytes = "8MB"\njournal_linger_s = "20ms"\n')
    monkeypatch.setenv("SEAWEEDQ_FLUSH_MAX_AGE_S", "1m30s")
    monkeypatch.setenv("SEAWEEDQ_UPLOAD_EXPIRES_S", "1d")
    settings = settings_of(config, {"memory_budget_bytes": "1GiB"})
    assert (settings.lease_s, settings.max_request_bytes, settings.journal_linger_s) == (2.5, 8_000_000, 0.02)
    assert (settings.flush_max_age_s, settings.upload_expires_s) == (90, 86_400)
    assert settings.memory_budget_bytes == 2**30


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("lease_s", "5x", "must be a number of seconds, or .* ms, s, m, h, d or w, .*, not '5x'"),
        ("lease_s", "2m", "must be at most 60.0, not '2m'"),
        ("memory_budget_bytes", "1G", "must be a number of bytes, or .*GiB is 2.30.*, not '1G'"),
        ("journal_puts_per_s", "5m", "must be a number, not '5m'"),
    ],
)
def test_an_error_about_a_unit_names_text_and_bound(name: str, value: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^setting {name} {told}.* \(given by --"):
        settings_of(None, {name: value})


def test_help_names_the_units_in_words() -> None:
    shown = " ".join(CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300"}).output.split())
    assert "--lease-s DURATION" in shown
    assert "--memory-budget-bytes SIZE" in shown
    assert "number of seconds, or with units: 500ms, 90s, 1h30m, 7d, 2w" in shown
    assert "10GB (GB is 10^9), 512MiB (MiB is 2^20)" in shown


def test_variables_that_are_no_settings_are_warned_of() -> None:
    services = {
        "SEAWEEDQ_SERVICE_HOST": "10.0.0.1",
        "SEAWEEDQ_SERVICE_PORT": "8080",
        "SEAWEEDQ_SERVICE_PORT_HTTP": "8080",
        "SEAWEEDQ_PORT": "tcp://10.0.0.1:8080",
        "SEAWEEDQ_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "SEAWEEDQ_PORT_8080_TCP_ADDR": "10.0.0.1",
        "SEAWEEDQ_HEADLESS_SERVICE_HOST": "None",
        "SEAWEEDQ_HEADLESS_PORT": "tcp://10.0.0.2:8080",
    }
    known = {"SEAWEEDQ_LEASE_S": "5", "SEAWEEDQ_URL": "http://a", "SEAWEEDQ_CONFIG": "x", "PATH": "/bin"}
    assert unknown_variables(services | known) == []
    (warning,) = unknown_variables({"SEAWEEDQ_FLUSH_AGE_S": "1"} | services)
    assert "SEAWEEDQ_FLUSH_AGE_S" in warning
    assert "the nearest is flush_max_age_s" in warning


def test_names_in_other_letters_are_no_settings_and_not_passed_over(tmp_path: Path) -> None:
    (warning,) = unknown_variables({"seaweedq_lease_s": "9", "SEAWEEDQ_LEASE_S": "5"})
    assert warning == "the variable seaweedq_lease_s has no effect: its name must be in capitals, SEAWEEDQ_LEASE_S"
    (warning,) = unknown_variables({"Seaweedq_Flush_Age_s": "1"})
    assert "the nearest is flush_max_age_s" in warning
    config = tmp_path / "broker.toml"
    config.write_text("LEASE_S = 9")
    with pytest.raises(InvalidRequest, match="no setting 'LEASE_S'; the nearest is lease_s"):
        settings_of(config, {})


def test_a_service_named_like_the_program_does_not_set_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAWEEDQ_PORT", "tcp://10.0.0.1:8080")
    assert settings_of(None, {}).port == 8080


@pytest.mark.parametrize("text", ["port = \n", "port: 80", "\x00", '"' * 7])
def test_a_file_that_is_no_toml_is_named(text: str, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(text)
    with pytest.raises(InvalidRequest, match=r"broker\.toml"):
        settings_of(config, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="the file does not exist"):
        settings_of(tmp_path / "none.toml", {})


@given(st.text(max_size=70))
def test_names_are_those_that_fit_into_keys(name: str) -> None:
    fits = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", name) is not None
    try:
        Settings(name=name)
    except ValidationError:
        assert not fits
    else:
        assert fits


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    named = CliRunner().invoke(app, ["serve"], env={"SEAWEEDQ_CONFIG": str(tmp_path / "none.toml")})
    assert (named.exit_code, "none.toml: the file does not exist" in named.stderr) == (2, True)


def test_help_says_the_default_of_each_setting() -> None:
    shown = " ".join(CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "20000"}).output.split())
    _, _, shown = shown.partition(" Options ")  # what comes before may name some
    for name, field in Settings.model_fields.items():
        _, _, told = shown.partition(f"--{name.replace('_', '-')} ")
        default = "none" if field.default in ("", None) else field.default
        assert f"[default: {default}]" in told.partition(" --")[0]


@pytest.mark.parametrize("budget", [64, 127])
def test_a_request_holds_at_most_half_of_the_memory(budget: int) -> None:
    given = {"max_request_bytes": 64 << 20, "memory_budget_bytes": budget << 20}
    with pytest.raises(
        InvalidRequest, match=f"memory_budget_bytes={budget << 20}: .*at least {128 << 20}, .*max_request_bytes"
    ):
        settings_of(None, given)
    assert settings_of(None, {**given, "memory_budget_bytes": 128 << 20}).memory_budget_bytes == 128 << 20


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"journal": "mirrored"}, "journal='mirrored' needs several machines, but with coordination='embedded' all"),
        (
            {"journal_mirrors": 1, "journal_least_mirrors": 2},
            "journal_least_mirrors=2 must be at most journal_mirrors=1",
        ),
    ],
)
def test_mirrors_that_would_fail_together_or_never_do_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        check_journal(Settings(**given))
    check_journal(Settings(journal="mirrored", coordination="etcd://127.0.0.1:1", journal_least_mirrors=2))


def test_more_mirrors_than_three_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAWEEDQ_JOURNAL_MIRRORS", "4")
    with pytest.raises(InvalidRequest, match="journal_mirrors must be at most 3, not '4'"):
        settings_of(None, {})
