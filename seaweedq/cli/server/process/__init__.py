"""The process of one broker: its life, its ports, its signals."""
