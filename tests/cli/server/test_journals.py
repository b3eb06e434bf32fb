"""The pace of the object journal's puts that the settings and the store's address choose."""

import logging

import pytest
from pydantic import ValidationError

from seaweedq.cli.server.backends import CHARGED_PER_S, journal_setup, object_pace
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.settings import Settings

S3 = "s3://bucket/prefix"


@pytest.mark.parametrize(
    ("given", "environ", "per_s"),
    [
        ({"store": S3}, {}, CHARGED_PER_S),
        ({"store": S3, "s3_endpoints": "https://s3.eu-west-1.amazonaws.com"}, {}, CHARGED_PER_S),
        ({"store": S3, "s3_endpoints": "http://minio:9000, http://minio2:9000"}, {}, 0),
        ({"store": S3, "s3_endpoints": "https://amazonaws.com.example.org"}, {}, 0),
        ({"store": S3}, {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9000"}, 0),
        ({"store": S3}, {"AWS_ENDPOINT_URL": "https://x.r2.cloudflarestorage.com"}, CHARGED_PER_S),
        ({"store": "file:///data"}, {}, 0),
        ({"store": S3, "journal_puts_per_s": 20}, {}, 20),
        ({"store": S3, "journal_puts_per_s": 0}, {}, 0),
    ],
)
def test_the_budget_is_for_stores_that_charge_unless_it_is_set(
    given: dict[str, object], environ: dict[str, str], per_s: float
) -> None:
    pace, _ = object_pace(Settings.model_validate(given), environ)
    assert (pace.linger_s, pace.linger_max_s, pace.puts_per_s) == (0, 0, per_s)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"journal_linger_s": 0.05}, (0.05, 0.25, 0)),
        ({"journal_linger_max_s": 0.1}, (0.02, 0.1, 0)),
        ({"journal_linger_s": 0.0, "journal_puts_per_s": 5}, (0, 0.25, 5)),
    ],
)
def test_a_set_linger_holds_and_a_budget_only_if_it_is_set_too(
    given: dict[str, float], expected: tuple[float, float, float]
) -> None:
    pace, _ = object_pace(Settings(store=S3, **given), {})
    assert (pace.linger_s, pace.linger_max_s, pace.puts_per_s) == expected


@pytest.mark.parametrize("per_s", [0.01, 0.49])
def test_a_budget_at_which_publishes_would_run_out_of_time_is_refused(per_s: float) -> None:
    with pytest.raises(ValidationError, match=r"at least 0\.5"):
        Settings(store=S3, journal_puts_per_s=per_s)


def test_the_log_says_at_the_start_which_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        journal_setup(Settings(store=S3, journal="object"), SystemClock(), SystemIds(), {})
    assert "at most 8 a second in the long run, since this store charges for puts" in caplog.text
