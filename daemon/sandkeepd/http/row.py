"""A route of the gateway: which request becomes which call of which method, and its answer which reply."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from sandkeep.errors import SandkeepError
from sandkeepd.http.exchange import Asked, Reply

if TYPE_CHECKING:
    from sandkeepd.http.gateway import Gateway

PREFIX: Final = "/api/sandbox"
JSON: Final = "application/json"

Values = dict[str, Any]


class NoQuery(Struct, frozen=True):
    """A route without a query."""


def session_only(asked: Asked) -> Values:
    """Return the parameters of a method that is given a session and nothing else."""
    return {"session_id": asked.id}


class Row(Struct, frozen=True, kw_only=True):
    """One route. `params` makes the parameters of the method `operation` of a request. Of its answer `show` makes
    the body of the reply, or `reply` the whole reply. `statuses` are those of success; `problem` is another status for
    an error, if it has one.

    A row with `serve` answers by itself. `sends` and `takes` are then its media types.
    """

    verb: str
    path: str
    operation: str
    summary: str
    params: Callable[[Asked], Values] = session_only
    show: Callable[[Any], Any] | None = None
    reply: Callable[[Asked, Any], Reply] | None = None
    statuses: tuple[int, ...] = (200,)
    query: type[Struct] = NoQuery
    body: type[Struct] | None = None
    answer: Any = None
    problem: Callable[[Asked, SandkeepError], int | None] | None = None
    problems: tuple[int, ...] = ()
    serve: "Callable[[Gateway, Row, Asked], Awaitable[None]] | None" = None
    takes: str = JSON
    sends: str = JSON

    def reply_to(self, asked: Asked, value: Any) -> Reply:
        """Return the reply of what the method answered."""
        if self.reply is not None:
            return self.reply(asked, value)
        return Reply(self.statuses[0], self.show(value) if self.show is not None else None)

    @property
    def streams(self) -> bool:
        """True if it takes or sends something without end or of any size."""
        return self.takes != JSON or self.sends != JSON

    @property
    def name(self) -> str:
        """The operation's id in the OpenAPI document, unique among rows."""
        words = [word.strip("{}") for word in self.path.split("/") if word]
        return "_".join([self.verb.lower(), *words]).replace("-", "_")
