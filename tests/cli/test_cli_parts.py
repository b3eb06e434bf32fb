"""The command line without a broker: help, usage errors, records of files, and the small pure parts."""

import io
import json
import subprocess
import sys

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import seaweedq
from seaweedq.cli.bench import percentile
from seaweedq.cli.main import app, main
from seaweedq.cli.records import BadRecord, InputFormat, QuotedFile, checked, envelope, format_of, key_of, records
from seaweedq.cli.shared import common as paste
from seaweedq.cli.shared.common import one_line
from seaweedq.cli.topic.configure import until_merged
from seaweedq.errors import InvalidMessages, TopicNotFound, UnreadableBody

LONG = b"1," + b"x" * 200 + b"\n"
COMMANDS = [
    ["publish"],
    ["pull"],
    ["bench"],
    ["demo"],
    *(["topic", n] for n in ["create", "set", "list", "show", "flush", "delete"]),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"seaweedq {command[0]}" in result.stdout


def test_version_is_told():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"seaweedq {seaweedq.__version__}\n"


@pytest.mark.process
def test_help_is_quick_since_it_imports_nothing_heavy():
    check = "import sys; import seaweedq.cli.main; assert not {'httpx', 'pyarrow', 'pandas'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_no_broker_is_one_line_and_exit_code_1(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["topic", "list", "--url", "http://127.0.0.1:9"])
    assert ended.value.code == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("seaweedq: no answer from http://127.0.0.1:9")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["topic", "list", "--url", "nonsense"], "nonsense"),
        (["publish", "t", "--input-format", "xml"], "xml"),
        (["publish", "t", "--envelope", "--key-field", "k"], "--envelope"),
        (["topic", "set", "t"], "give at least one option"),
        (["topic", "set", "t", "--default", "segments"], "segments"),
        (["topic", "set", "t", "--ndjson", "bare", "--default", "ndjson"], "also given"),
        (["topic", "set", "t", "--ndjson", "bare", "--dry-run"], "--dry-run"),
        (["publish", "t", "/no/such/file"], "/no/such/file"),
        (["publish", "t", "/"], "is a folder"),
        (["pull", "t"], "--subscription"),
    ],
)
def test_wrong_usage_says_which_option(arguments, told):
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert told in result.output


def test_an_error_is_one_line_with_its_first_rows_and_hint():
    rows = [{"index": n, "reason": "no\nvalue"} for n in range(9)]
    error = InvalidMessages("9 messages are not valid", errors=rows, invalid=9, hint="look at them")
    assert one_line(error) == (
        "9 messages are not valid; message 0: no value; message 1: no value; message 2: no value; look at them"
    )
    told = InvalidMessages("message 0 is not valid: no value", errors=[{"index": 0, "reason": "no value"}], invalid=1)
    assert one_line(told) == "message 0 is not valid: no value"
    assert one_line(TopicNotFound("there is no topic 'x'.")) == "there is no topic 'x'"


def _values(data, format):
    return [json.loads(msgspec.json.encode(value)) for _, value in records(io.BytesIO(data), format)]


def test_records_of_each_format():
    expected = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(expected), sink)
    assert _values(b'{"a":1,"b":"x"}\n\n{"a":2,"b":"y"}', InputFormat.NDJSON) == expected
    assert _values(b"a,b\n1,x\n2,y\n", InputFormat.CSV) == expected
    assert _values(sink.getvalue(), InputFormat.PARQUET) == expected


@pytest.mark.parametrize("format", [InputFormat.CSV, InputFormat.PARQUET])
def test_a_file_of_another_kind_is_refused(format):
    with pytest.raises(UnreadableBody, match=format):
        list(records(io.BytesIO(b'"a\n\x00'), format))


def test_malformed_rows_of_csv_are_bad_records_at_their_places():
    rows = [b"%d,x\n" % n if n % 50_000 else b"%d\n" % n for n in range(1, 200_001)]  # several of pyarrow's blocks
    found = dict(records(io.BytesIO(b"a,b\n" + b"".join(rows) + b"1,2,3\n"), InputFormat.CSV))
    assert list(found) == list(range(1, 200_002))
    bad = {place: str(record) for place, record in found.items() if isinstance(record, BadRecord)}
    short = "2 columns expected, but the row has 1"
    assert bad == {**dict.fromkeys(range(50_000, 200_001, 50_000), short), 200_001: f"{short[:-1]}3"}
    assert all(found[place]["a"] == place for place in found.keys() - bad.keys())
    with pytest.raises(BadRecord, match=short):
        checked(found[50_000])


