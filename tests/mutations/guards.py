"""Guards against hostile code, how each is taken away, and the test that must fail without it.

An entry replaces `text`, which occurs once in `file`, by `instead`. `python -m tests.mutations.guards` writes the list
into `docs/explanation/hostile-code.md`, and the table of `attacks.py`; `tests/mutations/test_guards.py` keeps both
true.
"""

import textwrap
from pathlib import Path
from typing import NamedTuple

from tests.mutations.attacks import numbers, table

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "explanation" / "hostile-code.md"
BEGIN, END = "<!-- guards: written by python -m tests.mutations.guards -->\n", "<!-- end of guards -->\n"
BEGIN_TABLE, END_TABLE = "<!-- attacks: written by python -m tests.mutations.guards -->\n", "<!-- end of attacks -->\n"


class Guard(NamedTuple):
    """One guard: what it sees to, where it stands, and the test that fails when `text` has become `instead`."""

    name: str
    file: str
    text: str
    instead: str
    test: str


_PLANTED = "tests/conformance/test_provider.py::test_what_is_planted_instead_of_a_journal_is_not_followed"
_ENEMY = "tests/conformance/test_enemy_sandbox.py::"
_LOCAL = "tests/conformance/test_local.py::"
_HARMFUL = "tests/store/archives/trees/test_unpack.py::test_nothing_of_what_would_do_harm_is_extracted"
_LOCKS = "tests/conformance/test_locks.py::"
_FILES = "tests/daemon/host/test_hostile_files.py::"
_GVISOR = "tests/daemon/providers/gvisor/test_hostile_files.py::"
_TLS = "tests/daemon/stream/test_tls.py::"
_HTTP = "tests/daemon/http/test_server.py::"
_CALLS = "tests/conformance/test_seccomp.py::"
_COMMITS = "tests/daemon/host/test_host_commit.py::"
_BUILDING = "tests/daemon/providers/docker/test_images.py::"
_BUILD_LIMITS = "tests/daemon/providers/docker/test_build_limits.py::"
_FOREIGN_IMAGES = "tests/daemon/providers/docker/test_foreign_images.py::"

