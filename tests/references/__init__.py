"""Slow and obviously right: the references that the attentions are held to."""
