"""The words of messages, over the list that `docs/messages.py` prints; and the help of commands."""

import re
from functools import cache

import click
import pytest

from docs import messages

# Words of the house that a reader of a message stops at.
FORBIDDEN = ("told", "tells", "said", "apart", "so many", "of which", "that which", "beside", "mend", "lane", "carrier")
PATTERN = re.compile(rf"\b({'|'.join(FORBIDDEN)})\b", re.IGNORECASE)
COMMANDS = dict(messages.all_commands())


@cache
def all_messages() -> list[messages.Message]:
    return messages.messages()


def found(texts: list[messages.Message]) -> list[str]:
    """Return the texts that hold a forbidden word; an expression in braces is code and not read."""
    return [f"{text.where}: {text.text}" for text in texts if PATTERN.search(re.sub(r"{[^{}]*}", "", text.text))]


@pytest.mark.slow
def test_no_message_holds_a_forbidden_word() -> None:
    assert found([message for message in all_messages() if message.kind != "page"]) == []


@pytest.mark.slow
def test_every_kind_of_message_is_in_the_list() -> None:
    assert {message.kind for message in all_messages()} == set(messages.KINDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_and_every_option_a_help_text(name: str) -> None:
    command = COMMANDS[name]
    assert "Example" in (command.epilog or "")
    assert [param.name for param in command.params if isinstance(param, click.Option) and not param.help] == []
