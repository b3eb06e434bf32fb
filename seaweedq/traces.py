"""Spans of OpenTelemetry, by its semantic conventions for messaging. OpenTelemetry is imported only when `Traces` is
made: a broker makes it if `otel_endpoint` is set, and a client if its program has configured OpenTelemetry.

The context of a message is its header `traceparent` (W3C Trace Context). It is written once, and goes with the message
through the journal, the tail and the file, so each step finds it in the rows. A step of many messages has one span,
with links to the contexts of the first LINKS of them. Its parent is the span within which it happens, or else the
first of these contexts. Contexts that are not sampled do not count, so a step without a sampled message has no span.
"""

import re
import sys
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

TRACEPARENT = "traceparent"
LINKS = 64  # of a span
NAME = "seaweedq"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = "-01"  # ends a context that `valid` returns
_TYPES = {  # other operations have their names
    **dict.fromkeys(("publish", "import", "write"), "send"),
    **dict.fromkeys(("pull", "fetch"), "receive"),
    **dict.fromkeys(("ack", "nack"), "settle"),
}
_OF_CONVENTIONS = frozenset(("create", "send", "receive", "process", "settle"))
Kind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
T = TypeVar("T")


def valid(text: str | None) -> str | None:
    """Returns the value of a header `traceparent` as version 00 has it, of 55 characters; None for one that has to be
    ignored (https://www.w3.org/TR/trace-context/)."""
    found = _FORM.fullmatch(text) if text else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(span, 16):
        return None
    return f"00-{trace}-{span}-{int(flags, 16) & 1:02x}"


def of_program() -> "Traces | None":
    """Returns the spans of a program that has configured OpenTelemetry, and None in any other."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return Traces(api.get_tracer(NAME))


class Traces:
    """Makes spans. `counts` says how many of them were exported and dropped."""

    def __init__(self, tracer: "Tracer", counts: Mapping[str, int] | None = None) -> None:
        from opentelemetry import trace

        self._api, self._tracer = trace, tracer
        self.counts = counts or {}

    @contextmanager
    def span(
        self,
        operation: str,
        topic: str = "",
        contexts: Iterable[str] | None = None,
        kind: Kind = "INTERNAL",
        *,
        is_apart: bool = False,
        begun_us: int | None = None,
        **about: str | int | None,
    ) -> Iterator[str | None]:
        """Makes a span of what the block does, and yields its own `traceparent`: around messages with these contexts,
        or without any for work that has no parent. It yields None if there is none. With `is_apart` the span is not the
        current one of the block, for blocks that are generators, and its parent is the first context in any case."""
        sampled = [] if contexts is None else [*islice(self._sampled(contexts), LINKS)]
        if not sampled and contexts is not None:
            yield None
            return
        parent = self._outer(sampled[0], is_apart) if sampled else None
        links = [self._api.Link(one) for one in sampled] if kind != "SERVER" else []  # its context is its parent
        span = self._begin(operation, topic, parent, kind, begun_us, links, about)
        with self._ending(span), self._api.use_span(span, False, False, False) if not is_apart else nullcontext():
            yield self._traceparent(span)

    @contextmanager
    def process(self, topic: str, headers: Mapping[str, str] | None, **about: str | int | None) -> Iterator[str | None]:
        """Makes the span of a handler, as a child of its message's context, which the sampler judges."""
        context = self._context(valid((headers or {}).get(TRACEPARENT)))
        current = self._api.get_current_span().get_span_context()
        links = [self._api.Link(one) for one in (context, current) if one is not None and one.is_valid]
        parent = self._with(context) if context else self._with(self._api.INVALID_SPAN_CONTEXT)
        span = self._begin("process", topic, parent, "CONSUMER", None, links, about)
        with self._ending(span), self._api.use_span(span, False, False, False):
            yield self._traceparent(span)

    def create(self, topic: str, headers: dict[str, str] | None) -> dict[str, str] | None:
        """Makes the span of a message that is handed to a producer, and returns the message's headers with its context.
        A message that has a context of its own keeps it."""
        if headers and TRACEPARENT in headers:
            return headers
        span = self._begin("create", topic, None, "PRODUCER", None, [], {})
        span.end()
        own = self._traceparent(span)
        return {**(headers or {}), TRACEPARENT: own} if own else headers

    @contextmanager
    def send(self, topic: str) -> Iterator[str | None]:
        """Makes the span of one request that publishes messages, whose context it is. Yields None if it is not
        sampled."""
        span = self._begin("send", topic, None, "PRODUCER", None, [], {})
        with self._ending(span):
            yield self._traceparent(span)

    async def around(self, work: Awaitable[T], *named: Any, **about: Any) -> T:
        """Returns the result of work within a span, which is made as `span` does."""
        with self.span(*named, **about):
            return await work

    def ids(self) -> dict[str, str]:
        """Returns the ids of the trace and the span in which the caller is."""
        span = self._api.get_current_span()
        if not span.is_recording():
            return {}
        context = span.get_span_context()
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    def _sampled(self, contexts: Iterable[str]) -> Iterator["SpanContext"]:
        seen = set[str]()
        for text in contexts:  # one by one: nobody wants all of an entry's
            if text in seen:
                continue
            seen.add(text)
            found = valid(text)
            if found is not None and found.endswith(_SAMPLED) and (context := self._context(found)):
                yield context

    def _context(self, text: str | None) -> "SpanContext | None":
        if text is None:
            return None
        _, trace, span, flags = text.split("-")
        return self._api.SpanContext(int(trace, 16), int(span, 16), True, self._api.TraceFlags(int(flags, 16)))

    def _outer(self, first: "SpanContext", is_apart: bool) -> "Context | None":
        """Returns the parent of a span around messages: None is the current span."""
        return None if not is_apart and self._api.get_current_span().is_recording() else self._with(first)

    def _with(self, context: "SpanContext") -> "Context":
        return self._api.set_span_in_context(self._api.NonRecordingSpan(context))

    def _begin(
        self,
        operation: str,
        topic: str,
        parent: "Context | None",
        kind: Kind,
        begun_us: int | None,
        links: Any,
        about: Mapping[str, str | int | None],
    ) -> "Span":
        attributes: dict[str, str | int] = {"messaging.system": NAME, "messaging.operation.name": operation}
        type = _TYPES.get(operation, operation)
        found = {
            "messaging.operation.type": type if type in _OF_CONVENTIONS else None,
            "messaging.destination.name": topic or None,
            "messaging.destination.subscription.name": about.get("subscription"),
            "messaging.destination.partition.id": about.get("segment"),
            "messaging.batch.message_count": about.get("count"),
            "messaging.message.id": about.get("id"),
            "seaweedq.broker": about.get("broker"),
        }
        attributes |= {name: value for name, value in found.items() if value is not None}
        return self._tracer.start_span(
            f"{operation} {topic}" if topic else operation,
            parent,
            self._api.SpanKind[kind],
            attributes,
            links,
            None if begun_us is None else begun_us * 1000,
        )

    @contextmanager
    def _ending(self, span: "Span") -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._api.StatusCode.ERROR)
            raise
        finally:
            span.end()

    def _traceparent(self, span: "Span") -> str | None:
        """Returns the context of a span as the header; None if it is not sampled."""
        context = span.get_span_context()
        sampled = context.trace_flags.sampled
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-01" if sampled else None
