"""What was run in the lab beside its campaigns: each predicted, and only then run, by programs of its time.

Every sample, and every prediction with the second at which it was written, is in evidence/results/lab_*. The modules
predict anew, and make pages of both.
"""
