"""The operations on branches that both strategies have."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from sandkeep.compat.gcri.output import Output


@runtime_checkable
class SandboxProtocol(Protocol):
    """The operations on branches, for any isolation. Ids are those that `setup_branch` and
    `setup_verification_branches` return. All raise `sandkeep.errors.SandkeepError`.
    """

    def setup_branch(self, iteration: int, branch: int, source_dir: str) -> str:
        """Make a sandbox for a branch with a copy of `source_dir`, without ignored names; return its id."""
        ...

    def setup_verification_branches(
        self, iteration: int, aggregated_branches: Iterable[Any], source_containers: Mapping[int, str]
    ) -> dict[int, str]:
        """Make a sandbox for each aggregated branch, of its sources; return their ids by index."""
        ...

    def execute_command(self, container_id: str, command: str) -> Output:
        """Run a shell command in the workspace; return its output."""
        ...

    def execute_python(self, container_id: str, code: str) -> Output:
        """Run a Python program in the workspace; return its output."""
        ...

    def commit_to_host(self, container_id: str, target_dir: str) -> None:
        """Apply what a branch changed to a directory of the host."""
        ...

    def clean_up_container(self, container_id: str) -> None:
        """Terminate a sandbox."""
        ...

    def clean_up_all(self) -> None:
        """Terminate every sandbox that this object made."""
        ...

    def get_container(self, iteration: int, branch: int | str) -> str:
        """Return the id of a branch's sandbox. Raises `not_found`."""
        ...
