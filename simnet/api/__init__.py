"""The Python API: the questions of the command line as functions, and answers that draw and report themselves."""
