"""The command line: one file per command; everything that a user's terminal shows passes through here."""
