"""Files in Docker sandboxes: all that `test_files` asks of local ones."""

import pytest
from tests.daemon.providers.docker.test_files import image, shared_daemon  # noqa: F401
from tests.daemon.sandboxes.test_files import *  # noqa: F403  # every test of that file is one of this, but for those below

pytestmark = [pytest.mark.needs("docker"), pytest.mark.soak]

for name in (
    "test_all_of_this_with_a_users_own_daemon",
    "test_what_is_no_file_is_refused_at_once",  # these take a Python inside,
    "test_links_that_are_swapped_lead_nowhere",
    "test_a_full_disk_is_told_and_nothing_is_left",  # and this a home directory of its own
):
    del globals()[name]
