"""Folds of the events of images."""

from sandkeep import events
from sandkeep.events import Event
from sandkeep.lifecycle import IMAGE
from sandkeep_store.views.folds.register import folds
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.ImageCreateRequested)
def _requested(state: State, event: events.ImageCreateRequested, fact: Fact) -> None:
    image_id = fact.stream
    state.images[image_id] = ImageState(
        image_id=image_id, requested=event, requested_us=fact.time_us, revision=fact.revision
    )


@folds(events.ImageCreated)
def _created(state: State, event: events.ImageCreated, fact: Fact) -> None:
    image = _advance(state, event, fact)
    if image is not None:
        image.created = event


@folds(events.ImageReused)
def _reused(state: State, event: events.ImageReused, fact: Fact) -> None:
    image = _advance(state, event, fact)
    if image is not None:
        image.reused, image.ended_us = event.image_id, fact.time_us


@folds(events.ImageCreateFailed)
def _create_failed(state: State, event: events.ImageCreateFailed, fact: Fact) -> None:
    image = _advance(state, event, fact)
    if image is not None:
        image.error, image.ended_us = (event.code, event.message), fact.time_us
        image.interrupted = event.interrupted


@folds(events.ImageRemoveRequested)
def _remove_requested(state: State, event: events.ImageRemoveRequested, fact: Fact) -> None:
    _advance(state, event, fact)


@folds(events.ImageRemoved)
def _removed(state: State, event: events.ImageRemoved, fact: Fact) -> None:
    image = _advance(state, event, fact)
    if image is not None:
        image.ended_us = fact.time_us


def _advance(state: State, event: Event, fact: Fact) -> ImageState | None:
    """Move an image on; None for one whose first events are in the archive already, as all of them soon will be."""
    image = state.images.get(fact.stream)
    if image is not None:
        image.status, image.revision = IMAGE.targets[event.type], fact.revision
    return image
