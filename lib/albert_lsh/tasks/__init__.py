"""The tasks: their data, how it is encoded, and how answers are scored."""
