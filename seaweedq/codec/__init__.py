"""Message bodies to Arrow columns, and rows to answers. Pure: no HTTP framework, no broker."""
