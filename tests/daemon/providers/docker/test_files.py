"""Files in Docker sandboxes: what `test_files` asks of local ones, in an image with GNU's tools. All of it is for
soaking; these stand for it in between.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.daemon.sandboxes.test_files import (  # noqa: F401  # these tests are ones of this file, too
    SETTINGS,
    bound,
    box,
    test_a_conflict_changes_nothing,
    test_a_copy_whose_caller_goes_is_undone,
    test_a_directory_is_listed_with_what_things_are,
    test_a_file_is_written_whole_and_is_on_record,
    test_a_link_is_followed_and_stays_a_link,
    test_a_tree_comes_out_under_its_name,
    test_every_byte_of_a_file_comes_as_it_is,
    test_modes_are_kept_or_given,
    test_names_of_any_bytes,
    test_nothing_is_seen_of_a_copy_before_it_is_confirmed,
    test_the_end_of_a_huge_sparse_file_is_there_at_once,
    test_trees_are_merged,
    test_what_leads_to_something_is_not_replaced,
    test_where_a_copy_goes,
)

pytestmark = pytest.mark.needs("docker")


@pytest.fixture(scope="module")
def shared_daemon(places: str, dockerd: Any) -> Iterator[RunningDaemon]:
    with daemon_in(places, **SETTINGS, DOCKER_HOST=dockerd.host, SANDKEEP_DOCKER_BASE=dockerd.guest()) as daemon:
        daemon.start()
        yield daemon


@pytest.fixture(scope="module")
def image(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("project")
    (root / "hello").write_text("hello\n")
    (root / "sub").mkdir()
    (root / "sub" / "inner").write_text("inner\n")
    with shared_daemon.connect() as client:
        return str(client.image.create(str(root), provider="docker").image_id)
