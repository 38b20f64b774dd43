"""Small models trained from nothing on long sequences."""
