"""Experiment files: YAML to dataclasses and back, with every key checked."""
