"""The settings of the Modal provider, for the administrator. See `settings` for the manner.

The SDK reads more of its own, as `MODAL_ENVIRONMENT`, and the file `~/.modal.toml`.
"""

from sandkeep.settings.daemon import Setting, matching, number_between

TOKEN_ID = Setting(
    "MODAL_TOKEN_ID",
    str,
    "that of the profile in `~/.modal.toml`",
    "The id of the token with which the Modal provider works.",
    default=lambda: "",
)
TOKEN_SECRET = Setting(
    "MODAL_TOKEN_SECRET",
    str,
    "that of the profile in `~/.modal.toml`",
    "The secret of that token.",
    default=lambda: "",
)
APP = Setting(
    "SANDKEEP_MODAL_APP",
    matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", "give a name of letters, digits, '_', '.' and '-'"),
    "sandkeep",
    "The app at Modal in which sandboxes are made. It is made if it is missing.",
)
START_S = Setting(
    "SANDKEEP_MODAL_START_TIMEOUT",
    number_between(1, 3600),
    "110",
    "Seconds that a sandbox may take to run: a machine has to be found for it, and its image loaded there.",
)
BUILD_S = Setting(
    "SANDKEEP_MODAL_BUILD_TIMEOUT",
    number_between(1, 86_400),
    "3600",
    "Seconds that the build of an image may take.",
)
