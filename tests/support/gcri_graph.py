"""GCRI's graph over two iterations, whose models are a script of tool calls.   PROJECT PROVIDER IMAGE TEMPLATE

The template is that of refinements, which the repository does not have.

It prints what the tools answered, and the result, as JSON.
"""

import json
import re
import sys
import threading
from typing import Any

import gcri.config
import gcri.tools.cli
import gcri.tools.utils
from gcri.config import scope
from gcri.graphs.callbacks import AutoCallbacks
from gcri.graphs.gcri_unit import GCRI
from langchain_core.messages import AIMessage, ToolMessage
from loguru import logger

from sandkeep.compat.gcri import get_sandbox

PROJECT, PROVIDER, IMAGE, TEMPLATE = sys.argv[1:5]
BRANCHES = 3

Calls = list[tuple[str, dict[str, Any]]]

_LOCK = threading.Lock()
ANSWERS: dict[str, list[tuple[str, str]]] = {}


class Script:
    """Calls of tools, and results, by the schema that a model is to give, the iteration, and the branch."""

    def __init__(self) -> None:
        self.iteration = -1
        self.verified: set[str] = set()

    def calls(self, schema: str, prompt: str) -> Calls:
        branch = int(found[1]) if (found := re.search(r"strategy-(\d)", prompt)) else -1
        match schema:
            case "Strategies":
                self.iteration += 1
                about = {"description": "", "feedback_reflection": "", "hints": []}
                named = [{"name": f"strategy-{number}", **about} for number in range(BRANCHES)]
                return [("Strategies", {"strictness": "strict", "intent_analysis": "files", "strategies": named})]
            case "Hypothesis":
                return [*self.work(branch), ("Hypothesis", {"hypothesis": f"hypothesis {branch}"})]
            case "Verification":
                with _LOCK:
                    again = f"{self.iteration} {branch}" in self.verified
                    self.verified.add(f"{self.iteration} {branch}")
                strength = "none" if again or self.iteration else "weak"
                verdict = {"counter_example": "", "counter_strength": strength, "reasoning": ""}
                return [("execute_shell_command", {"command": "cat lines shared"}), ("Verification", verdict)]
            case "Refinement":
                path, content = f"refined-{branch}", f"refined {branch}"
                refined = {"refined_hypothesis": f"refined {branch}", "adjustment_log": "", "reasoning": ""}
                return [("write_file", {"file_path": path, "content": content}), ("Refinement", refined)]
            case "AggregationResult":
                sources: list[list[int]] = [[0, 1], [2]] if self.iteration == 0 else [[0]]
                branches = [
                    {"index": index, "combined_hypothesis": "", "source_indices": each, "merge_reasoning": ""}
                    for index, each in enumerate(sources)
                ]
                discarded = [] if self.iteration == 0 else [1, 2]
                return [
                    ("AggregationResult", {
                        "branches": branches, "discarded_indices": discarded, "aggregation_summary": ""
                    })
                ]  # fmt: skip
            case "Decision":
                return [*self.looks(), ("Decision", self.decision())]
            case "ActiveConstraints":
                return [("ActiveConstraints", {"new_active_constraints": ["keep the lines"]})]
            case "SandboxCurationResult":
                return [("SandboxCurationResult", {"selected_branch_indices": [0, 1], "merge_reasoning": "both"})]
            case _:  # the model that merges files, which gives no result
                return [("write_file", {"file_path": "shared", "content": "of both"})]

    def work(self, branch: int) -> Calls:
        """Each tool, by paths in the project and in the workspace."""
        if self.iteration == 1:
            return [
                ("execute_shell_command", {"command": "cat shared; ls"}),
                ("write_file", {"file_path": f"{PROJECT}/final", "content": f"final {branch}"}),
            ]
        return [
            ("list_directory", {"path": PROJECT}),
            ("read_file", {"file_path": f"{PROJECT}/lines"}),
            ("read_file", {"file_path": "no such"}),
            ("write_file", {"file_path": f"{PROJECT}/made/by-{branch}.py", "content": f"print({branch})"}),
            ("write_file", {"file_path": "shared", "content": f"of {branch}"}),
            ("execute_shell_command", {"command": f"sed -i 's/^{branch}$/line {branch}/' {PROJECT}/lines"}),
            ("execute_shell_command", {"command": "exit 3"}),
            ("search_files", {"pattern": "*.py", "path": PROJECT}),
            ("search_files", {"pattern": "*.none"}),
            ("grep_in_files", {"pattern": "^of", "include": "shared"}),
            ("local_python_interpreter", {"code": "import os\nprint(sorted(os.listdir()))\nraise SystemExit(5)"}),
            ("local_python_interpreter", {"code": "print('it\\'s')\nopen('by-python', 'w').write('yes')"}),
        ]

    def looks(self) -> Calls:
        branches = range(BRANCHES if self.iteration == 0 else 1)
        return [
            *(("read_branch_file", {"branch_index": branch, "file_path": "shared"}) for branch in branches),
            ("list_branch_files", {"branch_index": 0, "directory": "made"}),
            ("run_branch_command", {"branch_index": 0, "command": "cat lines"}),
            ("read_branch_file", {"branch_index": 9, "file_path": "shared"}),
        ]

    def decision(self) -> dict[str, Any]:
        about = {"summary_hypothesis": "", "summary_counter_example": "", "reasoning": "", "branch_index": 0}
        accepted = self.iteration == 1
        return {
            "decision": accepted, "best_branch_index": 0 if accepted else -1, "final_output": "done",
            "global_feedback": "go on", "branch_evaluations": [{**about, "status": "valid" if accepted else "partial"}],
        }  # fmt: skip


