"""`seaweedq verify`: checks that a topic's files are sound, and that the broker returns the same rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, complain, one_line, printable, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_json, say_table
from seaweedq.extras import needs

if TYPE_CHECKING:
    from seaweedq.cli.verify_run import Audit, Verdict

EXAMPLES = """Examples: seaweedq verify flights · seaweedq verify flights --sample 0.05 ·
seaweedq verify flights --data-dir seaweedq-data · seaweedq verify flights --store file:///mnt/store --url http://b:8080"""
DAMAGED, BLIND = 1, 2
_NUMBERS = "segment, files, offsets, read, answered, tail, findings"
_HEAD = columns(_NUMBERS, numbers=_NUMBERS)


def verify(
    context: typer.Context,
    topic: Topic,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Audit the files in the broker data folder at this path; the command contacts a broker only if you "
            "also pass --url."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="Audit the files in the store at this URL; the command contacts a broker only if you also pass --url."
        ),
    ] = None,
    sample: Annotated[
        float,
        typer.Option(min=0, max=1, help="Fraction of the rows to read."),
    ] = 1,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Audit a topic: check that no file is missing, check checksums, offsets and metadata, and compare the rows in the
    files with the messages that brokers return. The command reports a missing payload, or a payload of the wrong
    size, as damage.

    The exit code is 0 if the topic is sound, 1 if the audit found damage, and 2 if the audit could not be completed."""
    with needs("server", "seaweedq verify"):
        from seaweedq.cli.verify_run import Audit
    from seaweedq.errors import SeaweedqError

    root = store or (f"file://{data_dir.absolute() / 'store'}" if data_dir else None)
    source = context.get_parameter_source("url")
    asked = source is not None and source.name == "COMMANDLINE"
    audit = Audit(topic, None if root and not asked else url, root, sample)
    complete = False
    try:
        _watch(audit)
        complete = True
    except (SeaweedqError, OSError, ValueError) as error:
        complain(f"could not audit all of topic {topic}: {one_line(error)}")
        raise typer.Exit(BLIND) from None
    finally:
        if output == JSON:
            say_json(_facts(topic, audit, complete))
        else:
            _print(audit, output)
    findings = len(audit.findings)
    if output != JSON:
        say(f"topic {topic}: " + (f"DAMAGED, {findings} findings" if findings else "sound"))
    if findings:
        raise typer.Exit(DAMAGED)


def _watch(audit: "Audit") -> None:
    """Runs the audit, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("listing", total=None)
        for done, total in audit.run():
            progress.update(task, description=f"{audit.rows:,} rows", completed=done, total=total)


def _print(audit: "Audit", output: str) -> None:
    """Prints the table and the findings."""
    if audit.verdicts:
        say_table(output, _HEAD, (_row(one, audit.live) for one in audit.verdicts))
    if audit.payloads.named or audit.payloads.notes:
        say(f"payloads referred to by messages: {len(audit.payloads.named):,}")
    for note in audit.payloads.notes:
        say(note)
    for finding in audit.findings:
        say(printable(f"{finding.where}: {finding.what}"))


def _row(one: "Verdict", live: bool) -> tuple[str, ...]:
    chain = one.chain
    offsets = f"{chain.start or 0:,} to {'?' if chain.end is None else format(chain.end, ',')}"
    answers = [f"{one.answered:,}", f"{one.tail:,}"] if live else ["", ""]
    findings = str(len(chain.findings) or "none")
    return str(chain.segment), f"{chain.entries:,}", offsets, f"{one.read:,}", *answers, findings


def _facts(topic: str, audit: "Audit", complete: bool) -> dict[str, Any]:
    """Returns the audit's result for JSON output."""
    segments = [
        {
            "segment": one.chain.segment,
            "files": one.chain.entries,
            "start_offset": one.chain.start,
            "end_offset": one.chain.end,
            "read": one.read,
            "answered": one.answered if audit.live else None,
            "tail": one.tail if audit.live else None,
            "findings": len(one.chain.findings),
        }
        for one in audit.verdicts
    ]
    return {
        "topic": topic,
        "complete": complete,
        "findings": [{"where": finding.where, "what": finding.what} for finding in audit.findings],
        "segments": segments,
        "payloads": len(audit.payloads.named),
        "notes": audit.payloads.notes,
    }