def test_a_byte_order_mark_at_the_start_is_no_part_of_a_record():
    mark = b"\xef\xbb\xbf"
    assert _values(mark + b'{"a": 1}\n2\n', InputFormat.NDJSON) == [{"a": 1}, 2]
    assert _values(mark + b"a,b\n1,2\n", InputFormat.CSV) == [{"a": 1, "b": 2}]
    assert _values(mark, InputFormat.NDJSON) == []


def test_columns_of_one_name_are_refused():
    with pytest.raises(UnreadableBody, match="several columns have the name 'a'"):
        list(records(io.BytesIO(b"a,b,a\n1,2,3\n"), InputFormat.CSV))


def _of_csv(data):
    return [
        (place, str(row) if isinstance(row, BadRecord) else row)
        for place, row in records(io.BytesIO(data), InputFormat.CSV)
    ]


def test_texts_of_csv_that_are_not_utf_8_are_bad_records_others_stay_texts():
    wrong = "column 'b' is not UTF-8"
    assert _of_csv(b"a,b\n1,\xff\xfe\n2,ok\n3,\xc3\xa9\n") == [
        (1, wrong),
        (2, {"a": 2, "b": "ok"}),
        (3, {"a": 3, "b": "é"}),
    ]
    text = "x" * 200
    rows = [b"%d,%b\n" % (n, text.encode()) for n in range(1, 10_001)]
    rows[9_000] = b"9001,\xff\n"  # not in the first of pyarrow's blocks
    found = dict(_of_csv(b"a,b\n" + b"".join(rows)))
    assert found.pop(9_001) == wrong
    assert all(row == {"a": place, "b": text} for place, row in found.items())
    assert len(found) == 9_999


@pytest.mark.parametrize("data", [b"a,b\xff\n1,2\n", "a,b\n1,2\n".encode("utf-16")])
def test_names_of_columns_that_are_not_utf_8_are_refused(data):
    with pytest.raises(UnreadableBody, match="a column name is not valid UTF-8"):
        _of_csv(data)


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b'a,b\n1,"x\n2,3\n4,5\n', "row 1"),
        (b'a,b\n1,2\n2,"3', "row 2"),
        (b'a,b\n1,2\n2,"', "row 2"),
        (b'a,b\n1,2\n2,"x""', "row 2"),
        (b'a,b\n1,2\n"2,x\n3,4\n', "row 2"),  # a row of one column
        (b'a,b\n1,"x"\n2,"x\n3,"4"\n', "row 2"),
        (b'a,b\n1,2\n2,"x\n3,4\n"5","6"\n', "row 2"),
        (b'\xef\xbb\xbf"a,b\n1,2\n', "the header"),
        (b"a,b\n" + LONG * 10_000 + b'2,"\n' + LONG * 20_000, "row 10001"),
    ],
)
def test_a_quote_of_csv_that_is_not_closed_is_refused_with_its_row(data, where):
    found = []
    with pytest.raises(UnreadableBody, match=f"a quote in {where} is not closed"):
        found.extend(records(io.BytesIO(data), InputFormat.CSV))
    assert all(isinstance(row, BadRecord) or "\n" not in str(row) for _, row in found)


def test_quotes_of_csv_that_are_closed_or_open_nothing_are_taken():
    assert _of_csv(b'a,b\n1,"x\n""y"""\n2,5" disk\n3,"x"y"\n4,"z"') == [
        (1, {"a": 1, "b": 'x\n"y"'}),
        (2, {"a": 2, "b": '5" disk'}),
        (3, {"a": 3, "b": 'xy"'}),
        (4, {"a": 4, "b": "z"}),
    ]
    text = "p\n" * 100  # so that some values are on both sides of pyarrow's blocks
    many = _of_csv(b"a,b\n" + f'1,"{text}"\n'.encode() * 10_000)
    assert [row for _, row in many] == [{"a": 1, "b": text}] * 10_000


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_quotes_are_watched_however_the_file_is_read(size):
    for text, is_open in (
        (b'a,"b""",""\n"', True),
        (b'"a"",b', True),
        (b'a"b,"""",c"\n"d"', False),
        (b'"""', True),
        (b'a\n"b\n"c"\nd', True),
    ):
        quotes = QuotedFile(io.BytesIO(text))
        while quotes.read(size):
            pass
        assert quotes.open is is_open, text


