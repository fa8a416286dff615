"""The device that networks live on, tried before anything is built there."""

from __future__ import annotations

import torch

from tickrate.errors import ConfigError


def usable_device(name: str | torch.device) -> torch.device:
    """Return the device of that name.

    Raises:
        ConfigError: if torch knows no such device, or cannot use it on this machine; says why.
    """
    try:
        device = torch.device(name)
        torch.Generator(device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"the device {str(name)!r} (trainer.device) cannot be used here: {reason}. Set it to cpu, or "
            "install the build of torch that drives it"
        ) from error
    return device
