"""Attentions of others, measured beside ours; each file registers one by the public `albert_lsh.attention.register`."""
