"""An agent of deepagents whose model is a script of tool calls.   MODULE IMAGE SESSION

It prints the names of the tools and their answers, as JSON.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from deepagents.middleware.filesystem import FilesystemMiddleware
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("write_file", {"file_path": "/workspace/a.txt", "content": "one\ntwo\n"}),
    ("edit_file", {"file_path": "/workspace/a.txt", "old_string": "two", "new_string": "first"}),
    ("read_file", {"file_path": "/workspace/a.txt"}),
    ("ls", {"path": "/workspace"}),
    ("grep", {"pattern": "first", "path": "/workspace", "output_mode": "content"}),
    ("glob", {"pattern": "*.txt", "path": "/workspace"}),
    ("execute", {"command": "tail -n 1 a.txt"}),
)


PATH = {"PATH": "/workspace/bin:/usr/local/bin:/usr/bin:/bin"}


class Scripted(GenericFakeChatModel):
    """A model that is bound to tools, and asks for those of the script."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def main(module: str, image: str, session_id: str) -> None:
    backend = importlib.import_module(module).SandboxBackend(
        {"configurable": {}}, session_params={"image": image, "env": PATH}, session_id=session_id
    )
    calls = CALLS if hasattr(backend, "execute") and module != "astraforge_toolkit" else CALLS[:-1]

    def messages() -> Iterator[AIMessage]:
        for number, (name, arguments) in enumerate(calls):
            yield AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{number}"}])
        yield AIMessage("done")

    agent = create_agent(Scripted(messages=messages()), middleware=[FilesystemMiddleware(backend=backend)])
    state = agent.invoke({"messages": [("user", "go")]}, {"recursion_limit": 100})
    answers = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    print(json.dumps([(message.name, str(message.content)) for message in answers]))


if __name__ == "__main__":
    main(*sys.argv[1:])
