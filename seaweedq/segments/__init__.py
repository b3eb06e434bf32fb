"""What a segment is: key ranges, key hash, record layout, Parquet, chain, frames, producer table."""
