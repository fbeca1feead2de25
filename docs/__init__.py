"""The pages, and the tools that generate some of them."""
