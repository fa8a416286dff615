"""Complete interfaces: live things to drive, each in its own package."""
