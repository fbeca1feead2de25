"""The version of both packages, which pyproject.toml reads here: at run time no package metadata is parsed."""

VERSION = "0.1.0"
