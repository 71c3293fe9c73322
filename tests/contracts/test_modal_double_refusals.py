"""The double of Modal's service refuses what Modal's own mock servicer refuses; see `tests/sources/test_modal.py`."""

from typing import Any

import pytest
from tests.support.modal.refusals import CASES, Case, answer

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("busybox"), pytest.mark.needs("modal")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_is_refused(modal: Any, case: Case) -> None:
    assert answer({"url": modal.url, "token": modal.token}, case) == CASES[case]
