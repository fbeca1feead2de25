"""One training iteration: what each strategy does with a bucket, and how that runs beside backward."""
