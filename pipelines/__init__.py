"""The engine: asynchronous continuous batching. Named so by the card of the project; knows no YAML and no request files."""
