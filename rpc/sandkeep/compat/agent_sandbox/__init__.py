"""The sandboxes of *agent-sandbox* and their pod snapshots, straight from a Kubernetes cluster; no daemon is needed.

    with PodSnapshotSandboxClient("python-counter-template", namespace="sandbox-test") as sandbox:
        print(sandbox.run("python3 -V").stdout)
        saved = sandbox.checkpoint("before-the-upgrade")

    with PodSnapshotSandboxClient("python-counter-template", namespace="sandbox-test", snapshot_id=saved.snapshot_id):
        ...

A sandbox is a SandboxClaim against a SandboxTemplate, for the length of a `with` block. Commands and files go over the
exec stream of the API server, not to a server in the sandbox: `server_port` is accepted, and not used. Every call
blocks. Objects of one client may not be shared by threads. Needs ``sandkeep[kubernetes]``.

The defects of the original are not repeated. Any ready snapshot can be restored, and the restore is proven by the pod's
condition. Without a `snapshot_id` only the latest of the same owner is. Lists are empty rather than None, and what the
cluster refuses is an error. Trigger names can be used again.
"""

from sandkeep.compat.agent_sandbox.execution import ExecutionResult
from sandkeep.compat.agent_sandbox.pod_snapshot_client import CheckpointResult, PodSnapshotSandboxClient
from sandkeep.compat.agent_sandbox.sandbox_client import SandboxClient

__all__ = ["CheckpointResult", "ExecutionResult", "PodSnapshotSandboxClient", "SandboxClient"]
