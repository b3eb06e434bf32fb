"""A broker that others than this machine reach says who may use it, or does not start."""

from typing import Any

import pytest
from typer.testing import CliRunner

from seaweedq.cli.main import app
from seaweedq.cli.server.given_settings import check_advertised, check_auth, is_loopback
from seaweedq.errors import InvalidRequest
from seaweedq.settings import Settings

REACHED = [
    {"host": "0.0.0.0"},
    {"host": "::"},
    {"host": "10.0.0.1"},
    {"host": ""},
    {"host": "queue.example.com"},
    {"advertise_url": "https://queue.example.com"},
    {"advertise_url": "http://[fd00::3]:8080"},
    {"advertise_url": "http://localhost.example.com"},
]
ALONE = [
    {},
    {"host": "127.0.0.1"},
    {"host": "127.3.0.1"},
    {"host": "::1"},
    {"host": "localhost"},
    {"advertise_url": "http://127.0.0.1:1"},
    {"advertise_url": "https://[::1]:1"},
]


@pytest.mark.parametrize("given", REACHED, ids=str)
def test_beyond_loopback_auth_must_be_said(given: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        InvalidRequest, match=r"setting auth='auto' cannot be used.*auth=required .*auth=none "
    ) as raised:
        check_auth(Settings(**given))
    assert raised.value.fields["field"] == "auth"
    (name,) = given
    assert f"{name}=" in str(raised.value), "it names the setting by which others reach the broker"
    check_auth(Settings(**given, auth="required"))
    assert caplog.text == ""
    check_auth(Settings(**given, auth="none"))
    assert "auth=none: everyone who can connect to the broker can read, write and delete everything" in caplog.text


@pytest.mark.parametrize("given", ALONE, ids=str)
def test_on_loopback_it_need_not(given: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    check_auth(Settings(**given))
    check_auth(Settings(**given, auth="required"))
    assert caplog.text == ""
    check_auth(Settings(**given, auth="none"))
    assert "auth=none" in caplog.text


def test_it_is_said_once_for_several_brokers_and_asked_of_each(caplog: pytest.LogCaptureFixture) -> None:
    check_auth(Settings(brokers=2, member=1, auth="none"))
    assert caplog.text == ""
    with pytest.raises(InvalidRequest):
        check_auth(Settings(brokers=2, member=1, host="0.0.0.0"))


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_broker_that_must_not_start_leaves_nothing(brokers: int, tmp_path: Any) -> None:
    given = ["--host", "0.0.0.0", "--data-dir", str(tmp_path / "data"), "--brokers", str(brokers)]
    refused = CliRunner().invoke(app, ["serve", *given])
    assert refused.exit_code != 0
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("host", "is_it"), [("", False), ("127.0.0.1.example", False), ("::ffff:10.0.0.1", False)])
def test_hosts_that_look_like_this_machine(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it


def test_a_broker_with_a_certificate_advertises_no_plain_http(tmp_path: Any) -> None:
    named = ["--tls-cert-file", str(tmp_path / "cert.pem"), "--tls-key-file", str(tmp_path / "key.pem")]
    given = ["--advertise-url", "http://127.0.0.1:1", "--data-dir", str(tmp_path / "data"), *named]
    refused = CliRunner().invoke(app, ["serve", *given])
    assert refused.exit_code != 0
    assert isinstance(refused.exception, InvalidRequest)
    assert "setting --advertise-url='http://127.0.0.1:1'" in str(refused.exception)
    assert "--tls-cert-file" in str(refused.exception)
    assert refused.exception.fields["field"] == "advertise_url"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "given",
    [
        {"advertise_url": "http://127.0.0.1:1"},
        {"advertise_url": "https://127.0.0.1:1"},  # a proxy in front has the certificate
        {"tls_cert_file": "cert.pem", "tls_key_file": "key.pem"},
        {"tls_cert_file": "cert.pem", "tls_key_file": "key.pem", "advertise_url": "https://127.0.0.1:1"},
    ],
    ids=str,
)
def test_other_pairs_of_certificate_and_url_are_fine(given: dict[str, Any]) -> None:
    check_advertised(Settings(**given))
