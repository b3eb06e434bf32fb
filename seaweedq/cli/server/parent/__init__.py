"""The parent of several brokers on one machine."""
