"""Spark: payloads of messages. Spark reads topics themselves with spark.read.parquet."""
