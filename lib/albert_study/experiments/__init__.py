"""Experiments of the study, each whole in one file."""
