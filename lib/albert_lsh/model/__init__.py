"""An ordinary Transformers encoder with one of our attentions: loaded, switched, extended, changed.

load          load_model, switch_attention, extend_positions, load_tokenizer
projections   what changes around an attention: new projections, a convolution, no residual connection
memory        training in less memory
padding       a model that pads every text to one length
classes       classes that are made while a program runs, and pickled
"""
