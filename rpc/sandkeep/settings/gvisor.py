"""The settings of the gVisor provider, for the administrator. See `settings` for the manner.

The names and meanings of the ``RUNSC_*`` and of ``GVISOR_LOG_PACKETS`` are those of cloud-run-sandbox.
"""

from sandkeep.settings.daemon import Setting, absolute_path, matching, optional, parse_switch

PLATFORM = Setting(
    "RUNSC_PLATFORM",
    matching(r"[a-z][a-z0-9-]{0,30}", "give the name of a platform that runsc has, such as ptrace, systrap or kvm"),
    "ptrace",
    "How gVisor has the code of sandboxes run: `ptrace`, which works everywhere; or what else `runsc` has.",
)
IGNORE_CGROUPS = Setting(
    "RUNSC_IGNORE_CGROUPS",
    parse_switch,
    "1",
    "Whether `runsc` leaves control groups alone. Sandkeep puts it into groups of its own either way.",
)
USE_SUDO = Setting(
    "RUNSC_USE_SUDO",
    parse_switch,
    "0",
    "Whether a user's daemon starts `runsc` by `sudo -n`. Only `0` is supported: have the daemon run as root.",
)
ROOTLESS = Setting(
    "RUNSC_ROOTLESS",
    parse_switch,
    "0 for root's daemon; a user's is always rootless",
    "Whether `runsc` is to need no rights of root's.",
    default=lambda: False,
)
DISABLE_NETWORKING = Setting(
    "RUNSC_DISABLE_NETWORKING", parse_switch, "0", "Whether no gVisor sandbox gets a network, whatever is asked for."
)
READONLY_FILESYSTEM = Setting(
    "RUNSC_READONLY_FILESYSTEM",
    parse_switch,
    "0",
    "Whether no gVisor sandbox can write to its files, as with `create --read-only`.",
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
    "The directory of the bundles, `runsc_bundle_SANDBOX`, with what a suspended sandbox is brought back from.",
    shown="`gvisor` in SANDKEEP_STATE_DIR",
)
DEBUG_LOG_DIR = optional(
    "RUNSC_DEBUG_LOG_DIR",
    absolute_path,
    "The directory for what `runsc --debug` tells, in one of its own for each sandbox.",
)
STRACE = Setting("RUNSC_STRACE", parse_switch, "0", "Whether the system calls of sandboxes are told there, too.")
LOG_PACKETS = Setting("GVISOR_LOG_PACKETS", parse_switch, "0", "Whether their packets are.")
