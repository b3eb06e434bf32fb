"""Spans around messages: which contexts count, the parent, the links, and what is not recorded."""

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from seaweedq.errors import NotOwner
from seaweedq.traces import LINKS, of_program, valid
from tests.support.spans import OUTER, SAMPLED, TRACE, UNSAMPLED, Kept, of_context


def context(number: int) -> str:
    """The context of a message."""
    return f"00-{TRACE}-{number:016x}-01"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (SAMPLED, SAMPLED),
        (UNSAMPLED, UNSAMPLED),
        (f"00-{TRACE}-{OUTER}-ff", SAMPLED),  # flags that version 00 does not know
        (f"cc-{TRACE}-{OUTER}-01-what-comes-later", SAMPLED),
        (None, None),
        ("", None),
        (f"00-{TRACE}-{OUTER}-01-more", None),
        (f"ff-{TRACE}-{OUTER}-01", None),
        (f"00-{'0' * 32}-{OUTER}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (SAMPLED.upper(), None),
        (f"{SAMPLED}, {SAMPLED}", None),  # sent twice
        (f" {SAMPLED}", None),
        (f"{SAMPLED}\n", None),
        (f"00-{TRACE}-{OUTER}", None),
        (f"00-{TRACE}-{OUTER}-\u0661\u0661", None),
        ("x" * 60_000, None),
    ],
)
def test_a_traceparent_counts_as_w3c_has_it(given: str | None, wanted: str | None) -> None:
    assert valid(given) == wanted


def test_the_first_sampled_message_is_the_parent_and_all_are_links() -> None:
    traces = Kept()
    with traces.span("flush", "t", ["no context", UNSAMPLED, context(7), context(8), context(7)], segment="3") as own:
        assert traces.ids() == {"trace_id": TRACE, "span_id": own.split("-")[2] if own else None}
    span = traces.one("flush t")
    assert of_context(span.parent) == context(7)
    assert [link.context.span_id for link in span.links] == [7, 8]
    assert span.attributes == {
        "messaging.system": "seaweedq",
        "messaging.operation.name": "flush",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "3",
    }


def test_a_step_without_a_sampled_message_has_no_span() -> None:
    traces = Kept()
    for contexts in ([], [UNSAMPLED], ["nonsense"]):
        with traces.span("commit", "", contexts) as own:
            assert (own, traces.ids()) == (None, {})
    assert not traces.spans


def test_a_span_within_another_is_its_child_but_a_generators_is_not() -> None:
    traces = Kept()
    with traces.span("publish", "t", [SAMPLED], "SERVER"):
        for is_apart in (False, True):
            with traces.span("forward", "t", [context(7)], is_apart=is_apart):
                pass
    inner, apart, outer = traces.spans
    assert (outer.kind, outer.links) == (SpanKind.SERVER, ())
    assert of_context(inner.parent) == of_context(outer.context)
    assert of_context(apart.parent) == context(7)


def test_links_are_bounded() -> None:
    traces = Kept()
    with traces.span("deliver", "t", map(context, range(1, 10 * LINKS))):
        pass
    assert len(traces.one("deliver t").links) == LINKS


async def test_an_error_is_named_without_its_text() -> None:
    traces = Kept()

    async def fail() -> None:
        raise NotOwner("with a name that is nobody's business")

    with pytest.raises(NotOwner):
        await traces.around(fail(), "forward", "t", [SAMPLED], "CLIENT")
    span = traces.one("forward t")
    assert (span.status.status_code, span.attributes and span.attributes["error.type"]) == (
        StatusCode.ERROR,
        "NotOwner",
    )
    assert "business" not in span.to_json()


def test_a_message_keeps_the_context_that_its_program_gave() -> None:
    traces = Kept()
    assert traces.create("t", {"traceparent": "mine"}) == {"traceparent": "mine"}
    assert not traces.spans
    made = traces.create("t", {"a": "b"})
    assert made == {"a": "b", "traceparent": of_context(traces.one("create t").context)}
    assert traces.one("create t").kind is SpanKind.PRODUCER


def test_a_program_that_has_not_configured_opentelemetry_makes_no_spans() -> None:
    assert of_program() is None  # its API is imported here
