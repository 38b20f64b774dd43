"""What is left of the dataclasses of parameters; see `parameters`."""
