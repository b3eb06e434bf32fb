"""Topics as records: the catalogue, who owns which segment, intents, creation and deletion."""
