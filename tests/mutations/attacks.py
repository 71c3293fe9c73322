"""Attacks by asset, mechanism and attacker, each with the test that carries it out, or open.

`tests/mutations/guards.py` shows that each guard is needed; this table shows which attacks nobody has tried. It is
written into `docs/explanation/hostile-code.md` by `python -m tests.mutations.guards`.
"""

from typing import Final, NamedTuple

CODE, USER, KEY, OUTSIDE = "code inside", "local user", "API key", "outside"
ATTACKERS: Final = (CODE, USER, KEY, OUTSIDE)
OPEN: Final = "open"

_ENEMY = "tests/conformance/test_enemy_sandbox.py::"
_LOCAL = "tests/conformance/test_local.py::"
_DOCKER = "tests/conformance/test_docker.py::"
_USER = "tests/daemon/app/test_enemy_user.py::"
_WALKS = "tests/daemon/snapshots/test_hostile_walks.py::"
_COMMIT = "tests/daemon/host/test_host_commit.py::"
_COMMITS = "tests/daemon/branches/test_commits.py::"
_HANDED = "tests/conformance/test_handed_out.py::"
_UIDS = "tests/daemon/host/test_uid_allocation.py::"
_PATHS = "tests/daemon/host/test_caller_paths.py::"
_BUILDS = "tests/daemon/providers/docker/test_images.py::"
_IMAGES = "tests/daemon/providers/docker/test_images.py::"
_LIMITS = "tests/daemon/providers/docker/test_build_limits.py::"
_KEYS = "tests/daemon/http/test_keys.py::"
_HTTP = "tests/daemon/http/test_server.py::"
_STREAM = "tests/daemon/stream/test_enemy.py::"
_READERS = "tests/daemon/stream/test_slow_readers.py::"
_TLS = "tests/daemon/stream/test_tls.py::"
_UNPACK = "tests/store/archives/trees/test_unpack.py::"
_INSPECT = "tests/store/archives/tar/test_inspect.py::"
_POOLS = "tests/daemon/sandboxes/test_shared_pools.py::"
_DISKS = "tests/daemon/providers/local/test_disks.py::"
_DOCKER_DISKS = "tests/daemon/providers/docker/test_disks.py::"
_ACCESS = "tests/daemon/core/test_access.py::"
_QUOTAS = "tests/daemon/core/test_quotas.py::"
_FENCES = "tests/conformance/test_fences.py::"
_CLUSTER = "tests/daemon/providers/kubernetes/test_hostile_server.py::"
_GVISOR = "tests/daemon/providers/gvisor/test_hostile_files.py::"
_SNAPSHOTS = "tests/daemon/snapshots/test_enemy.py::"
_SECCOMP = "tests/conformance/test_seccomp.py::"
_FOREIGN = "tests/daemon/providers/docker/test_foreign_images.py::"
_PROCESSES = "tests/daemon/host/test_processes.py::"
_SHARES = "tests/daemon/app/test_shares.py::"
_PRINTING = "tests/rpc/cli/test_printing.py::"


class Attack(NamedTuple):
    """A row of the table: attackers have the test that tries it, or `OPEN`; those without an entry cannot try it."""

    asset: str
    mechanism: str
    tests: dict[str, str]