GUARDS = [
    # what the sandbox writes and the daemon reads
    Guard(
        "No symbolic link in a sandbox's directory is followed",
        "rpc/sandkeep/system/openat2.py",
        "_RESOLVE: Final = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS",
        "_RESOLVE: Final = _RESOLVE_BENEATH",
        f"{_FILES}test_no_link_is_followed[file]",
    ),
    Guard(
        "No path leads out of a sandbox's directory",
        "rpc/sandkeep/system/openat2.py",
        "_RESOLVE: Final = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS",
        "_RESOLVE: Final = _RESOLVE_NO_SYMLINKS",
        f"{_FILES}test_nothing_leads_out",
    ),
    Guard(
        "Journals are opened by `openat2`, so a replaced one leads nowhere",
        "rpc/sandkeep/system/openat2.py",
        "number = _libc.syscall(_SYS_OPENAT2, directory, os.fsencode(path), how, ctypes.c_size_t(_HOW.size))",
        "return os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=directory)",
        f"{_PLANTED}[local]",
    ),
    Guard(
        "A journal is read only if it is a regular file",
        "daemon/sandkeepd/host/hostile_files.py",
        "if stat.S_IFMT(os.fstat(descriptor).st_mode) == kind:",
        "if kind:",
        f"{_PLANTED}[local]",
    ),
    Guard(
        "Opening a FIFO does not block",
        "daemon/sandkeepd/host/hostile_files.py",
        "_QUIETLY: Final = os.O_NONBLOCK | os.O_NOCTTY",
        "_QUIETLY: Final = os.O_NOCTTY",
        f"{_PLANTED}[local]",
    ),
    Guard(
        "Files opened for reading are on a read-only mount",
        "daemon/sandkeepd/host/hostile_files.py",
        "_READ_ONLY: Final = _WRITABLE | mounts.MS_RDONLY",
        "_READ_ONLY: Final = _WRITABLE",
        f"{_FILES}test_what_is_opened_for_reading_stays_so",
    ),
    Guard(
        "A descriptor that is handed out cannot be executed, whatever its mode",
        "daemon/sandkeepd/host/hostile_files.py",
        "_WRITABLE: Final = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC",
        "_WRITABLE: Final = mounts.MS_NODEV",
        "tests/conformance/test_handed_out.py::test_nobody_runs_what_the_code_inside_wrote[local-6755]",
    ),
    Guard(
        "A daemon without mounts passes a journal only to its owner",
        "daemon/sandkeepd/keeper/journal.py",
        "if out.is_confined or uid == os.geteuid() == os.fstat(descriptor).st_uid:",
        "if descriptor:",
        "tests/conformance/test_handed_out.py::test_a_users_daemon_hands_nobody_else_what_could_be_run",
    ),
    Guard(
        "Only the end of a backlog of answers is read",
        "daemon/sandkeepd/keeper/journal.py",
        "elif size - self._offset > MAX_BACKLOG_BYTES:",
        "elif False:",
        "tests/daemon/keeper/test_keeper.py::test_answers_in_pieces_and_after_garbage",
    ),
    Guard(
        "At most 128 bytes of a line of answers are kept",
        "daemon/sandkeepd/keeper/journal.py",
        "if len(self._rest) > MAX_LINE_BYTES:",
        "if len(self._rest) > 1 << 40:",
        "tests/daemon/keeper/test_keeper.py::test_a_line_without_end_is_not_kept",
    ),
    Guard(
        "Answers that come as fast as they are read are not read to their end",
        "daemon/sandkeepd/keeper/channel.py",
        "for _ in range(journal.MAX_ROUNDS):",
        "while True:",
        f"{_ENEMY}test_answers_that_never_end_do_not_hold_the_daemon[local]",
    ),
    Guard(
        "Who has used up its share of the daemon's time is not listened to for a while",
        "daemon/sandkeepd/keeper/channel.py",
        "if self._allowance.is_spent:",
        "if False:",
        f"{_ENEMY}test_one_that_speaks_without_end_has_its_share_and_no_more[local]",
    ),
    Guard(
        "What an adopted sandbox tells of others is forgotten",
        "daemon/sandkeepd/keeper/channel.py",
        "        self._adopted = False\n        self._earlier = EarlierAnswers()\n",
        "        return\n",
        f"{_ENEMY}test_what_an_adopted_sandbox_tells_of_others_is_forgotten[local]",
    ),
    Guard(
        "What answers lose is asked again",
        "daemon/sandkeepd/keeper/channel.py",
        "        if self._exits.spoilt:\n",
        "        if False:\n",
        f"{_ENEMY}test_an_exit_is_known_although_what_told_of_it_was_spoilt[local]",
    ),
    # what waits for the code inside
    Guard(
        "A call that reads a file ends, even if the code inside stops its helper",
        "daemon/sandkeepd/keeper/helpers.py",
        "            for _ in range(2):  # of one whose pid is not known the second takes what it would be told by\n"
        "                await self._kill(process_id, Signals.SIGKILL)\n",
        "            for _ in range(0):\n                await self._kill(process_id, Signals.SIGKILL)\n",
        f"{_ENEMY}test_a_helper_that_does_not_go_is_killed[local]",
    ),
    Guard(
        "A stopped helper is continued, so that it cleans up",
        "daemon/sandkeepd/keeper/helpers.py",
        "for number in (Signals.SIGTERM, Signals.SIGCONT):",
        "for number in (Signals.SIGTERM,):",
        f"{_ENEMY}test_a_stopped_helper_takes_back_what_it_began[local]",
    ),
    Guard(
        "An interrupted copy is removed, however long that takes",
        "daemon/sandkeepd/keeper/copy.sh",
        "$(command -v setsid >&5 && echo setsid) sh -c",
        "sh -c",
        f"{_ENEMY}test_a_copy_that_takes_long_to_remove_is_removed[local]",
    ),
    Guard(
        "A helper that stands still is not killed before it could clean up",
        "daemon/sandkeepd/keeper/helpers.py",
        "self._channel.gone.is_set() or self._channel.pause.is_on",
        "self._channel.gone.is_set()",
        f"{_ENEMY}test_a_copy_that_is_interrupted_while_all_stands_still[local]",
    ),
    Guard(
        "The output of a helper is read within bounds",
        "daemon/sandkeepd/keeper/helpers.py",
        'stderr = self._instance.read(process_id, "stderr", 0, HELPER_OUTPUT_BYTES)',
        'stderr = self._instance.read(process_id, "stderr", 0, 1 << 40)',
        f"{_ENEMY}test_what_a_helper_says_is_read_within_bounds[local]",
    ),
    # what it may use
    Guard(
        "A sandbox over its disk limit is suspended",
        "daemon/sandkeepd/providers/common/disk_watch.py",
        "if limit is None or written <= limit:",
        "if True:",
        f"{_LOCAL}test_many_files_over_the_disk_limit_suspend_the_sandbox[local]",
    ),
    Guard(
        "Each file counts as at least 4 KiB",
        "daemon/sandkeepd/providers/common/disk_usage.py",
        'written = max(_total(["-B1"], opened, root), _total(["--inodes"], opened, root) * BLOCK_BYTES)',
        'written = _total(["-B1"], opened, root)',
        f"{_ENEMY}test_what_it_wrote_is_found_however_it_is_hidden[entries-local]",
    ),
    Guard(
        "Unlinked files that are open count as disk usage",
        "daemon/sandkeepd/providers/common/disk_usage.py",
        "return written + _removed(first, groups, inside)",
        "return written",
        f"{_ENEMY}test_removed_files_that_are_open_count[local]",
    ),
    Guard(
        "A slow disk check delays no other sandbox's",
        "daemon/sandkeepd/providers/common/disk_watch.py",
        "nursery.start_soon(self._try, instance)",
        "await self._try(instance)",
        f"{_ENEMY}test_those_that_take_long_to_look_at_delay_no_other[local]",
    ),
    Guard(
        "The code inside takes no blocks that its disk has for the daemon",
        "daemon/sandkeepd/providers/common/disk_overlays.py",
        "with privileges.file_user(writer or NOBODY):",
        "with privileges.file_user(0):",
        "tests/daemon/providers/local/test_disks.py::test_on_a_full_disk_output_is_seen",
    ),
    Guard(
        "Nothing that a container can write to lies outside of its disk",
        "daemon/sandkeepd/providers/docker/disk.py",
        "if mount.is_writable and mount.kind not in _IN_MEMORY and not is_own:",
        "if False:",
        "tests/daemon/providers/docker/test_disks.py::test_what_lies_outside_of_the_disk_is_refused",
    ),
    Guard(
        "An overlay that a full disk makes read-only is mounted again",
        "daemon/sandkeepd/providers/common/disk_overlays.py",
        "if not _is_read_only(target):",
        "if True:",
        "tests/daemon/providers/local/test_disks.py::test_a_restore_on_a_full_disk_can_be_written",
    ),
    Guard(
        "No file is larger than the disk limit",
        "daemon/sandkeepd/providers/local/start.py",
        'blocks = "" if job.own_disk else str(-(-plan.disk_bytes // 512))',
        'blocks = ""',
        f"{_LOCAL}test_a_file_larger_than_the_disk_limit[local]",
    ),
    Guard(
        "A tmpfs has a size limit",
        "daemon/sandkeepd/providers/local/bubblewrap.py",
        '"--perms", mode, "--size", str(view.scratch_bytes), "--tmpfs", place',
        '"--perms", mode, "--tmpfs", place',
        f"{_LOCAL}test_what_lies_in_memory_has_a_limit_of_its_own[local]",
    ),
    Guard(
        "The number of a sandbox's pseudo-terminals is limited",
        "daemon/sandkeepd/keeper/pty.py",
        'mounts.reconfigure(pts, {**options, "max": str(MAX_TERMINALS)})',
        'mounts.reconfigure(pts, {**options, "max": str(2 * MAX_TERMINALS)})',
        "tests/daemon/sandboxes/test_shared_pools.py::test_terminals[local]",
    ),
    Guard(
        "A container's inotify watches are limited separately",
        "daemon/sandkeepd/providers/docker/start.py",
        "counted=filtered and inotify.can_count()",
        "counted=False",
        "tests/daemon/sandboxes/test_shared_pools.py::test_inotify[docker]",
    ),
    # what it sees and can reach
    Guard(
        "System calls are filtered",
        "daemon/sandkeepd/providers/local/bubblewrap.py",
        '*(["--seccomp", str(view.seccomp_fd)] if view.seccomp_fd is not None else [])',
        "*[]",
        "tests/conformance/test_seccomp.py::test_what_is_refused[None-local]",
    ),
    Guard(
        "System calls of containers are filtered",
        "daemon/sandkeepd/providers/docker/start.py",
        "        return docker_profile()\n",
        '        return "unconfined"\n',
        "tests/conformance/test_seccomp.py::test_what_is_refused[None-docker]",
    ),
    Guard(
        "Viewers are sent only allowed control sequences",
        "rpc/sandkeep/protocol/control_sequences.py",
        "passed = self._feed(data)",
        "passed = data",
        "tests/daemon/sandboxes/test_enemy_viewers.py::test_a_viewer_by_the_stream_server[local]",
    ),
    Guard(
        "The code inside has no network by default",
        "daemon/sandkeepd/providers/local/bubblewrap.py",
        '*([] if view.host_network else ["--unshare-net"])',
        "*[]",
        f"{_LOCAL}test_processes_network_and_rights_are_its_own[local]",
    ),
    Guard(
        "The root file system is read-only",
        "daemon/sandkeepd/providers/local/bubblewrap.py",
        '"--remount-ro", "/", "--chdir"',
        '"--chdir"',
        f"{_LOCAL}test_the_mount_table_names_nothing_that_can_be_written_but_its_own[local]",
    ),
    Guard(
        "Garbage collection does not trust marks that the code inside sets",
        "daemon/sandkeepd/providers/local/strays.py",
        "if not inside and is_name(values[MARK])",
        "if is_name(values[MARK])",
        "tests/conformance/test_strays.py::test_what_a_sandbox_says_of_itself_is_not_believed[local]",
    ),
    Guard(
        "A container has no capabilities",
        "daemon/sandkeepd/providers/docker/container.py",
        '"CapDrop": ["ALL"],',
        '"CapDrop": [],',
        "tests/conformance/test_docker.py::test_the_root_of_an_image_is_no_root_of_the_host[docker]",
    ),
    Guard(
        "A container's programs gain no privileges",
        "daemon/sandkeepd/providers/docker/container.py",
        'security = ["no-new-privileges:true"]',
        "security: list[str] = []",
        "tests/conformance/test_docker.py::test_what_holds_inside[docker]",
    ),
    Guard(
        "A container cannot replace the files that the daemon watches",
        "daemon/sandkeepd/providers/docker/container.py",
        '("out", True)',
        '("out", False)',
        "tests/conformance/test_docker.py::test_the_root_of_an_image_is_no_root_of_the_host[docker]",
    ),
    # ending it
    Guard(
        "Only journals remain of `out`",
        "daemon/sandkeepd/providers/common/layout.py",
        "        if not _JOURNAL.fullmatch(entry.name):\n            os.unlink(entry.name, dir_fd=directory)\n",
        "        pass\n",
        f"{_ENEMY}test_nothing_but_journals_stays_of_a_few_files[file-local]",
    ),
    Guard(
        "A link in the place of a journal does not remain",
        "daemon/sandkeepd/providers/common/layout.py",
        "all(entry.is_file(follow_symlinks=False) for entry in seen)",
        "all(entry.is_file() for entry in seen)",
        f"{_ENEMY}test_nothing_but_journals_stays_of_a_few_files[link-local]",
    ),
    Guard(
        "Links lead no host program out of a sandbox's tree",
        "daemon/sandkeepd/host/mounts.py",
        "TO_WRITE: Final = MS_NOSUID | MS_NODEV | MS_NOEXEC | NO_LINKS",
        "TO_WRITE: Final = MS_NOSUID | MS_NODEV | MS_NOEXEC",
        "tests/daemon/snapshots/test_hostile_walks.py::test_a_copy_is_not_written_through_a_link",
    ),
    Guard(
        "Answers of a gVisor sandbox are opened and chowned through no link",
        "daemon/sandkeepd/providers/gvisor/start.py",
        'opened = job.files.open_regular("out/exits", flags)',
        'opened = os.open(f"{job.directory}/out/exits", flags)',
        f"{_GVISOR}test_no_link_is_given_away[exits]",
    ),
    Guard(
        "Answers of a gVisor sandbox are copied with their holes",
        "store/sandkeep_store/files/holes.py",
        "end = min(size, os.lseek(opened, begin, os.SEEK_HOLE))",
        "end = size",
        f"{_GVISOR}test_holes_stay_holes",
    ),
    Guard(
        "Paths of an image are resolved below its root",
        "daemon/sandkeepd/providers/gvisor/bundle.py",
        "os.close(open_in_root(root, path, os.O_PATH | flags))",
        "os.close(os.open(path.lstrip('/'), os.O_PATH | flags, dir_fd=root))",
        f"{_GVISOR}test_nothing_of_the_host_is_found_by_links_of_an_image",
    ),
    Guard(
        "Directories for a copied image are made below its root",
        "daemon/sandkeepd/providers/gvisor/bundle.py",
        "    _make_shared(making)\n",
        '    for name in ("in", "out", "tty"):\n        os.makedirs(f"{making}{INSIDE}/{name}", exist_ok=True)\n',
        f"{_GVISOR}test_nothing_is_made_where_links_of_an_image_lead[run]",
    ),
    Guard(
        "A host uid rests after use",
        "daemon/sandkeepd/host/uids/allocation.py",
        'if entry.is_stale or (entry.state == "resting" and now() - entry.since >= REST_S):',
        'if entry.is_stale or entry.state == "resting":',
        "tests/daemon/host/test_uid_allocation.py::test_a_uid_rests_after_use",
    ),
    Guard(
        "A host uid with a remaining process is not reused",
        "daemon/sandkeepd/host/uids/allocation.py",
        "ended = processes.kill_all_of(uid)",
        "ended = True",
        "tests/daemon/host/test_uid_allocation.py::test_one_that_cannot_be_ended_is_never_given_again",
    ),
    Guard(
        "Only root may enter the registry of host uids",
        "daemon/sandkeepd/host/uids/registry.py",
        "if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:",
        "if False:",
        "tests/daemon/host/test_uid_allocation.py::test_a_registry_that_is_not_roots_alone_is_refused"
        "[others may enter]",
    ),
    # images for Docker
    Guard(
        "A prefix of an image's id names no image",
        "daemon/sandkeepd/providers/docker/dockerfile.py",
        "if image_references.could_be_an_id(name):",
        "if False:",
        f"{_BUILDING}test_the_beginning_of_an_id_finds_nobodys_image",
    ),
    Guard(
        "An image of the engine is for others by its registry, or as it is published",
        "daemon/sandkeepd/providers/docker/references.py",
        "if request.published is None or _is_default_base(wanted):",
        "if True:",
        f"{_FOREIGN_IMAGES}test_an_image_that_an_administrator_built_is_his",
    ),
    Guard(
        "A registry is asked for others only if an administrator chose it",
        "daemon/sandkeepd/providers/docker/references.py",
        "        await require_listed(wanted.in_full)\n",
        "",
        f"{_FOREIGN_IMAGES}test_a_registry_is_for_others_only_if_an_administrator_chose_it",
    ),
    Guard(
        "A registry is asked with the caller's login",
        "daemon/sandkeepd/providers/docker/references.py",
        "client.inspect_distribution(reference, auth_config=login)",
        "client.inspect_distribution(reference)",
        f"{_FOREIGN_IMAGES}test_the_login_of_the_daemons_user_is_for_administrators",
    ),
    Guard(
        "A registry that only names an image has not given it",
        "daemon/sandkeepd/providers/docker/references.py",
        'if found is not None and found["Id"] in elsewhere:',
        "if False:",
        f"{_FOREIGN_IMAGES}test_a_registry_that_only_names_an_image_of_here_has_not_given_it",
    ),
    Guard(
        "A build uses the images that were checked",
        "daemon/sandkeepd/providers/docker/dockerfile.py",
        'flags = [f"--from={image}" if flag.startswith("--from=") else flag for flag in flags]',
        "",
        f"{_FOREIGN_IMAGES}test_a_registry_for_everybody_and_a_tag_that_is_another_here",
    ),
    Guard(
        "An engine gets the Dockerfile as it was understood",
        "daemon/sandkeepd/providers/docker/dockerfile.py",
        "if _CONTROL.search(line):",
        "if False:",
        "tests/daemon/providers/docker/test_build_context.py::test_what_may_not_be_named_or_could_be_understood_otherwise"
        "[FROM x\\nRUN a\\rFROM sandkeep]",
    ),
    Guard(
        "No stage is copied from before it is complete",
        "daemon/sandkeepd/providers/docker/dockerfile.py",
        "earlier = self._stages[:-1]",
        "earlier = self._stages",
        "tests/daemon/providers/docker/test_build_context.py::test_what_may_not_be_named_or_could_be_understood_otherwise"
        "[FROM x AS sandkeep\\nCOPY --from=sandkeep / /]",
    ),
    Guard(
        "A base's triggers name no images",
        "daemon/sandkeepd/providers/docker/dockerfile.py",
        "if images and not may_name_images:",
        "if False:",
        f"{_FOREIGN_IMAGES}test_a_base_that_copies_from_it_by_a_trigger",
    ),
    Guard(
        "A shell that lies is not believed",
        "daemon/sandkeepd/providers/docker/image_probe.py",
        "lines[0] != _MARK or",
        "",
        f"{_BUILDING}test_a_shell_that_lies[echo hi; echo sh /bin/sh; echo end-does not work]",
    ),
    Guard(
        "The probe of an image has no capabilities",
        "daemon/sandkeepd/providers/docker/image_probe.py",
        '"CapDrop": ["ALL"],',
        '"CapDrop": [],',
        f"{_BUILDING}test_the_probe_can_do_nothing",
    ),
    Guard(
        "A build context is read with its caller's rights",
        "daemon/sandkeepd/host/caller_paths.py",
        "    if caller.uid == 0:\n",
        "    if True:\n",
        f"{_BUILDING}test_the_directory_is_read_with_the_callers_rights",
    ),
    Guard(
        "A build has no more processes than its limit",
        "daemon/sandkeepd/providers/docker/builder.py",
        'return {**limits, "cgroupparent": group.parent} if group else limits',
        "return limits",
        f"{_BUILD_LIMITS}test_a_lack_of_processes_is_told",
    ),
    Guard(
        "Owners share no cached build steps",
        "daemon/sandkeepd/providers/docker/builder.py",
        "sha256(request.owner.encode())",
        "sha256(b'')",
        f"{_BUILD_LIMITS}test_no_owner_gets_what_a_step_of_another_has_made",
    ),
    Guard(
        "The engine fetches no files for `ADD`",
        "daemon/sandkeepd/providers/docker/dockerfile.py",
        'if word == "ADD" and _MAYBE_REMOTE.search(_sources(arguments)):',
        "if False:",
        "tests/daemon/providers/docker/test_build_context.py::test_the_engine_fetches_no_files[http://h/x]",
    ),
    # archives
    Guard(
        "No member of an archive contains `..`",
        "store/sandkeep_store/archives/tar/members.py",
        'if b".." in parts:',
        "if False:",
        f"{_HARMFUL}[none-upwards]",
    ),
    # daemons that share a lock
    Guard(
        "A released lock is its waiter's",
        "store/sandkeep_store/locks/rules.py",
        "(found.is_held(now) or found.live_waiter(now) not in (None, owner_id))",
        "found.is_held(now)",
        f"{_LOCKS}test_an_owner_hands_the_lock_over_to_its_waiter_and_to_nobody_else[memory]",
    ),
    Guard(
        "Nobody removes another waiter's entry",
        "store/sandkeep_store/locks/rules.py",
        "if found.waiting_owner_id != owner_id:",
        "if found.waiting_owner_id is None:",
        f"{_LOCKS}test_a_waiter_that_was_stopped_for_too_long_yields_to_the_next[memory]",
    ),
    Guard(
        "An owner stops before its lease can expire for others",
        "store/sandkeep_store/locks/lease.py",
        "lasts = rules.LEASE_S - rules.MARGIN_S",
        "lasts = rules.LEASE_S",
        "tests/store/locks/test_simulation.py::test_with_clocks_within_the_bound_no_two_hold_it",
    ),
    Guard(
        "A previous owner of a lock overwrites nothing",
        "store/sandkeep_store/locks/fence.py",
        "if seen is not None and seen > self.number:",
        "if False:",
        "tests/conformance/test_fences.py::test_a_later_owner_writes_over_and_an_earlier_one_does_not[memory]",
    ),
    # many users
    Guard(
        "Another owner's sandbox is not found",
        "daemon/sandkeepd/core/naming.py",
        "if found is not None and (asker.admin or found.owner == asker.owner):",
        "if found is not None:",
        "tests/daemon/core/test_access.py::test_another_owners_things_are_not_found_and_not_listed",
    ),
    Guard(
        "The ids of another owner are not told by how they begin",
        "daemon/sandkeepd/core/naming.py",
        "objects.beginning_with(text, None if asker.admin else asker.owner)",
        "objects.beginning_with(text, None)",
        "tests/daemon/core/test_naming.py::test_others_objects_are_neither_found_nor_candidates",
    ),
    Guard(
        "What is never copied is not copied by an exception from what is ignored",
        "daemon/sandkeepd/host/caller_paths.py",
        '''	set -- "$@" "$word"''',
        '''	set -- "$word" "$@"''',
        "tests/daemon/host/test_ignore.py::test_an_exception_reaches_nothing_that_is_never_copied",
    ),
    Guard(
        "Clients cannot send descriptors to the daemon",
        "daemon/sandkeepd/api/listener.py",
        "listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)",
        "pass",
        "tests/daemon/sandboxes/test_enemy_terminal.py::test_nobody_can_make_the_daemon_close_a_descriptor_for_him[sock]",
    ),
    Guard(
        "A token is sent only to the server with the pinned certificate",
        "rpc/sandkeep/protocol/tls.py",
        "return certificate is not None and hmac.compare_digest(pin_of(certificate), pin)",
        "return True",
        "tests/daemon/stream/test_tls.py::test_a_thief_of_the_port_is_sent_no_token[tls-permission_denied]",
    ),
    Guard(
        "The recorded digest of a command is keyed",
        "daemon/sandkeepd/api/repeated_commands.py",
        "command = self._core.log.command_key.keyed(digest)",
        "command = digest",
        "tests/daemon/api/test_fingerprints.py::test_no_digest_on_record_tells_a_pin[sandbox.exec]",
    ),
    Guard(
        "A file of tokens that others could read is not used",
        "store/sandkeep_store/files/private_file.py",
        "if _is_ours_alone(os.fstat(descriptor)):",
        "if True:",
        "tests/daemon/stream/test_enemy.py::test_tokens_that_others_could_read_are_worthless",
    ),
    Guard(
        "TCP needs TLS, unless the setting allows plain text",
        "rpc/sandkeep/settings/daemon.py",
        'if address.startswith("tcp://") and not STREAM_PLAINTEXT():',
        "if False:",
        f"{_TLS}test_otherwise_no_daemon_listens_without_tls",
    ),
    Guard(
        "A TCP socket from the service manager uses TLS",
        "daemon/sandkeepd/app/listeners.py",
        "plain if plain in stream_addresses else address_of(listener)",
        "plain",
        f"{_TLS}test_what_was_passed_is_for_tls_unless_it_is_named_without",
    ),
    Guard(
        "No TLS before 1.3",
        "daemon/sandkeepd/stream/identity.py",
        "context.minimum_version = ssl.TLSVersion.TLSv1_3",
        "context.minimum_version = ssl.TLSVersion.TLSv1_2",
        f"{_TLS}test_nothing_older_than_tls_1_3",
    ),
    Guard(
        "`socketcall` of i386 is refused",
        "daemon/sandkeepd/host/seccomp/profile.toml",
        "socketcall = 97",
        "swapcontext = 97",
        f"{_CALLS}test_the_32_bit_ways_are_no_way_around[docker]",
    ),
    Guard(
        "An API key has no paths of the host",
        "daemon/sandkeepd/core/access.py",
        "_refuse_host_paths(call.params)",
        "pass",
        "tests/daemon/http/test_keys.py::test_a_key_has_no_paths_of_the_host[/etc]",
    ),
    Guard(
        "An HTTP client that does not read is dropped",
        "daemon/sandkeepd/http/server.py",
        "with trio.fail_after(self._limits.stalled_s):",
        "with trio.CancelScope():",
        f"{_HTTP}test_a_client_that_does_not_read_is_dropped",
    ),
    Guard(
        "A long request is read to its end, though it was answered before",
        "daemon/sandkeepd/http/server.py",
        "if self._ended or message",
        "if True or message",
        "tests/daemon/http/test_sessions.py::test_a_compressed_body_is_refused",
    ),
    Guard(
        "Of HTTP clients that come at once each takes the place of another",
        "daemon/sandkeepd/http/server.py",
        "            del self._connections[idle]",
        "            pass",
        f"{_HTTP}test_ten_thousand_connections_leave_room",
    ),
    Guard(
        "An HTTP request whose length is doubtful is refused",
        "daemon/sandkeepd/http/server.py",
        "if _has_doubtful_length(scope):",
        "if False:",
        f"{_HTTP}test_an_old_request_with_chunks_is_refused",
    ),
    Guard(
        "An HTTP request that a proxy could read in another way is refused",
        "daemon/sandkeepd/http/server.py",
        "        make_strict(self.connection)\n",
        "",
        f"{_HTTP}test_no_request_is_smuggled_behind_another[two lengths]",
    ),
    Guard(
        "JSON that is printed drives no terminal",
        "rpc/sandkeep/protocol/printable.py",
        "if encoded.isascii() and",
        "if True or",
        "tests/rpc/cli/test_printing.py::test_a_document_has_the_same_value_for_a_parser",
    ),
    Guard(
        "An API key does not take all HTTP connections",
        "daemon/sandkeepd/http/gateway.py",
        "if requests[key] >= MAX_REQUESTS + (SPARE_REQUESTS if row.operation == ENDING else 0):",
        "if False:",
        f"{_HTTP}test_one_key_does_not_take_all_connections",
    ),
    Guard(
        "A copy that was cut off by its sandbox's end is not begun again",
        "daemon/sandkeepd/api/dispatch.py",
        "if has_given or ",
        "if ",
        "tests/daemon/stream/test_sessions.py::test_a_copy_ends_with_its_sandbox[get]",
    ),
    Guard(
        "No file of a sandbox fills the memory of a Python client",
        "rpc/sandkeep/clients/operations.py",
        "if max(piece.size_bytes, len(data)) > max_bytes:",
        "if False:",
        "tests/rpc/clients/test_handles.py::test_a_sandbox_cannot_fill_the_memory_of_its_client",
    ),
    # paths of callers
    Guard(
        "No link that others can replace leads to the target of a commit",
        "daemon/sandkeepd/host/host_commit/target.py",
        "self._is_ours = self._is_ours and _stays(above, info)",
        "",
        f"{_COMMITS}test_a_link_where_anybody_may_write[511]",
    ),
    # recovery state
    Guard(
        "A staging directory of a commit is the one in the journal",
        "daemon/sandkeepd/host/host_commit/staging.py",
        "if info.st_ino != inode if inode is not None else os.listdir(self.fd):",
        "if False:",
        f"{_COMMITS}test_a_directory_in_the_place_of_the_staging_directory_is_left_alone[complete:1]",
    ),
    Guard(
        "A commit is taken back in the directory that it changed",
        "daemon/sandkeepd/host/host_commit/apply.py",
        "if target != self._tree.inode:",
        "if False:",
        f"{_COMMITS}test_another_directory_by_the_path_of_the_target_is_left_alone[moved]",
    ),
    Guard(
        "A commit sets no set-uid bit",
        "daemon/sandkeepd/host/host_commit/tree.py",
        "now.mode & ~PERMISSIONS | mode & PERMISSIONS)",
        "mode)",
        f"{_COMMITS}test_no_step_sets_a_bit_that_gives_rights[2541]",
    ),
    Guard(
        "A set-uid file is replaced when its mode changes",
        "daemon/sandkeepd/host/host_commit/survey.py",
        "only_mode = is_new and seen.is_plain",
        "only_mode = is_new",
        f"{_COMMITS}test_a_set_uid_file_loses_that_with_a_change_of_its_mode[moved:1]",
    ),
    Guard(
        "No bare repository is committed",
        "daemon/sandkeepd/branches/difference.py",
        'why_forbidden(name) or ("git" if repositories.contain(name) else None)',
        "why_forbidden(name)",
        "tests/daemon/branches/test_commits.py::test_no_bare_repository_is_committed",
    ),
    Guard(
        "No bare repository is completed by a commit",
        "daemon/sandkeepd/host/host_commit/survey.py",
        'why_forbidden(change.path) or ("git" if self._repositories.contain(change.path) else None)',
        "why_forbidden(change.path)",
        "tests/daemon/branches/test_commits.py::test_no_bare_repository_is_completed",
    ),
    Guard(
        "A copy to the host is staged by descriptor, not by name",
        "rpc/sandkeep/system/staging.py",
        'self.tree = here + b"/tree"',
        "self.tree = self.named_tree",
        "tests/rpc/system/test_staging.py::test_nothing_is_written_by_its_name[True]",
    ),
    Guard(
        "Labels that a container has from its image prove nothing",
        "daemon/sandkeepd/providers/docker/start.py",
        "containers = filter(_is_sandbox, client.containers(all=True, filters=filters))",
        "containers = client.containers(all=True, filters=filters)",
        f"{_BUILDING}test_labels_of_an_image_prove_nothing[labels0]",
    ),
    Guard(
        "Of two commits to a directory that begin at once at most one goes on",
        "daemon/sandkeepd/host/host_commit/staging.py",
        "startswith(STAGING_PREFIX)]) > 1:",
        "startswith(STAGING_PREFIX)]) > 2:",
        f"{_COMMITS}test_a_commit_that_began_at_the_same_moment_is_not_overtaken",
    ),
    Guard(
        "Long work of many owners waits for its turn",
        "store/sandkeep_store/threads.py",
        "        turn.renew(_raise_if_cancelled)",
        "        pass",
        "tests/store/test_turns.py::test_work_goes_on_only_with_a_place",
    ),
    Guard(
        "Work that hangs occupies no place among the turns",
        "store/sandkeep_store/turns.py",
        "                if remaining_s <= 0:",
        "                if remaining_s <= -1e9:",
        "tests/store/test_turns.py::test_work_that_hangs_occupies_no_place",
    ),
]  # fmt: skip


