"""Which system pays on one cluster, if any: every system against DDP at its best."""