def test_formats_go_by_suffix(tmp_path):
    assert [format_of(tmp_path / name) for name in ("a.CSV", "b.parquet", "c.txt")] == ["csv", "parquet", "ndjson"]
    assert format_of(None) == "ndjson"


def test_keys_of_records():
    line = msgspec.Raw(b'{"a": "x", "b": 1.5, "c": null, "d": []}')
    assert [key_of(line, field) for field in "abcz"] == ["x", "1.5", None, None]
    assert key_of({"a": "x"}, "a") == "x"
    with pytest.raises(BadRecord, match="the field d is an object or an array"):
        key_of(line, "d")
    with pytest.raises(BadRecord, match="not JSON"):
        key_of(msgspec.Raw(b"{"), "a")
    with pytest.raises(BadRecord, match="not UTF-8"):
        key_of(msgspec.Raw(b'{"a":"\xff"}'), "a")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"no json\n", "not JSON (column 1)"),
        (b"{'a': 1}\n", "not JSON (column 2)"),
        (b'{"a": 1\n', "not JSON (cut off)"),
        (b'{"a": 1}}\n', "not JSON (column 9)"),
        (b'{"a": NaN}\n', "not JSON (NaN and Infinity are not)"),
        (b'\xef\xbb\xbf{"a": 1}\n', "not JSON (column 1)"),
    ],
)
def test_lines_that_are_not_json_are_told_by_column(line, said):
    with pytest.raises(BadRecord) as caught:
        checked(msgspec.Raw(line))
    assert str(caught.value) == said
    good = msgspec.Raw(b'{"a": 1}\n')
    assert checked(good) is good


def test_places_are_those_of_lines_also_behind_empty_ones():
    assert [place for place, _ in records(io.BytesIO(b"1\n\n \n2\n"), InputFormat.NDJSON)] == [1, 4]
    assert [place for place, _ in records(io.BytesIO(b"a\n1\n2\n"), InputFormat.CSV)] == [1, 2]


def test_envelopes_are_checked_by_line():
    good = msgspec.Raw(b'{"value": 1, "key": "k"}')
    assert envelope(good) == {"value": 1, "key": "k"}
    for bad in (b'{"key": "k"}', b"[]", b'{"value": 1, "kye": "k"}'):
        with pytest.raises(BadRecord, match="must be a message"):
            envelope(msgspec.Raw(bad))


def test_percentiles_are_nearest_ranks():
    assert [percentile(range(1, 101), share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([], 0.5) == 0
    assert percentile([7.0], 0.01) == 7


def test_lines_to_paste_name_the_directory_as_readers_take_it():
    text = "\n".join(paste.lines("http://b:1", "t", "file:///data/my store/topics/t"))
    assert 'spark.read.parquet("/data/my store/topics/t")' in text
    assert "seaweedq sql 'SELECT segment, count(*) FROM t GROUP BY segment' --url http://b:1\n" in text
    assert """-d '{"value": {"n": 1}}'""" in text
    assert text.startswith("curl http://b:1/v1/topics/t/messages ")  # before there is a topic all else is 404
    assert "-d '" not in "\n".join(paste.lines("http://b:1", "t", "file:///x", value=""))
    assert paste.location("s3://bucket/topics/t") == "s3a://bucket/topics/t"


@pytest.mark.parametrize("arguments", [["topic", "show", "\udcff"], ["sql", "SELECT '\udcff'"], ["\udcff"]])
def test_an_argument_that_is_no_text_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("seaweedq: an argument is neither UTF-8 nor a file path: b")


POLICY = {"enabled": True, "min_segments": 1, "cool_down_s": 600.0}


def test_a_split_that_the_balancer_would_undo_says_how_to_keep_it() -> None:
    said = until_merged("flights", POLICY, 3)
    assert said is not None
    assert "after 600 s" in said
    assert said.endswith("seaweedq topic set flights --min-segments 3")


@pytest.mark.parametrize("policy", [{**POLICY, "enabled": False}, {**POLICY, "min_segments": 3}])
def test_one_that_stays_says_nothing(policy: dict[str, object]) -> None:
    assert until_merged("flights", policy, 3) is None
