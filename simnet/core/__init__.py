"""Text with units becomes checked data, and files are read and written; knows nothing of clusters."""
