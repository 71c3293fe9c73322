"""The settings of the gVisor provider, for the administrator. See `settings` for the manner.

The names and meanings of the ``RUNSC_*`` and of ``GVISOR_LOG_PACKETS`` are those of cloud-run-sandbox.
"""

from sandkeep.settings.daemon import Setting, absolute_path, matching, optional, parse_switch

PLATFORM = Setting(
    "RUNSC_PLATFORM",
    matching(r"[a-z][a-z0-9-]{0,30}", "give the name of a platform that runsc has, such as ptrace, systrap or kvm"),
    "ptrace",
    "gVisor's platform: `ptrace`, which works everywhere, or another that `runsc` has.",
)
IGNORE_CGROUPS = Setting(
    "RUNSC_IGNORE_CGROUPS",
    parse_switch,
    "1",
    "Pass `--ignore-cgroups` to `runsc`. Sandkeep puts it into control groups of its own either way.",
)
USE_SUDO = Setting(
    "RUNSC_USE_SUDO",
    parse_switch,
    "0",
    "Start `runsc` by `sudo -n` for a user's daemon. Only `0` is supported: run the daemon as root instead.",
)
ROOTLESS = Setting(
    "RUNSC_ROOTLESS",
    parse_switch,
    "0 for root's daemon; a user's is always rootless",
    "Run `runsc` without root privileges.",
    default=lambda: False,
)
DISABLE_NETWORKING = Setting("RUNSC_DISABLE_NETWORKING", parse_switch, "0", "Refuse networks to all gVisor sandboxes.")
READONLY_FILESYSTEM = Setting(
    "RUNSC_READONLY_FILESYSTEM",
    parse_switch,
    "0",
    "Mount the files of all gVisor sandboxes read-only, as with `create --read-only`.",
)
ROOT_DIR_BASE = optional(
    "RUNSC_ROOT_DIR_BASE",
    absolute_path,
    "The directory in which `runsc` keeps its state, in `runsc_root_SANDBOX`.",
    shown="`gvisor` in SANDKEEP_STATE_DIR",
)
BUNDLE_DIR_BASE = optional(
    "RUNSC_BUNDLE_DIR_BASE",
    absolute_path,
    "The directory of the bundles, `runsc_bundle_SANDBOX`, with the images of suspended sandboxes.",
    shown="`gvisor` in SANDKEEP_STATE_DIR",
)
DEBUG_LOG_DIR = optional(
    "RUNSC_DEBUG_LOG_DIR",
    absolute_path,
    "The directory of the logs of `runsc --debug`, with a subdirectory for each sandbox.",
)
STRACE = Setting("RUNSC_STRACE", parse_switch, "0", "Log the system calls of sandboxes there, too.")
LOG_PACKETS = Setting("GVISOR_LOG_PACKETS", parse_switch, "0", "Log their network packets there, too.")
