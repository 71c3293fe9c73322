"""Sandboxes in a cluster, beside the official client that does the same by hand, in the same run and in turns.

The cluster is the double of the tests: what it takes for a pod is the same for both, and it has no precedence. By hand,
16 threads make the objects that the daemon makes, wait by one watch of all their pods for each to run, open the channel
to its keeper by an exec, which stays open, and read the first answer.
"""

import json
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import trio
from benches import fair
from benches.daemon import daemon, seconds
from benches.docker import MOST_MIB, peak_mib
from benches.elsewhere import (
    AT_ONCE,
    QUIET_S,
    ROUNDS,
    Ours,
    Threads,
    Times,
    crowd_row,
    exec_row,
    ordinary,
    provider_times,
)
from benches.table import Row, show
from kubernetes import client as official
from kubernetes import config
from kubernetes.stream import stream
from kubernetes.watch import Watch
from tests.support.kubernetes.cluster import Cluster, start_cluster
from tests.support.kubernetes.images import BUSYBOX

from sandkeep.ids import SANDBOX, new_id
from sandkeepd.keeper.relay_frames import begin
from sandkeepd.providers.kubernetes.cluster import Cluster as Way
from sandkeepd.providers.kubernetes.manifests import DIRECTORY, PROGRAM
from sandkeepd.providers.kubernetes.marks import LOG_LABEL
from sandkeepd.providers.kubernetes.provider import open_kubernetes

Object = dict[str, Any]

CROWD = 100
MANY = 1000
MOST_CREATE, MOST_EXEC = 1.3, 0.3
PLACE = ("agents.x-k8s.io", "v1beta1", "default", "sandboxes")
BY_HAND = f"{LOG_LABEL}=by-hand"
AGAIN_S = 0.05
BESIDE = "connect_get_namespaced_pod_exec"


