"""The roles of a run: worker and companion, trainer, hub, and what holds them together."""
