"""Folds of the events of volumes."""

from sandkeep import events
from sandkeep.lifecycle import VOLUME
from sandkeep_store.views.folds.register import changes, folds
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact
from sandkeep_store.views.volumes import VolumeState

changes("volumes", events.VolumeCreateFailed, events.VolumeRemoveFailed)(VolumeState.fail)


@folds(events.VolumeCreateRequested, events.VolumeRemoveRequested)
def _requested(state: State, event: events.VolumeCreateRequested | events.VolumeRemoveRequested, fact: Fact) -> None:
    state.volumes[fact.stream] = VolumeState(
        volume_id=fact.stream, status=VOLUME.targets[event.type], owner=event.owner, provider=event.provider,
        name=event.name, requested_us=fact.time_us, revision=fact.revision,
    )  # fmt: skip


@changes("volumes", events.VolumeCreated, events.VolumeRemoved)
def _done(volume: VolumeState, event: events.VolumeCreated | events.VolumeRemoved, fact: Fact) -> None:
    volume.ended_us = fact.time_us