class ByHand:
    """The official client, which makes Sandboxes like that of `box`, a sandbox of the daemon, whose name is `name`."""

    def __init__(self, cluster: Any, box: str, name: str, at_once: int = AT_ONCE) -> None:
        self._cluster = cluster
        self._threads = Threads(self._new, at_once)
        self._running: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self._channels: list[Any] = []
        self._core = official.CoreV1Api(self._client())
        self._custom = official.CustomObjectsApi(self._client())
        model: Any = self._custom.get_namespaced_custom_object(*PLACE, name)
        self.log: str = model["metadata"]["labels"][LOG_LABEL]
        self._text = json.dumps(_blank(model)).replace(box.removeprefix("sbx_"), "{id}")
        self._execs = official.CoreV1Api(self._client()).connect_get_namespaced_pod_exec

    def _client(self) -> Any:
        return config.new_client_from_config(str(self._cluster.kubeconfig))  # type: ignore[no-untyped-call]

    def _new(self) -> tuple[Any, Any]:
        """Clients of a thread; `stream` takes one for itself."""
        return official.CustomObjectsApi(self._client()), official.CoreV1Api(self._client())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note for the length of a block which pods run."""
        watch: Any = Watch()  # type: ignore[no-untyped-call]

        def follow() -> None:
            pods = self._core.list_namespaced_pod
            with suppress(Exception):  # it was stopped
                for event in watch.stream(pods, "default", label_selector=BY_HAND, deserialize=False):
                    if _runs(event["object"]):
                        self._running[event["object"]["metadata"]["name"]].set()

        following = threading.Thread(target=follow)
        following.start()
        try:
            yield
        finally:
            watch.stop()
            self.clear()  # the watch hears of that, and ends
            following.join()

    def make_crowd(self, number: int = CROWD) -> None:
        self._channels += self._threads.each(self._one, range(number))

    def _one(self, clients: tuple[Any, Any], _: int) -> Any:
        custom, core = clients
        body = json.loads(self._text.replace("{id}", new_id(SANDBOX).removeprefix("sbx_")))
        name = custom.create_namespaced_custom_object(*PLACE, body)["metadata"]["name"]
        self._running[name].wait()
        while (channel := _answered(core, name)) is None:  # the keeper is just starting
            time.sleep(AGAIN_S)
        return channel

    def clear(self) -> None:
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        self._running.clear()
        self._custom.delete_collection_namespaced_custom_object(*PLACE, label_selector=BY_HAND)
        while self._core.list_namespaced_pod("default", label_selector=BY_HAND, limit=1).items:
            time.sleep(AGAIN_S)

    def exec(self, pod: str) -> None:
        """Run `true` to its end."""
        done = stream(self._execs, pod, "default", command=["true"], stdin=False, stdout=True, stderr=True, tty=False)
        assert done == "", done


def _blank(model: Object) -> Object:
    """The object as it was sent, with the mark of another log."""
    metadata = {field: model["metadata"][field] for field in ("name", "labels")}
    blank = {**model, "metadata": metadata}
    del blank["status"]
    log = metadata["labels"][LOG_LABEL]
    found: Object = json.loads(json.dumps(blank).replace(log, BY_HAND.partition("=")[2]))
    return found


def _runs(pod: Object) -> bool:
    return any("running" in each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses", []))


def _answered(core: Any, pod: str) -> Any:
    """A channel to a keeper on which it has answered; None if it does not serve yet."""
    channel = stream(
        core.connect_get_namespaced_pod_exec, pod, "default", command=[PROGRAM, "-r", DIRECTORY],
        stdin=True, stdout=True, stderr=True, tty=False, _preload_content=False,
    )  # fmt: skip
    answer = ""
    with suppress(OSError):  # the relay has ended, as there is no keeper yet
        channel.write_stdin(begin(1 << 30).decode())
        while channel.is_open() and "ready" not in answer:
            channel.update(timeout=30)
            answer += channel.read_stdout(timeout=0) or ""
    return channel if "ready" in answer else None


def asked(cluster: Cluster) -> int:
    """The requests so far that look for objects of sandboxes; the keeper and the policy are compared once a minute."""
    rows = cluster.requests()["requests"]
    looks = (row for row in rows if row["verb"] in ("get", "list") and not row["subresource"])
    return sum(row["count"] for row in looks if row["resource"] not in ("configmaps", "networkpolicies"))


def counts(cluster: Cluster, log: str) -> tuple[int, int, int]:
    """The watches of a daemon, the kinds of which they are, and the requests of any kind in a quiet while."""
    watches = [each["resource"] for each in cluster.requests()["watches"] if log in each["labelSelector"]]
    before = sum(row["count"] for row in cluster.requests()["requests"])
    time.sleep(QUIET_S)
    return len(watches), len(set(watches)), sum(row["count"] for row in cluster.requests()["requests"]) - before


def crowd_rows(ours: Ours, by_hand: ByHand, cluster: Cluster, log: str) -> Iterator[Row]:
    times: Times = [], []
    looked = 0
    for _ in range(ROUNDS):
        with by_hand.watching():
            times[1].append(seconds(by_hand.make_crowd))
        before = asked(cluster)
        times[0].append(seconds(lambda: ours.make(CROWD)))
        looked += asked(cluster) - before
        watches, kinds, quiet = counts(cluster, log)
        looked += quiet
        ours.clear()
    what = f"{CROWD} sandboxes made in a cluster"
    yield crowd_row(what, times, "the bare client, the same requests", MOST_CREATE)
    case = f"open watches with {CROWD} sandboxes in a cluster"
    yield Row(case, str(watches), f"{kinds} kinds of objects", watches / kinds, "<= 1", watches == kinds)
    case = f"gets and lists while {CROWD} are made, and requests in {QUIET_S:.0f} s after it"
    yield Row(case, str(looked), "-", "-", "0", not looked)


def alone_row(what: str, cluster: Any, by_hand: ByHand, state_dir: str, runtime_class: str = "") -> Row:
    """A command by a provider alone.

    The pod is a bare process of the double's, or a gVisor container, as its runtime class says.
    """
    os.environ["SANDKEEP_KUBERNETES_RUNTIME_CLASS"] = runtime_class
    opened = open_kubernetes(state_dir, log_id="log_bench", cluster=Way(str(cluster.kubeconfig)))
    times = trio.run(provider_times, opened, {"image": BUSYBOX}, lambda instance: by_hand.exec(instance.place.pod))
    return exec_row(f"in a pod, {what}", times, BESIDE, MOST_EXEC)


def memory_row(ours: Ours) -> Row:
    ours.make(MANY)
    memory = peak_mib(ours.client.daemon.status().pid)
    case = f"the daemon's memory with {MANY:,} sandboxes in a cluster, at its peak"
    return Row(case, f"{memory:.0f} MiB", "-", memory / MOST_MIB, f"<= {MOST_MIB} MiB", memory <= MOST_MIB)


@fair.conditions()
def run() -> list[Row]:
    with (
        ordinary(start_cluster) as (place, cluster),
        daemon(KUBECONFIG=str(cluster.kubeconfig)) as (client, root),
    ):
        ours = Ours(client, root, "kubernetes")
        box = ours.one()
        pod = f"sandbox-{box.removeprefix('sbx_')}"
        by_hand = ByHand(cluster, box, pod)
        rows = [alone_row("provider alone", cluster, by_hand, f"{place}/state")]
        durable = ours.exec_times(box, lambda: by_hand.exec(pod))
        rows.append(exec_row("in a pod, both commits durable", durable, BESIDE, MOST_EXEC))
        if shutil.which("runsc") is not None:
            case = "a gVisor container, provider alone"
            rows.append(alone_row(case, cluster, by_hand, f"{place}/gvisor", "gvisor"))
        rows += crowd_rows(ours, by_hand, cluster, by_hand.log)
        rows.append(memory_row(ours))
        ours.clear()
        return rows


if __name__ == "__main__":
    show(run())