ATTACKS: Final = (
    # -- other uids, and the host's files -----------------------------------------------------------------------------
    Attack(
        "foreign uid",
        "forged recovery state",
        {
            CODE: "tests/daemon/branches/test_forged_commits.py::test_a_forged_journal_gives_no_rights",
            USER: f"{_COMMIT}test_a_directory_in_the_place_of_the_staging_directory_is_left_alone",
        },
    ),
    Attack("foreign uid", "modes of set-uid files", {CODE: f"{_COMMIT}test_no_step_sets_a_bit_that_gives_rights"}),
    Attack(
        "foreign uid",
        "set-uid files, devices",
        {
            CODE: f"{_HANDED}test_nobody_runs_what_the_code_inside_wrote",
            USER: f"{_PATHS}test_setuid_bits_are_dropped",
            OUTSIDE: f"{_UNPACK}test_all_belongs_to_the_owner_and_gives_no_rights",
        },
    ),
    Attack(
        "foreign uid",
        "reuse of a sandbox's uid",
        {
            CODE: f"{_UIDS}test_one_that_cannot_be_ended_is_never_given_again",
            USER: f"{_UIDS}test_a_registry_that_is_not_roots_alone_is_refused",
        },
    ),
    Attack(
        "foreign uid",
        "system calls, namespaces",
        {
            CODE: f"{_SECCOMP}test_what_is_refused",
            USER: f"{_USER}test_no_process_can_be_signalled_or_traced",
        },
    ),
    Attack("foreign uid", "root of an image", {CODE: f"{_DOCKER}test_the_root_of_an_image_is_no_root_of_the_host"}),
    Attack(
        "host files",
        "links, and directories swapped for links",
        {
            CODE: f"{_WALKS}test_an_archive_holds_nothing_that_links_lead_to",
            USER: f"{_COMMIT}test_racing_with_somebody_who_swaps_directories",
            OUTSIDE: f"{_UNPACK}test_links_that_lead_out_come_back_as_links_and_nothing_is_touched_where_they_lead",
        },
    ),
    Attack(
        "host files",
        "paths with `..`, absolute paths",
        {
            CODE: "tests/daemon/host/test_hostile_files.py::test_nothing_leads_out",
            USER: f"{_BUILDS}test_links_lead_nowhere_outside",
            KEY: f"{_KEYS}test_a_key_has_no_paths_of_the_host",
            OUTSIDE: f"{_UNPACK}test_nothing_of_what_would_do_harm_is_extracted",
        },
    ),
    Attack(
        "host files",
        "a caller's path, read with the daemon's rights",
        {
            USER: f"{_BUILDS}test_the_directory_is_read_with_the_callers_rights",
            KEY: f"{_KEYS}test_a_key_has_no_paths_of_the_host",
        },
    ),
    Attack(
        "host files",
        "a caller's path, written with the daemon's rights",
        {
            USER: f"{_COMMITS}test_with_the_rights_of_the_caller_alone",
            KEY: f"{_KEYS}test_a_key_has_no_paths_of_the_host",
        },
    ),
    Attack(
        "host files",
        "links planted in shared directories",
        {
            USER: f"{_USER}test_links_that_are_planted_where_anybody_may_write_lead_nobody_anywhere",
        },
    ),
    Attack(
        "host files",
        "links put into the path of a commit's target",
        {USER: f"{_COMMIT}test_no_link_is_followed_where_somebody_else_may_write"},
    ),
    Attack("host files", "git's configuration and hooks", {CODE: f"{_COMMITS}test_nothing_below_git_is_committed"}),
    Attack("host files", "bare repositories", {CODE: f"{_COMMITS}test_no_bare_repository_is_committed"}),
    Attack(
        "host files",
        "modes of files with several names",
        {CODE: f"{_COMMIT}test_a_change_of_a_mode_touches_no_other_name_of_the_file"},
    ),
    Attack(
        "host files",
        "staging directory of `cp`, replaced",
        {USER: "tests/rpc/system/test_staging.py::test_nothing_is_written_by_its_name"},
    ),
    # -- what belongs to the daemon -----------------------------------------------------------------------------------
    Attack(
        "state directory",
        "direct access",
        {
            CODE: f"{_LOCAL}test_what_the_code_sees_of_the_host",
            USER: f"{_USER}test_nothing_of_the_state_directory_is_reached",
        },
    ),
    Attack(
        "state directory",
        "another daemon's objects taken for its own",
        {
            CODE: "tests/conformance/test_strays.py::test_what_a_sandbox_says_of_itself_is_not_believed",
            USER: "tests/conformance/test_strays.py::test_sandboxes_and_images_of_another_log_are_left",
            OUTSIDE: f"{_CLUSTER}test_an_object",
        },
    ),
    Attack(
        "event log",
        "secrets, or digests of them, on record",
        {
            USER: "tests/daemon/api/test_fingerprints.py::test_no_digest_on_record_tells_a_pin",
        },
    ),
    Attack(
        "event log",
        "growth without limit",
        {USER: f"{_QUOTAS}test_pending_calls", KEY: f"{_KEYS}test_a_key_has_quotas_of_its_own"},
    ),
    Attack(
        "journals",
        "replaced, truncated, made a device",
        {
            CODE: "tests/conformance/test_provider.py::test_what_is_planted_instead_of_a_journal_is_not_followed",
        },
    ),
    Attack("journals", "changed by whoever was given a descriptor", {USER: f"{_HANDED}test_nobody_changes_it"}),
    Attack(
        "keeper's answers",
        "forged, endless, cut",
        {
            CODE: f"{_ENEMY}test_an_exit_is_known_although_what_told_of_it_was_spoilt",
        },
    ),
    # -- what belongs to other owners ---------------------------------------------------------------------------------
    Attack(
        "objects of others",
        "by id, name, beginning of an id",
        {
            USER: f"{_USER}test_no_method_reaches_what_another_user_has",
            KEY: f"{_KEYS}test_another_key_learns_nothing_by_any_route",
        },
    ),
    Attack(
        "objects of others",
        "repeated commands",
        {
            USER: f"{_ACCESS}test_a_command_id_is_its_owners_own",
            KEY: f"{_KEYS}test_another_keys_commands_are_not_repeated",
        },
    ),
    Attack(
        "images of others",
        "by id, beginning of an id, tag",
        {
            USER: f"{_BUILDS}test_the_beginning_of_an_id_finds_nobodys_image",
        },
    ),
    Attack(
        "images of others",
        "cached steps of builds",
        {
            USER: f"{_LIMITS}test_no_owner_gets_what_a_step_of_another_has_made",
        },
    ),
    Attack(
        "images of the engine",
        "by name, id, prefix, digest",
        {
            USER: f"{_FOREIGN}test_an_image_that_an_administrator_built_is_his",
            KEY: f"{_FOREIGN}test_an_image_that_an_administrator_built_is_his",
        },
    ),
    Attack(
        "images of the engine",
        "`FROM`, `COPY --from`, triggers of a base",
        {
            USER: f"{_FOREIGN}test_no_build_gets_at_it",
            OUTSIDE: f"{_FOREIGN}test_a_base_that_copies_from_it_by_a_trigger",
        },
    ),
    Attack(
        "images of the engine",
        "Dockerfiles that the engine reads otherwise",
        {USER: f"{_FOREIGN}test_no_build_gets_at_it_by_what_an_engine_reads_otherwise"},
    ),
    Attack(
        "images of the engine",
        "a registry that names an image of here",
        {OUTSIDE: f"{_FOREIGN}test_a_registry_that_only_names_an_image_of_here_has_not_given_it"},
    ),
    Attack("images of the engine", "a registry that names a layer of here", {OUTSIDE: OPEN}),
    Attack(
        "engine",
        "a listed registry that sends without end",
        {OUTSIDE: f"{_IMAGES}test_a_layer_without_end_is_taken_up_to_the_limit"},
    ),
    Attack(
        "engine",
        "a listed registry that stops within a layer",
        {OUTSIDE: f"{_IMAGES}test_a_registry_that_stops_within_a_layer"},
    ),
    Attack("disk", "copies for images", {USER: f"{_QUOTAS}test_an_image_that_no_quota_allows_is_not_even_copied"}),
    Attack(
        "engine",
        "a registry of one's own",
        {
            USER: f"{_FOREIGN}test_a_registry_is_for_others_only_if_an_administrator_chose_it",
            KEY: "tests/daemon/host/test_registries.py::test_registries_for_others_than_administrators",
        },
    ),
    Attack(
        "host files",
        "a lock on a commit's target",
        {USER: "tests/daemon/branches/test_commit_recovery.py::test_a_lock_on_the_target_changes_nothing"},
    ),
    Attack(
        "images of the engine",
        "a published tag that is moved later",
        {USER: f"{_FOREIGN}test_a_published_reference_stays_the_image_that_it_was"},
    ),
    Attack("images of a cluster", "the namespace's pull secrets, caches of nodes", {USER: OPEN, KEY: OPEN}),
    Attack(
        "logins for registries",
        "another user's, or the daemon's own",
        {
            USER: f"{_FOREIGN}test_the_login_of_the_daemons_user_is_for_administrators",
            KEY: f"{_FOREIGN}test_the_login_of_the_daemons_user_is_for_administrators",
        },
    ),
    Attack(
        "logins for registries",
        "in logs and files of daemon and engine",
        {USER: f"{_FOREIGN}test_a_registry_gives_what_the_callers_own_login_may_have"},
    ),
    Attack(
        "containers of others",
        "labels of an image",
        {OUTSIDE: f"{_BUILDS}test_labels_of_an_image_prove_nothing"},
    ),
    Attack(
        "secrets",
        "command lines, /proc, the engine",
        {
            CODE: f"{_LOCAL}test_processes_network_and_rights_are_its_own",
            USER: "tests/daemon/sandboxes/test_command_lines.py::test_no_command_line_tells_what_a_caller_gave",
            OUTSIDE: f"{_DOCKER}test_secrets_are_nowhere_in_what_the_engine_shows",
        },
    ),
    Attack(
        "secrets",
        "tokens and keys sent to a false server",
        {
            USER: f"{_TLS}test_a_thief_of_the_port_is_sent_no_token",
            OUTSIDE: f"{_CLUSTER}test_a_redirect_is_not_followed",
        },
    ),
    Attack(
        "shared sandboxes",
        "writes by a previous owner of the lock",
        {
            OUTSIDE: f"{_FENCES}test_a_later_owner_writes_over_and_an_earlier_one_does_not",
        },
    ),
    # -- resources ----------------------------------------------------------------------------------------------------
    Attack(
        "processes, memory",
        "fork bombs, memory hogs",
        {
            CODE: "tests/conformance/test_hostile.py::test_an_enemy_hurts_itself_only",
            USER: f"{_LIMITS}test_a_build_has_no_more_processes_than_the_limit",
        },
    ),
    Attack(
        "daemon's memory",
        "attributes without end in an archive that is restored",
        {OUTSIDE: f"{_INSPECT}test_no_file_has_more_attributes_than_the_kernel_lists"},
    ),
    Attack("kernel's pools", "terminals, inotify, aio", {CODE: f"{_POOLS}test_inotify"}),
    Attack(
        "disk",
        "files that no walk sees, with `--disk`",
        {CODE: f"{_DISKS}test_the_limit_is_exact_and_the_writer_is_told"},
    ),
    Attack(
        "disk",
        "the same in a container",
        {CODE: f"{_DOCKER_DISKS}test_the_limit_is_exact_and_the_writer_is_told"},
    ),
    Attack(
        "disk",
        "volumes outside of a container's disk",
        {USER: f"{_DOCKER_DISKS}test_what_lies_outside_of_the_disk_is_refused"},
    ),
    Attack(
        "disk",
        "interrupted copies of a million files",
        {USER: f"{_ENEMY}test_a_copy_that_takes_long_to_remove_is_removed"},
    ),
    Attack("disk", "files that no walk sees, default limit", {CODE: OPEN}),
    Attack("disk", "a full host", {CODE: f"{_DISKS}test_nothing_is_lost_on_a_host_whose_disk_is_full"}),
    Attack(
        "disk",
        "quotas of owners",
        {USER: f"{_QUOTAS}test_promised_disks", KEY: f"{_KEYS}test_a_key_has_quotas_of_its_own"},
    ),
    Attack("disk", "steps of builds", {USER: OPEN}),
    # -- service to others --------------------------------------------------------------------------------------------
    Attack(
        "daemon's loop",
        "endless answers, output in drops",
        {
            CODE: f"{_ENEMY}test_one_that_speaks_without_end_has_its_share_and_no_more",
        },
    ),
    Attack(
        "daemon's loop",
        "floods of calls",
        {
            USER: f"{_USER}test_a_flood_keeps_nobody_from_being_served",
            KEY: f"{_HTTP}test_one_key_does_not_take_all_connections",
        },
    ),
    Attack(
        "daemon's loop", "floods of frames", {USER: f"{_STREAM}test_a_flood_of_empty_frames_leaves_turns_to_others"}
    ),
    Attack(
        "daemon's memory",
        "answers and files without end",
        {
            CODE: f"{_ENEMY}test_what_a_helper_says_is_read_within_bounds",
            KEY: f"{_HTTP}test_nonsense_is_refused",
            OUTSIDE: f"{_CLUSTER}test_a_list",
        },
    ),
    Attack(
        "daemon's memory",
        "clients that do not read",
        {
            USER: f"{_READERS}test_a_hundred_stalled_readers_cost_little_and_get_every_byte",
            KEY: f"{_HTTP}test_a_client_that_does_not_read_is_dropped",
        },
    ),
    Attack(
        "daemon's memory",
        "bombs in archives",
        {
            USER: "tests/daemon/snapshots/test_snapshots.py::test_a_bomb_is_refused",
            KEY: "tests/daemon/http/test_sessions.py::test_a_bomb_is_refused",
            OUTSIDE: f"{_INSPECT}test_a_bomb_is_refused_before_it_goes_off",
        },
    ),
    Attack(
        "daemon's memory",
        "long paths, errors of helpers for each file",
        {
            CODE: f"{_PROCESSES}test_a_tool_with_an_error_for_each_file_of_a_tree_fills_no_memory",
            USER: "tests/store/archives/trees/test_changes.py::test_paths_of_too_many_names_or_bytes_are_refused",
        },
    ),
    Attack(
        "daemon's memory",
        "comparisons of many large trees at once",
        {USER: "tests/store/test_budgets.py::test_trees_beyond_it_are_refused"},
    ),
    Attack(
        "daemon's threads",
        "walks without end, frozen files",
        {
            CODE: f"{_ENEMY}test_those_that_take_long_to_look_at_delay_no_other",
            USER: f"{_SHARES}test_reads_of_one_sandbox_delay_neither_others_nor_a_stop",
        },
    ),
    Attack("daemon's threads", "many users at once, as of `/etc/subuid`", {USER: OPEN}),
    Attack(
        "daemon's threads",
        "orders that a dead daemon left",
        {USER: "tests/daemon/core/test_operation.py::test_what_a_dead_daemon_had_begun_is_undone_and_begun_anew"},
    ),
    Attack(
        "daemon's threads",
        "files that take long to measure",
        {CODE: f"{_ENEMY}test_those_that_take_long_to_look_at_delay_no_other"},
    ),
    Attack(
        "daemon's threads",
        "helpers that are stopped",
        {
            CODE: f"{_ENEMY}test_a_file_whose_reader_is_stopped_or_waits",
            USER: f"{_PATHS}test_an_import_that_hangs_ends_with_the_daemon",
            OUTSIDE: f"{_CLUSTER}test_a_call_that_takes_too_long_leaves_no_thread",
        },
    ),
    Attack(
        "host's processes",
        "variables of a sandbox, in another program",
        {
            CODE: "tests/conformance/test_strays.py::test_what_a_sandbox_says_of_itself_is_not_believed",
            USER: "tests/conformance/test_strays.py::test_what_another_user_says_of_a_process_is_not_believed",
        },
    ),
    Attack(
        "host's processes",
        "programs whose starts are cut off",
        {CODE: "tests/daemon/host/test_killed_bwrap.py::test_an_extracting_program"},
    ),
    Attack(
        "termination",
        "trees without end, survivors",
        {
            CODE: f"{_SHARES}test_a_hundred_thousand_levels_are_ended",
        },
    ),
    Attack(
        "termination",
        "removals and forks without end at a stop",
        {
            CODE: f"{_SHARES}test_a_removal_delays_no_stop_and_the_next_daemon_goes_on_with_it",
            USER: f"{_SHARES}test_a_fork_delays_no_stop",
        },
    ),
    Attack(
        "termination",
        "reads that freeze what is being killed",
        {CODE: "tests/daemon/host/test_cgroup_freezer.py::test_what_is_being_killed_is_not_frozen_any_more"},
    ),
    Attack(
        "limits of sessions",
        "files that cannot be saved",
        {CODE: "tests/daemon/sessions/test_unsaved.py::test_files_that_keep_it_from_being_saved_are_given_up_earlier"},
    ),
    Attack(
        "stop of the daemon",
        "clients and work that do not end",
        {
            USER: f"{_SHARES}test_reads_of_one_sandbox_delay_neither_others_nor_a_stop",
            KEY: f"{_HTTP}test_who_does_not_read_does_not_keep_the_daemon_from_stopping",
        },
    ),
    # -- viewers and the network --------------------------------------------------------------------------------------
    Attack(
        "viewers' terminals",
        "control sequences in output",
        {
            CODE: "tests/daemon/sandboxes/test_enemy_viewers.py::test_a_viewer_at_the_command_line",
        },
    ),
    Attack(
        "viewers' terminals",
        "programs that tmux runs for a viewer",
        {CODE: "tests/daemon/sandboxes/test_enemy_viewers.py::test_programs_that_tmux_runs_for_a_viewer_run_inside"},
    ),
    Attack(
        "viewers' terminals",
        "control, bidi and invisible characters in answers",
        {
            CODE: f"{_PRINTING}test_lines_for_people_drive_no_terminal",
            USER: f"{_PRINTING}test_documents_are_escaped_and_have_the_same_value",
            OUTSIDE: f"{_PRINTING}test_errors_and_progress_drive_no_terminal",
        },
    ),
    Attack(
        "viewers' eyes",
        "deceptive names",
        {USER: "tests/daemon/api/test_new_names.py::test_a_text_that_is_no_name_is_refused"},
    ),
    Attack("HTTP requests", "smuggling", {KEY: f"{_HTTP}test_no_request_is_smuggled_behind_another"}),
    Attack(
        "HTTP requests",
        "chunks, long heads",
        {
            KEY: f"{_HTTP}test_chunks_that_can_be_read_in_two_ways_are_refused",
        },
    ),
    Attack("HTTP requests", "pages of the web", {KEY: f"{_KEYS}test_a_page_of_the_web_has_no_way_in"}),
    Attack(
        "host's network",
        "from inside",
        {
            CODE: f"{_DOCKER}test_without_a_network_there_is_localhost_and_nothing_else",
        },
    ),
    Attack(
        "host's network",
        "requests by the daemon or the engine",
        {
            USER: "tests/daemon/providers/docker/test_build_context.py::test_the_engine_fetches_no_files",
            KEY: f"{_KEYS}test_a_key_does_not_make_the_engine_call_the_host",
        },
    ),
    Attack(
        "host's network",
        "IPv6 addresses that carry private IPv4 ones",
        {KEY: "tests/daemon/host/test_registries.py::test_addresses_that_lead_to_private_ones_are_not_public"},
    ),
)


def table() -> str:
    """Return the table in Markdown; numbers refer to the list of tests below it."""
    tests = numbers()
    rows = [
        f"| {row.asset} | {row.mechanism} | " + " | ".join(_cell(row, who, tests) for who in ATTACKERS) + " |"
        for row in ATTACKS
    ]
    head = [f"| asset | mechanism | {' | '.join(ATTACKERS)} |", "|---" * (2 + len(ATTACKERS)) + "|"]
    return "\n".join([*head, *rows]) + "\n"


def numbers() -> dict[str, int]:
    """Return the number of each test, in the order of the table."""
    tests = [test for row in ATTACKS for test in row.tests.values() if test != OPEN]
    return {test: number for number, test in enumerate(dict.fromkeys(tests), start=1)}


def _cell(row: Attack, attacker: str, tests: dict[str, int]) -> str:
    test = row.tests.get(attacker, "")
    return str(tests[test]) if test in tests else test
