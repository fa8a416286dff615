"""SAC's presets, made small, for the tests of algorithms."""

from tickrate.config.experiment import experiment_from_mapping


def preset(name, **changes):
    """Return the settings of one of SAC's presets, with changes as in an experiment file."""
    return experiment_from_mapping({"algorithm": {"preset": name, **changes}}).algorithm.settings
