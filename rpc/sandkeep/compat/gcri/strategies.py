"""Strategies: sandboxes for branches as containers, or on this machine without containers."""

import logging
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final

from sandkeep.blocking import Client, connect
from sandkeep.clients.pages import every
from sandkeep.compat.gcri.config import BASELINE, Policy, SandboxConfig, configuration
from sandkeep.compat.gcri.output import MAX_BYTES, Output, output_of
from sandkeep.compat.gcri.verification import Aggregated, aggregated, later, merge_conflict, paths_of
from sandkeep.errors import CallerError, SandkeepError, SetupError, StateError
from sandkeep.model import Capabilities, Conflict, Diff, ExecResult, FileChange, Image, Merged, ProviderChoice
from sandkeep.settings.daemon import parse_size

logger = logging.getLogger("sandkeep.compat.gcri")

FALLING_BACK: Final = "Docker unavailable, falling back to LocalSandbox"

NAME_LABEL: Final = "gcri.name"
"""Label by which the engine finds a sandbox's container."""

_MOST_DECISIONS: Final = 10_000
_INSTALL: Final = "test ! -e requirements.txt || exec pip install -q -r requirements.txt"
_PYTHON: Final = 'exec "$(command -v python3 || echo python)" "$1"'


class SandboxStrategy(ABC):
    """A `SandboxProtocol`, for any isolation. `config` is anything that `configuration` reads."""

    provider: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(self, config: Any = None) -> None:
        self.config = configuration(config)
        self._lock = threading.Lock()
        self._containers: dict[str, str] = {}
        """Names of sandboxes by iteration and branch, as the originals' registry has them."""
        self._made: dict[str, None] = {}
        """Names of all sandboxes that this object made, or began to make, and did not terminate."""
        self._images: dict[str, None] = {}
        self._run_labels = {"gcri.run": secrets.token_hex(8)}
        """Labels of images: one is used again for the same labels only, so these are this object's own."""

        self._imaging = threading.Lock()
        """Held while an image is made: of several that Docker builds at once, none is like the others."""

    @abstractmethod
    def _base(self) -> str | None:
        """Return the reference of the image that a project is put onto."""

    @abstractmethod
    def _create(self, client: Client, image_id: str, **about: Any) -> None:
        """Make a sandbox with the limits of the configuration."""

    # -- branches -----------------------------------------------------------------------------------------------------

    def setup_branch(self, iteration: int, branch: int, source_dir: str) -> str:
        """Make a sandbox for a branch with a copy of `source_dir`, without ignored names; return its id.

        Branches of a directory have one base as long as the directory is unchanged, and can be merged.
        """
        container_id = self._name(iteration, branch)
        with self._making() as made, _daemon() as client:
            made.append(container_id)
            image_id, labels = self._image_of(client, source_dir), _labels(container_id, iteration, branch)
            self._create(client, image_id, name=container_id, provider=self.provider, labels=labels)
            self._prepare(client, container_id)
            with self._lock:
                self._containers[_key(iteration, branch)] = container_id
        return container_id

    def _image_of(self, client: Client, source_dir: str) -> str:
        """Return an image of a directory: the same one as long as the directory is unchanged."""
        source = os.path.abspath(source_dir)
        if not os.path.isdir(source):
            raise CallerError("not_found", f"{source} is not a directory", path=source)
        with self._imaging:
            image: Image = client.image.create(
                source,
                provider=self.provider,
                base=self._base(),
                ignore=[*self.config.ignore, BASELINE],
                labels=self._run_labels,
            )
        with self._lock:
            self._images[image.image_id] = None
        return image.image_id

    def clone_container(self, source_container_id: str, iteration: int, branch: int | str) -> str:
        """Make a sandbox for a branch as a copy-on-write copy of another one; return its id."""
        with self._making() as made, _daemon() as client:
            container_id = self._fork(client, source_container_id, iteration, branch, made)
            with self._lock:
                self._containers[_key(iteration, branch)] = container_id
        return container_id

    def _fork(self, client: Client, source: str, iteration: int, branch: int | str, made: list[str]) -> str:
        name = self._name(iteration, branch)
        made.append(name)
        client.sandbox.fork(source, names=[name], labels=_labels(name, iteration, branch))
        _mark(client, name)
        return name

    def _prepare(self, client: Client, container_id: str) -> None:
        """Install the requirements of a project, where that is configured, and mark the end of the setup. A failed
        installation is a warning.
        """
        if self._has_writable_root:
            done = self._run(client, container_id, ["sh", "-c", _INSTALL])
            if done.exit_code != 0:
                logger.warning("requirements of %s were not installed: %s", container_id, done.strip()[-300:])
        _mark(client, container_id)

    @property
    def _has_writable_root(self) -> bool:
        return False

    def get_container(self, iteration: int, branch: int | str) -> str:
        """Return the id of the sandbox of a branch, or of ``v_INDEX``, an aggregated one. Raises `not_found`."""
        try:
            return self._containers[_key(iteration, branch)]
        except KeyError:
            message = f"iteration {iteration} has no branch {branch}: set it up first"
            raise CallerError("not_found", message) from None

    # -- verification -------------------------------------------------------------------------------------------------

    def setup_verification_branches(
        self, iteration: int, aggregated_branches: Iterable[Any], source_containers: Mapping[int, str]
    ) -> dict[int, str]:
        """Make a sandbox for each aggregated branch, and return their ids by index.

        With one source that is its sandbox, or a copy-on-write copy if another aggregated branch has it already; with
        several it is a new one, with their merged files. Then terminates the sandboxes that are nobody's source.

        Aggregated branches are objects or mappings with `index` and `source_indices`; with a `file_selection` of their
        own, its paths come first. Raises `merge_conflict`, with `conflicts` in its data, and `invalid`. When it raises,
        it has made nothing, and no source has changed.
        """
        branches = aggregated(aggregated_branches, source_containers, self.config)
        claimed = self._claimed(iteration, branches)
        verified: dict[int, str] = {}
        with self._making() as made, _daemon() as client:
            for branch in branches:
                first = branch.containers[0]
                if len(branch.containers) > 1:
                    verified[branch.index] = self._merge(client, iteration, branch, made)
                elif first in claimed:
                    verified[branch.index] = self._fork(client, first, iteration, _verified(branch.index), made)
                else:
                    claimed.add(first)
                    verified[branch.index] = first
            with self._lock:
                self._containers |= {_key(iteration, _verified(i)): name for i, name in verified.items()}
        used = {container_id for branch in branches for container_id in branch.containers}
        self._clean_up_unused(container_id for container_id in source_containers.values() if container_id not in used)
        return verified

    def _claimed(self, iteration: int, branches: Iterable[Aggregated]) -> set[str]:
        """Return the sandboxes of other aggregated branches of the iteration."""
        these = {_key(iteration, _verified(branch.index)) for branch in branches}
        prefix = _key(iteration, _verified(""))
        with self._lock:
            known = list(self._containers.items())
        return {container_id for key, container_id in known if key.startswith(prefix) and key not in these}

    def _merge(self, client: Client, iteration: int, branch: Aggregated, made: list[str]) -> str:
        """Merge the sources of an aggregated branch into a new sandbox, or leave nothing of the merge."""
        policy, index = self.config.merge_policy or "fail", _verified(branch.index)

        def conflict(merged: Merged, conflicts: list[Conflict]) -> StateError:
            return merge_conflict(iteration, branch.index, branch.source_indices, conflicts, merged)

        labels = {"gcri.iteration": str(iteration), "gcri.branch": index}
        return self._merged(client, branch.containers, policy, made, conflict, branch.takes, labels)

    def merge_containers(self, source_containers: Sequence[str], source_dir: str = "") -> str:  # noqa: ARG002
        """Merge sandboxes, over what they began with, into a new one, and return its id; of one, its own.

        What several changed differently is decided by `merge_policy`: by default for the last of them that has it,
        with a warning that names the paths, as the originals' callers go on with the first source after any error.
        """
        containers = list(dict.fromkeys(source_containers))
        if not containers:
            raise CallerError("invalid", "source_containers: give at least one", field="source_containers")
        if len(containers) == 1:
            return containers[0]

        def conflict(merged: Merged, conflicts: list[Conflict]) -> StateError:
            return merge_conflict(None, None, containers, conflicts, merged)

        with self._making() as made, _daemon() as client:
            return self._merged(client, containers, self.config.merge_policy or "later", made, conflict)

    def _merged(
        self, client: Client, containers: Sequence[str], policy: Policy, made: list[str],
        conflict: Callable[[Merged, list[Conflict]], StateError], takes: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str:  # fmt: skip
        name = f"gcri_merged_{secrets.token_hex(4)}"
        made.append(name)
        merged: Merged = client.branch.merge(
            list(containers), name=name, policy="fail" if policy == "later" else policy,
            ours=containers[0] if policy == "ours" else None, takes=dict(takes or {}),
            labels={NAME_LABEL: name, **(labels or {})}, workspace_only=self._has_writable_root,
        )  # fmt: skip
        if merged.sandbox is None:
            merge_id = merged.merge.merge_id
            try:
                conflicts: list[Conflict] = every(client.branch.conflicts, merge_id=merge_id)
                if policy != "later":
                    raise conflict(merged, conflicts)
                self._take_later(client, merge_id, containers, conflicts)
            except BaseException:
                with suppress(SandkeepError):
                    client.branch.abandon(merge_id)
                raise
        self._prepare(client, name)
        return name

    def _take_later(self, client: Client, merge_id: str, containers: Sequence[str], conflicts: list[Conflict]) -> None:
        """Decide conflicts for the last branch that has something there: first what clashes, then what is left."""
        logger.warning("changed differently, and taken from the later branch: %s", paths_of(conflicts))
        for whole in (False, True):
            decisions = [later(conflict, containers, whole=whole) for conflict in conflicts]
            for start in range(0, len(decisions), _MOST_DECISIONS):
                resolved = client.branch.resolve(merge_id, decisions=decisions[start : start + _MOST_DECISIONS])
            if resolved.sandbox is not None:
                return
            conflicts = every(client.branch.conflicts, merge_id=merge_id)

    def _clean_up_unused(self, container_ids: Iterable[str]) -> None:
        for container_id in container_ids:
            try:
                self.clean_up_container(container_id)
            except SandkeepError as error:  # the others are ready; `clean_up_all` tries again
                logger.warning("an unused branch was not removed", extra={"branch": container_id, "why": str(error)})

    # -- commands -----------------------------------------------------------------------------------------------------

    def execute_command(self, container_id: str, command: str) -> Output:
        """Run a shell command in the workspace; return its output, or the reason why there is none."""
        with _daemon() as client:
            return self._run(client, container_id, ["sh", "-c", command])

    def _execute_in_container(self, container_id: str, command: Sequence[str], stdout_only: bool = False) -> Output:
        """Run a program with its arguments in the workspace, for the originals' own modules, which call this. With
        `stdout_only` return its stdout as it is, or its stderr as an error.
        """
        with _daemon() as client:
            return self._run(client, container_id, list(command), stdout_only=stdout_only)

    def execute_python(self, container_id: str, code: str) -> Output:
        """Run a Python program in the workspace; return its output as `execute_command` does."""
        script = f"_script_{secrets.token_hex(4)}.py"
        with _daemon() as client:
            try:
                client.sandbox.write_file(container_id, path=script, data=code.encode())
            except SandkeepError as error:
                return Output(f"Error: {error.message}")
            try:
                return self._run(client, container_id, ["sh", "-c", _PYTHON, "sh", script])
            finally:
                with suppress(SandkeepError):  # the sandbox has ended
                    client.sandbox.exec(container_id, ["rm", "-f", "--", script])

    def _run(self, client: Client, container_id: str, command: list[str], *, stdout_only: bool = False) -> Output:
        timeout = self.config.timeout
        try:
            done: ExecResult = client.sandbox.exec(container_id, command, timeout_s=timeout)
            return output_of(client, done, timeout, stdout_only=stdout_only)
        except SandkeepError as error:
            return Output(f"Error: {error.message}")

    def get_container_files(self, container_id: str) -> dict[str, str]:
        """Return the text of the files that are not as in the project, by their paths in the workspace; without ignored
        ones, and names that are not UTF-8. A sandbox that has ended, or cannot be compared, has none, with a warning.
        """
        with _daemon() as client:
            try:
                image_id = client.sandbox.get(container_id).image_id
                found: Diff = client.sandbox.diff(container_id, base=image_id)
                if found.truncated:
                    logger.warning("the first %d changes of %s are listed, not all", len(found.files), container_id)
                files = (file for file in found.files if file.kind == "file" and file.path_bytes is None)
                return {each.path: _text_of(client, container_id, each) for each in files if each.change != "deleted"}
            except SandkeepError as error:
                logger.warning("the files of %s cannot be listed: %s", container_id, error.message)
                return {}

    # -- results ------------------------------------------------------------------------------------------------------

    def commit_to_host(self, container_id: str, target_dir: str) -> None:
        """Apply what a branch changed to `target_dir`, all or none; deletions too, and without ignored names.

        Raises `host_changed` if files of the host are not as the branch found them, or as it committed them before.
        """
        with _daemon() as client:
            client.branch.commit(container_id, os.path.abspath(target_dir))

    # -- cleaning up --------------------------------------------------------------------------------------------------

    def clean_up_container(self, container_id: str) -> None:
        """Terminate a sandbox. One that has ended is left as it is."""
        with _daemon() as client:
            client.sandbox.terminate(container_id)
        self._forget(container_id)

    def clean_up_all(self) -> None:
        """Terminate every sandbox that this object made, remove the images, and then raise the first error, if any."""
        with self._lock:
            known = dict.fromkeys([*self._containers.values(), *self._made])
        failures = self._discard(known)
        self._remove_images()
        if failures:
            raise failures[0]

    def _forget(self, container_id: str) -> None:
        with self._lock:
            self._made.pop(container_id, None)
            for key in [key for key, known in self._containers.items() if known == container_id]:
                del self._containers[key]

    def _remove_images(self) -> None:
        """Remove the images, but for those of sandboxes that could not be terminated."""
        with self._lock:
            images, self._images = self._images, {}
        if not images:
            return
        with _daemon() as client:
            for image_id in images:
                try:
                    client.image.remove(image_id)
                except StateError:  # it is in use
                    with self._lock:
                        self._images[image_id] = None
                except CallerError:
                    pass  # it is gone

    @contextmanager
    def _making(self) -> Iterator[list[str]]:
        """Collect the names of sandboxes before they are made, and terminate them if the block fails."""
        made: list[str] = []
        try:
            yield made
        except BaseException as error:
            self._discard(made)
            if not isinstance(error, SandkeepError):  # the daemon may go on with a call that was interrupted
                self._remember(made)
            raise
        self._remember(made)

    def _remember(self, names: Iterable[str]) -> None:
        with self._lock:
            self._made |= dict.fromkeys(names)

    def _discard(self, names: Iterable[str]) -> list[SandkeepError]:
        """Terminate sandboxes, and return the errors; `clean_up_all` tries again what failed."""
        failures = []
        for name in names:
            try:
                self.clean_up_container(name)
            except SandkeepError as error:
                if error.code == "not_found":
                    self._forget(name)
                else:
                    self._remember([name])
                    failures.append(error)
        return failures

    def _name(self, iteration: int, branch: int | str) -> str:
        return f"{self.prefix}_{iteration}_{branch}_{secrets.token_hex(4)}"


class DockerSandbox(SandboxStrategy):
    """Branches as containers."""

    provider = "docker"
    prefix = "gcri_branch"

    def _base(self) -> str:
        return self.config.image

    @property
    def _has_writable_root(self) -> bool:
        return self.config.writable_root

    def _create(self, client: Client, image_id: str, **about: Any) -> None:
        client.sandbox.create(
            image_id,
            writable_root=self.config.writable_root,
            memory_bytes=parse_size(self.config.memory_limit),
            cpus=self.config.cpu_limit,
            network=self.config.network_mode,
            **about,
        )


class LocalSandbox(SandboxStrategy):
    """Branches on this machine, without containers."""

    provider = "local"
    prefix = "gcri_local"

    def _base(self) -> None:
        return None

    def _create(self, client: Client, image_id: str, **about: Any) -> None:
        about["memory_bytes"] = parse_size(self.config.memory_limit)
        about["network"] = "none" if self.config.network_mode == "bridge" else self.config.network_mode
        try:
            client.sandbox.create(image_id, cpus=self.config.cpu_limit, **about)
        except SetupError as error:
            if "cpus" not in error.message:
                raise
            logger.info("processors are not limited", extra={"why": error.message})
            client.sandbox.create(image_id, **about)


def get_sandbox(config: Any = None) -> SandboxStrategy:
    """Return the strategy for a configuration: Docker if it is enabled and works here, else local sandboxes."""
    wanted: SandboxConfig = configuration(config)
    with _daemon() as client:
        chosen: ProviderChoice = client.provider.choose(enabled=wanted.enabled)
    if chosen.fell_back:
        logger.warning(FALLING_BACK, extra={"why": chosen.why})
    return DockerSandbox(wanted) if chosen.provider == DockerSandbox.provider else LocalSandbox(wanted)


def docker_available() -> bool:
    """Return True if Docker works for the daemon."""
    with _daemon() as client:
        found: Capabilities = client.daemon.capabilities()
    return any(each.works for each in found.providers if each.provider == DockerSandbox.provider)


def _daemon() -> Client:
    return connect(client="gcri")


def _key(iteration: int, branch: int | str) -> str:
    return f"{iteration}_{branch}"


def _verified(index: int | str) -> str:
    """Return what an aggregated branch is called among the branches of its iteration."""
    return f"v_{index}"


def _labels(name: str, iteration: int, branch: int | str) -> dict[str, str]:
    return {NAME_LABEL: name, "gcri.iteration": str(iteration), "gcri.branch": str(branch)}


def _mark(client: Client, container_id: str) -> None:
    client.sandbox.write_file(container_id, path=BASELINE, data=b"")


def _text_of(client: Client, container_id: str, file: FileChange) -> str:
    content = bytearray()
    while len(content) < MAX_BYTES:
        piece = client.sandbox.read_file(container_id, path=file.path, offset=len(content))
        content += piece.data
        if piece.eof or not piece.data:
            break
    return content.decode(errors="replace")
