"""Bodies of requests and of answers, within bounds of size, time and memory."""