def listed() -> str:
    """Return the guards as they stand in the document, and the definitions of its links to files of the project."""
    items = [
        f"{guard.name}: {_link(guard.file)}, without it {_link(guard.test.partition('[')[0])} fails" for guard in GUARDS
    ]
    links = [f"[{_label(path)}]: ../../{path}\n" for path in sorted(linked_files(), key=_label)]
    return "".join(_item(f"- {item}", "  ") for item in items) + "\n" + "".join(links)


def linked_files() -> set[str]:
    """Return the files to which the list and the table link."""
    tests = [guard.test for guard in GUARDS] + list(numbers())
    return {guard.file for guard in GUARDS} | {test.partition("::")[0] for test in tests}


def attacks() -> str:
    """Return the table of attacks and its numbered tests as they stand in the document."""
    tests = [_item(f"{number}. {_link(test)}", "   ") for test, number in numbers().items()]
    return table() + "\n" + "".join(tests)


def _item(text: str, indent: str) -> str:
    lines = textwrap.wrap(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def _link(place: str) -> str:
    path, _, test = place.partition("::")
    return f"[`{test or path.rpartition('/')[2]}`][{_label(path)}]"


def _label(path: str) -> str:
    """The end of a path, by which links refer to it."""
    return "/".join(path.split("/")[-2:])


def written(document: str) -> str:
    """Return the document with the list and the table as they are now."""
    return _replaced(_replaced(document, BEGIN_TABLE, attacks(), END_TABLE), BEGIN, listed(), END)


def _replaced(document: str, begin: str, text: str, end: str) -> str:
    before, _, rest = document.partition(begin)
    return before + begin + "\n" + text + "\n" + end + rest.partition(end)[2]


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
