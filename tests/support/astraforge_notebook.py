"""Run a notebook of AstraForge's, whose models are a script of tool calls.   NOTEBOOK

Only what is not Sandkeep's is replaced: models, what `%pip` installs, and conversations, which are of AstraForge's own
agents. It prints the names of the tools and their answers, as JSON, after what the notebook prints.
"""

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import astraforge_toolkit
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("write_todos", {"todos": [{"content": "make crepes", "status": "in_progress"}]}),
    ("sandbox_shell", {"command": "rm -f /workspace/main.py; pwd"}),
    ("write_file", {"file_path": "/workspace/main.py", "content": "print('hello')\n"}),
    ("edit_file", {"file_path": "/workspace/main.py", "old_string": "hello", "new_string": "hello world"}),
    ("read_file", {"file_path": "/workspace/main.py"}),
    ("ls", {"path": "/workspace"}),
    ("grep", {"pattern": "hello world", "path": "/workspace", "output_mode": "content"}),
    ("sandbox_shell", {"command": "python3 main.py"}),
)
"""None of those for which the toolkit needs a `python` in the image, as the default one of a local sandbox has none."""

ANSWERS: list[tuple[str, str]] = []


class Scripted(BaseChatModel):
    """A model that asks for the tools of the script that it is bound to, one after the other."""

    tools: tuple[str, ...] = ()

    def __init__(self, **_: Any) -> None:
        super().__init__()

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        names = (tool["name"] if isinstance(tool, dict) else getattr(tool, "name", "") for tool in tools)
        return self.model_copy(update={"tools": tuple(names)})

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        last = max(number for number, message in enumerate(messages) if isinstance(message, HumanMessage))
        answers = [message for message in messages[last:] if isinstance(message, ToolMessage)]
        calls = [call for call in CALLS if call[0] in self.tools]
        if len(answers) == len(calls):
            ANSWERS.extend((str(message.name), str(message.content)) for message in answers)
            message = AIMessage("<promise>ALL_DONE_AND_FUNCTIONAL</promise>")
        else:
            name, arguments = calls[len(answers)]
            message = AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{len(answers)}"}])
        return ChatResult(generations=[ChatGeneration(message=message)])


def _conversation(client: Any) -> Any:
    session = client.create_sandbox_session()
    return SimpleNamespace(conversation_id="conversation", sandbox_session_id=session.session_id)


def main(notebook: str) -> None:
    for name, attributes in {
        "dotenv": {"load_dotenv": lambda: None},
        "langchain_ollama": {"ChatOllama": Scripted},
        "langchain_openai": {"ChatOpenAI": Scripted},
    }.items():
        vars(sys.modules.setdefault(name, ModuleType(name))).update(attributes)
    astraforge_toolkit.DeepAgentClient.create_conversation = _conversation
    namespace: dict[str, Any] = {}
    with open(notebook, encoding="utf-8") as file:
        cells = [cell["source"] for cell in json.load(file)["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        code = "".join(line for line in cell if not line.startswith("%"))
        exec(compile(code, notebook, "exec"), namespace)  # upstream's program is what this runs
    print(json.dumps(ANSWERS))


if __name__ == "__main__":
    main(*sys.argv[1:])