SCRIPT = Script()


class Scripted:
    """A model that is bound to tools, of which the last may be the schema of its result."""

    def __init__(self, *_: Any, schema: str = "", **__: Any) -> None:
        self._schema = schema
        self._calls: Calls = []

    def bind_tools(self, tools: list[Any], **_: Any) -> "Scripted":
        return Scripted(schema=tools[-1].__name__ if isinstance(tools[-1], type) else "")

    def invoke(self, messages: Any, **_: Any) -> AIMessage:
        prompt = messages if isinstance(messages, str) else str(messages[0].content)
        answers = [] if isinstance(messages, str) else [each for each in messages if isinstance(each, ToolMessage)]
        if not answers:
            self._calls = SCRIPT.calls(self._schema, prompt)
        else:
            branch = found[1] if (found := re.search(r"strategy-(\d)", prompt)) else ""
            with _LOCK:
                key = f"{SCRIPT.iteration} {self._schema} {branch}".strip()
                ANSWERS.setdefault(key, []).append((str(answers[-1].name), str(answers[-1].content)))
        name, arguments = self._calls[len(answers)]
        return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{len(answers)}"}])


@scope
def main(config: Any) -> None:
    config.project_dir = PROJECT
    config.run_dir = f"{PROJECT}/.gcri"
    config.sandbox.image = IMAGE
    config.sandbox.network_mode = "none"
    config.sandbox.enabled = PROVIDER == "docker"
    config.agents.branches = [config.agents.branches[0]] * BRANCHES
    result = GCRI(config, callbacks=AutoCallbacks())("Make the files.", commit_mode="auto-accept")
    summary = {name: result[name] for name in ("decision", "final_output", "best_branch_index")}
    print(json.dumps({"answers": ANSWERS, "result": summary, "base": result["memory"]["base_sandbox_summary"]}))


if __name__ == "__main__":
    del sys.argv[1:]
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    gcri.tools.cli.init_chat_model = Scripted
    known = gcri.config.get_template_path
    gcri.config.get_template_path = lambda name, version: TEMPLATE if name == "refinement.txt" else known(name, version)
    gcri.tools.cli.get_sandbox = gcri.tools.utils.get_sandbox = get_sandbox
    main()
