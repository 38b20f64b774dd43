"""Attentions of other papers, and the block of 2020, which was built of the package reformer-pytorch."""
