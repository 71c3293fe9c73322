"""Folds of the events of images."""

from sandkeep import events
from sandkeep_store.views.folds.register import advance, folds
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
    image = advance(state.images, event, fact)
    if image is not None:
        image.created = event


@folds(events.ImageReused)
def _reused(state: State, event: events.ImageReused, fact: Fact) -> None:
    image = advance(state.images, event, fact)
    if image is not None:
        image.reused, image.ended_us = event.image_id, fact.time_us


@folds(events.ImageCreateFailed)
def _create_failed(state: State, event: events.ImageCreateFailed, fact: Fact) -> None:
    image = advance(state.images, event, fact)
    if image is not None:
        image.fail(event, fact)


@folds(events.ImageRemoveRequested, events.ImageRemoved)
def _removed(state: State, event: events.ImageRemoveRequested | events.ImageRemoved, fact: Fact) -> None:
    image = advance(state.images, event, fact)
    if image is not None and image.ended:
        image.ended_us = fact.time_us


@folds(events.ImageTagged)
def _tagged(state: State, event: events.ImageTagged, fact: Fact) -> None:
    image = advance(state.images, event, fact)
    if image is not None:
        state.name_image(image, event.name)


@folds(events.ImageUntagged)
def _untagged(state: State, event: events.ImageUntagged, fact: Fact) -> None:
    state.take_image_name(advance(state.images, event, fact), event.name)
