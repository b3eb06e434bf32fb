"""The segments of a topic: the map, changes by hand, history."""
