"""Pods with a root that can be written: as asked for, and never with files that would be missing."""

from typing import Any

import msgspec
import pytest
from tests.support.expect import refused

from sandkeep.model import SandboxSpec
from sandkeepd.providers.common.streamed_layers import require_whole
from sandkeepd.providers.kubernetes import manifests
from sandkeepd.providers.kubernetes.plan import decide


def made(details: dict[str, Any] | None = None, **spec: Any) -> manifests.Job:
    asked = SandboxSpec(**spec)
    plan = decide("sbx_1", "uid:7", asked, details or {"image": "python:3.12"})
    return manifests.Job(sandbox_id="sbx_1", log_id="log_1", plan=plan, spec=asked, secrets=[], keeper="keeper")


@pytest.mark.parametrize("writable", [False, True])
def test_a_root_is_read_only_unless_it_is_asked_for(writable: bool) -> None:
    [container] = manifests.pod(made(writable_root=writable))["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is not writable


def test_what_is_refused() -> None:
    template: dict[str, Any] = {"template": "python"}
    assert "template" in refused("not_supported", made, template, writable_root=True).message
    require_whole(msgspec.to_builtins(made().plan))
    assert "lack" in refused("not_supported", require_whole, msgspec.to_builtins(made(writable_root=True).plan)).message
