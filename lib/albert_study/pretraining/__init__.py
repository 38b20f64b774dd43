"""Pretraining small ALBERTs on plain text, with any attention."""
