"""Training a model on a task: parameters, recipe, checkpoints, and the record of a run."""
