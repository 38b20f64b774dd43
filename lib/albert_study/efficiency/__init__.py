"""Time and memory of attentions, side by side."""
