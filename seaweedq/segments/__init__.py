"""The parts of a segment: key ranges, key hash, record layout, Parquet entries, chain, frames, producer tables."""
