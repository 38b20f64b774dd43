"""What keys are chosen by: `hashing` (random projections, sorting, places in the text) and `kd_tree` (clusters)."""
