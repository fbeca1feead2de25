"""Put the commit into the wheel: an installed package has no git to ask."""

import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Write the commit to a file of the wheel, where there is one."""

    _folder = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Add the file to what is packed.

        Args:
            version: of the target, which is the same for all.
            build_data: of hatch; `force_include` names what to add.
        """
        root = Path(self.root)
        source = runpy.run_path(str(root / "simnet" / "core" / "version.py"))
        commit = source["commit_of_checkout"](root) if (root / ".git").exists() else ""
        if commit:
            self._folder = tempfile.mkdtemp()
            path = Path(self._folder) / source["COMMIT_FILE"]
            path.write_text(f"{commit}\n", encoding="utf-8")
            build_data["force_include"][str(path)] = f"simnet/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the file again: it is in the wheel.

        Args:
            version: as in `initialize`.
            build_data: as in `initialize`.
            artifact_path: the wheel.
        """
        if self._folder:
            shutil.rmtree(self._folder)
