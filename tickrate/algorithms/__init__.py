"""Algorithms learn: ``update(batch) -> metrics``. They never see an environment or a socket."""
