"""The table of the SDK's errors: each class that it has is in it, and whatever else it raises is an error of ours."""

import inspect

import grpclib
import pytest
from modal import exception

from sandkeep.errors import CallerError, ProviderError
from sandkeepd.providers.modal.errors import TABLE, converted

NOT_OF_SANDBOXES = {
    "SandboxFilesystemError", "DeserializationError", "SerializationError", "LogsFetchError",
    "WorkspaceManagementError",
}  # fmt: skip
"""Bases of what the provider does not use."""


def classes() -> list[type[Exception]]:
    found = (each for _, each in inspect.getmembers(exception, inspect.isclass))
    return [each for each in found if issubclass(each, exception.Error) and each is not exception.Error]


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_every_class_is_in_the_table(kind: type[Exception]) -> None:
    names = {base.__name__ for base in kind.__mro__}
    assert names & NOT_OF_SANDBOXES or any(names.intersection(row.names) for row in TABLE)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exception.AuthError("no"), "not_configured"),
        (exception.NotFoundError("none"), "not_found"),
        (exception.AlreadyExistsError("two"), "conflict"),
        (exception.ConflictError("over"), "not_ready"),
        (exception.InvalidError("bad"), "invalid"),
        (exception.UnimplementedError("not yet"), "not_supported"),
        (exception.ResourceExhaustedError("full"), "provider_unavailable"),
        (exception.ImageBuildError("broken", "im-1"), "invalid"),
    ],
)
def test_codes(error: Exception, code: str) -> None:
    found = converted(error)
    assert found.code == code
    assert str(error) in found.message
    assert "engine" not in found.data


@pytest.mark.parametrize(
    "error",
    [
        exception.ConnectionError("refused"), exception.ServiceError("down"), exception.InternalError("oops"),
        exception.TimeoutError("late"), TimeoutError(), OSError(111, "refused"),
        grpclib.GRPCError(grpclib.Status.UNAVAILABLE, "away"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_service_that_does_not_answer(error: Exception) -> None:
    found = converted(error)
    assert (found.code, found.data["engine"]) == ("provider_unavailable", "modal")


def test_anything_else_is_a_failure_of_the_sdk(caplog: pytest.LogCaptureFixture) -> None:
    found = converted(KeyError("surprise"))
    assert isinstance(found, ProviderError)
    assert "KeyError" in found.message
    assert caplog.records


def test_the_service_s_words_are_one_line_of_bounded_length() -> None:
    message = converted(exception.InvalidError("\x1b[31mred\n" + "x" * 10_000)).message
    assert message.isprintable()
    assert len(message) < 1000


def test_errors_of_ours_stay() -> None:
    error = CallerError("invalid", "as it is")
    assert converted(error) is error
