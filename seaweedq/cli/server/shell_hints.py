"""Lines to paste: how a topic is reached from curl, DuckDB and Spark."""


def lines(url: str, topic: str, path: str, value: str = '{"n": 1}') -> list[str]:
    """Commands for a topic: `url` is a broker's, `path` the topic's directory on the store, as a URL.

    `value` is one that the topic takes, as JSON; with an empty one, nothing is published.
    """
    place = location(path)
    publish = f"curl {url}/v1/topics/{topic}/messages -H 'content-type: application/json' -d '{{\"value\": {value}}}'"
    shown = f"curl {url}/v1/topics/{topic}"
    return [
        *([publish, shown] if value else [shown, f"curl '{url}/v1/topics/{topic}/segments/0/messages?limit=2'"]),
        f"seaweedq pull {topic} --subscription mine --start earliest --url {url}",
        f"duckdb -c \"SELECT segment, count(*) FROM read_parquet('{place}/**/*.parquet', hive_partitioning = true) "
        f'GROUP BY segment"',
        f'spark.read.parquet("{place}").show()',
    ]


def location(path: str) -> str:
    """What readers of Parquet take for a directory: a plain path where it is a file:// URL."""
    return path.removeprefix("file://").rstrip("/")
