"""Messages as rows: bodies to Arrow columns, the faults that a topic refuses, rows to answers. Pure: no HTTP framework,
no broker."""
