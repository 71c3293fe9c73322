"""agent-sandbox's Python client of today against the double of a cluster: its own integration script, unmodified."""

import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from tests.rpc.compat.agent_sandbox.conftest import BUSYBOX, Resources
from tests.sources.repositories import repository
from tests.support import rootfs
from tests.support.kubernetes.cluster import Cluster, start_cluster
from tests.support.patience import patient

pytestmark = [pytest.mark.needs(name) for name in ("source:agent-sandbox", "root", "runsc", "bwrap", "busybox")]

CLIENT = "clients/python/agentic-sandbox-client"
SCRIPT = "test_podsnapshot_extension.py"
GROUP = "podsnapshot.gke.io"
NAME_HASH = "agents.x-k8s.io/sandbox-name-hash"


@pytest.fixture(scope="module")
def cluster(places: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a pool of gVisor sandboxes, whose snapshots are grouped by sandbox."""
    image = tmp_path_factory.mktemp("image")
    with tarfile.open(fileobj=io.BytesIO(rootfs.busybox())) as archive:
        archive.extractall(image, filter="fully_trusted")
    with start_cluster(Path(tempfile.mkdtemp(dir=places)), {BUSYBOX: image}) as cluster:
        # The client takes the newest by creationTimestamp, which has seconds; GKE takes longer than one to save a pod.
        cluster.script(trigger_delay_s=1)
        configuration = client.Configuration(host=cluster.url, api_key={"authorization": f"Bearer {cluster.token}"})
        with client.ApiClient(configuration) as api:
            resources = Resources(api, "default")
            resources.template("python-counter-template", pool=None, runtimeClassName="gvisor")
            resources.pool("python-counter-template", replicas=1)
            storage = {"snapshotStorageConfig": {"gcs": {"bucket": "bucket"}}}
            resources.create(_snapshots("PodSnapshotStorageConfig", "storage", storage))
            policy = {
                "storageConfigName": "storage",
                "selector": {"matchLabels": {"app": "workload"}},
                "triggerConfig": {"type": "manual", "postCheckpoint": "resume"},
                "snapshotGroupingRules": {"groupByLabelValue": {"labels": [NAME_HASH]}},
            }
            resources.create(_snapshots("PodSnapshotPolicy", "policy", policy))
        yield cluster


def _snapshots(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def test_its_integration_script_of_pod_snapshots(cluster: Cluster) -> None:
    """Two snapshots, suspension and resumption, a restore by uid, lists and deletions, by time as well."""
    directory = repository("agent-sandbox") / CLIENT
    done = subprocess.run(
        [sys.executable, SCRIPT, "--warmpool-name", "python-counter-template-pool"],
        cwd=directory,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PYTHONPATH": ".", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=patient(600),
        check=False,
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    assert "--- Pod Snapshot Test Passed! ---" in done.stdout, said
    assert "An error occurred" not in done.stdout, said


FACTS = """
import json
from k8s_agent_sandbox import constants, models
from k8s_agent_sandbox.gke_extensions.snapshots import podsnapshot_client
from k8s_agent_sandbox.sandbox_client import SandboxClient

facts = {name: value for name, value in vars(constants).items() if name.isupper() and isinstance(value, str)}
facts["TERMINAL"] = sorted(constants.TERMINAL_CLAIM_READY_REASONS)
facts["RESULT"] = sorted(models.ExecutionResult.model_fields)
facts["CLIENTS"] = [SandboxClient.__name__, podsnapshot_client.PodSnapshotSandboxClient.__name__]
print(json.dumps(facts))
"""


def test_names_that_both_use_are_the_same() -> None:
    """The client of today has another interface than the one that `sandkeep.compat.agent_sandbox` has: no template, and
    snapshots by an engine of the sandbox. What goes to the cluster is the same.
    """
    from sandkeep.compat import agent_sandbox
    from sandkeep.kubernetes import claims, pod_snapshots, versions

    directory = repository("agent-sandbox") / CLIENT
    environment = {**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    said = subprocess.run([sys.executable, "-c", FACTS], env=environment, capture_output=True, check=True, text=True)
    theirs = json.loads(said.stdout)
    ours = {
        "PODSNAPSHOT_NAME_ANNOTATION": pod_snapshots.RESTORE_ANNOTATION,
        "PODSNAPSHOT_POD_NAME_ANNOTATION": pod_snapshots.ORIGIN_POD_ANNOTATION,
        "POD_NAME_ANNOTATION": claims.POD_NAME_ANNOTATION,
        "PODSNAPSHOT_API_GROUP": versions.POD_SNAPSHOTS.name,
        "CLAIM_API_GROUP": versions.EXTENSIONS.name,
        "SANDBOX_API_GROUP": versions.AGENTS.name,
        "CLAIM_PLURAL_NAME": claims.CLAIMS,
        "SANDBOX_PLURAL_NAME": claims.SANDBOXES,
        "PODSNAPSHOT_PLURAL": pod_snapshots.SNAPSHOTS,
        "PODSNAPSHOTMANUALTRIGGER_PLURAL": pod_snapshots.TRIGGERS,
        "TERMINAL": sorted((*claims._INVALID, *claims._EXPIRED)),
        "RESULT": sorted(field.name for field in dataclasses.fields(agent_sandbox.ExecutionResult)),
    }
    assert {name: theirs[name] for name in ours} == ours
    assert set(theirs["CLIENTS"]) <= set(agent_sandbox.__all__)
    assert theirs["CLAIM_API_VERSION"] in versions.EXTENSIONS.versions
    assert theirs["PODSNAPSHOT_API_VERSION"] in versions.POD_SNAPSHOTS.versions
