"""Spark: a data source and jobs, to come. Topics are read by spark.read.parquet as they are."""
