"""A trained model asked again under other attentions, and what those attentions do in it."""
