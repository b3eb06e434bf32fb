"""A topic's rows as a table: its plan, files and tail."""
