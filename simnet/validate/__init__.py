"""Predicted against published: calibrate on some rows of a publication, predict the others, tell the error."""
