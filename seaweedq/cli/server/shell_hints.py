"""Commands to paste: how to reach a topic from curl, DuckDB and Spark."""


def lines(url: str, topic: str, path: str, value: str = '{"n": 1}') -> list[str]:
    """Returns commands for a topic: `url` is a broker's, `path` the topic's directory on the store, as a URL.

    `value` is a valid value of the topic, as JSON; if it is empty, no command publishes.
    """
    directory = location(path)
    publish = f"curl {url}/v1/topics/{topic}/messages -H 'content-type: application/json' -d '{{\"value\": {value}}}'"
    shown = f"curl {url}/v1/topics/{topic}"
    return [
        *([publish, shown] if value else [shown, f"curl '{url}/v1/topics/{topic}/segments/0/messages?limit=2'"]),
        f"seaweedq pull {topic} --subscription mine --start earliest --url {url}",
        f"duckdb -c \"SELECT segment, count(*) FROM read_parquet('{directory}/**/*.parquet', hive_partitioning = true) "
        f'GROUP BY segment"',
        f'spark.read.parquet("{directory}").show()',
    ]


def location(path: str) -> str:
    """Returns a directory as readers of Parquet expect it: a plain path for a file:// URL."""
    return path.removeprefix("file://").rstrip("/")
