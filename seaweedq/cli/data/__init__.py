"""Commands that publish, pull and import."""
