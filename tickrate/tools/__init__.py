"""What the commands run: examining an interface, timing an environment, driving with a policy."""
