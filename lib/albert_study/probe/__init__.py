"""A trained model asked again under other attentions: on its task's examples, and on paragraphs."""
