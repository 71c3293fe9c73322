"""A counter that goes on from either of two pod snapshots, in a cluster that has them.

    python test_podsnapshot_extension.py --labels app=agent-sandbox-workload \\
        --template-name python-counter-template --namespace sandbox-test

Its template prints a number a second. The snapshots are deleted in the end. An exit code of 0 means that all is well.
"""

import argparse
import logging
import sys
from collections.abc import Generator
from contextlib import closing

from kubernetes import client, config, watch

from sandkeep.compat.agent_sandbox import PodSnapshotSandboxClient

FIRST, SECOND = "test-snapshot-10", "test-snapshot-20"


class Trial:
    """The phases, with the arguments of their sandboxes and a client for their logs."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._place = arguments.template_name, dict(arguments.labels), arguments.namespace
        self._namespace = arguments.namespace
        self._core = client.CoreV1Api()
        self.made: list[str] = []

    def sandbox(self, snapshot_id: str | None = None) -> PodSnapshotSandboxClient:
        """Return a client, for a `with` block."""
        return PodSnapshotSandboxClient(*self._place, server_port=8080, snapshot_id=snapshot_id)

    def make_snapshots(self) -> None:
        """Save a counter at about 10 and at about 20."""
        print("***** Phase 1: a counter, saved at about 10 and at about 20 *****", flush=True)
        with self.sandbox() as sandbox:
            assert sandbox.snapshot_controller_ready(), "the controller of pod snapshots does not run"
            with closing(self.numbers(sandbox)) as numbers:
                for trigger, least in ((FIRST, 10), (SECOND, 20)):
                    next(number for number in numbers if number >= least)
                    saved = sandbox.checkpoint(trigger)
                    assert saved.exit_code == 0, saved.stderr
                    print(f"{trigger} is {saved.snapshot_id}", flush=True)
                    self.made.append(saved.snapshot_id)

    def go_on(self, snapshot_id: str | None, expected: str, numbers: range) -> None:
        """Begin with a snapshot, and check the first number."""
        with self.sandbox(snapshot_id) as sandbox:
            assert sandbox.restored_from == expected, f"it was restored from {sandbox.restored_from}, not {expected}"
            with closing(self.numbers(sandbox)) as counted:
                first, second = next(counted), next(counted)
        print(f"restored from {expected}, it goes on with {first}, {second}", flush=True)
        assert first in numbers, f"{first} is not in {numbers}"
        assert second == first + 1, f"{second} does not follow {first}"

    def numbers(self, sandbox: PodSnapshotSandboxClient) -> Generator[int, None, None]:
        """Yield what the counter prints, and in a restored pod what it prints there."""
        lines = watch.Watch().stream(
            self._core.read_namespaced_pod_log, name=sandbox.pod_name, namespace=self._namespace
        )
        with closing(lines):
            for line in lines:
                if line:
                    yield int(line)

    def delete(self) -> None:
        """Delete the snapshots."""
        sandbox = self.sandbox()
        deleted = sum(sandbox.delete_snapshots(snapshot_id=name) for name in self.made)
        print(f"{deleted} snapshots are deleted", flush=True)
        assert deleted == len(self.made), f"{len(self.made) - deleted} snapshots are left"


def main() -> None:
    """Run all phases."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--labels",
        type=lambda text: [pair.partition("=")[::2] for pair in text.split(",")],
        default=[],
        help="labels by which a policy selects the pods",
    )
    parser.add_argument("--template-name", default="python-counter-template", help="the SandboxTemplate")
    parser.add_argument("--namespace", default="default", help="the namespace of all of it")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        config.load_incluster_config()
    except config.ConfigException:
        config.load_kube_config()
    trial = Trial(arguments)
    try:
        trial.make_snapshots()
        print("***** Phase 2: the most recent snapshot *****", flush=True)
        trial.go_on(None, trial.made[1], range(20, 30))
        print(f"***** Phase 3: {FIRST} *****", flush=True)
        trial.go_on(FIRST, trial.made[0], range(10, 20))
    finally:
        trial.delete()


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"not as it should be: {error}")
