"""Records of what happened: one row format, its storage, the replay over it, and what is done to a batch."""
