"""An ordinary Transformers encoder with one of our attentions."""
