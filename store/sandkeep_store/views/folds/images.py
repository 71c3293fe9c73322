"""Folds of the events of images."""

from sandkeep import events
from sandkeep_store.views.folds.register import advance, begins, changes, folds
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact

begins("images", ImageState, events.ImageCreateRequested)
changes("images", events.ImageCreateFailed)(ImageState.fail)
changes("images", events.ImageRemoveRequested, events.ImageRemoved)(ImageState.end)


@changes("images", events.ImageCreated)
def _created(image: ImageState, event: events.ImageCreated, fact: Fact) -> None:
    image.created = event


@changes("images", events.ImageReused)
def _reused(image: ImageState, event: events.ImageReused, fact: Fact) -> None:
    image.reused, image.ended_us = event.image_id, fact.time_us


@changes("images", events.ImagePublished)
def _published(image: ImageState, event: events.ImagePublished, fact: Fact) -> None:
    image.published = {**image.published, event.reference: event.owners}


@changes("images", events.ImageUnpublished)
def _unpublished(image: ImageState, event: events.ImageUnpublished, fact: Fact) -> None:
    image.published = {name: owners for name, owners in image.published.items() if name != event.reference}


@folds(events.ImageTagged)
def _tagged(state: State, event: events.ImageTagged, fact: Fact) -> None:
    image = advance(state.images, event, fact)
    if image is not None:
        state.name_image(image, event.name)


@folds(events.ImageUntagged)
def _untagged(state: State, event: events.ImageUntagged, fact: Fact) -> None:
    state.take_image_name(advance(state.images, event, fact), event.name)
