"""The tutorials: every command is run, in order (tests/example/test_shown_output.py), and every answer is shown."""

import re

from docs import shown

TUTORIALS = sorted((shown.ROOT / "docs" / "tutorial").glob("*.md"))
PAGE = (shown.ROOT / "docs" / "tutorial" / "first-answer.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_every_command_but_the_installation_shows_what_it_prints() -> None:
    followers = [kind for kind, _ in BLOCKS[1:]]
    asked = [
        (body, follower)
        for (kind, body), follower in zip(BLOCKS, followers, strict=False)
        if kind == "console" and shown.commands(body)
    ]
    assert len(asked) >= 6
    assert [body for body, follower in asked if follower != "text"] == []


def test_scripts_of_tutorials_are_files_that_their_commands_run() -> None:
    (page,) = (path for path in TUTORIALS if path.name == "your-model.md")
    text = page.read_text(encoding="utf-8")
    names = re.findall(r"^```(?:python|toml)\n# (\w+\.\w+)$", text, flags=re.MULTILINE)
    assert names == ["my_model.py", "ours.toml", "train.py", "own.toml"]
    assert all(text.count(name) + text.count(f"{name.removesuffix('.py')}:") > 1 for name in names)
