"""The former name of `binsgdm.systems`, for scripts that say it."""
