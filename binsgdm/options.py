"""The options of commands that are needed rarely."""

from functools import partial

import click


class RareOption(click.Option):
    """An option that simnet shows with --help-all alone; `python -m binsgdm` shows all."""

    is_rare = True


rare = partial(click.option, cls=RareOption)
