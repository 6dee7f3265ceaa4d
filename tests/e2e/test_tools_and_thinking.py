"""Tools and thinking through all processes: the fake engine says again what the last turn says."""

import csv
import json

from daemon_process import request_lines

ECHO = "fake:step_ms=0,echo=1"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time"}},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def saying(text, **fields):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 300, **fields}


def lines_of(*bodies):
    return "".join(request_lines(1, **body).replace('"r0"', f'"r{i}"') for i, body in enumerate(bodies))


def choices(daemon, stem):
    return [line["response"]["body"]["choices"][0] for line in daemon.lines(f"{stem}.output.jsonl")]


def test_calls_are_told_apart_and_the_same_file_gives_the_same_bytes(make_daemon):
    daemon = make_daemon(ECHO)
    history = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "time", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "It is noon."},
    ]
    file = lines_of(
        saying(f"I look.\n{CALL}\n{CALL}", tools=TOOLS),
        saying(CALL, tools=TOOLS, tool_choice="none"),
        saying(f"{CALL} <tool_call>broken", tools=TOOLS, n=2),
        saying(CALL[:-20], tools=TOOLS),
        saying(CALL + "and so on", tools=TOOLS, max_tokens=len(CALL) + 3),
        {"messages": history, "tools": TOOLS, "max_tokens": 50},
    )
    daemon.drop("a.jsonl", file)
    daemon.drop("b.jsonl", file)
    assert daemon.start("--once").process.wait(90) == 0
    both, none, broken, cut_call, cut, result = choices(daemon, "a")
    assert (both["finish_reason"], both["message"]["content"]) == ("tool_calls", "I look.\n")
    calls = both["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [{"name": "weather", "arguments": '{"city": "Rome"}'}] * 2
    assert len({call["id"] for call in calls}) == 2
    assert (none["finish_reason"], none["message"]["content"]) == ("stop", CALL)
    assert (broken["finish_reason"], broken["message"]["content"]) == ("tool_calls", " <tool_call>broken")
    assert (cut_call["finish_reason"], cut_call["message"]["content"]) == ("stop", CALL[:-20])
    assert "tool_calls" not in cut_call["message"]
    assert (cut["finish_reason"], cut["message"]["content"], len(cut["message"]["tool_calls"])) == ("length", "and", 1)
    assert result["message"]["content"] == "It is noon."
    assert (daemon.outbox / "a.output.jsonl").read_bytes() == (daemon.outbox / "b.output.jsonl").read_bytes()


def test_a_required_call_is_held_to_its_schema(make_daemon):
    """The fake engine's tokens are chance: it is the masks alone that make calls of them."""
    daemon = make_daemon()
    asked = {"tools": TOOLS, "max_tokens": 3000, "temperature": 1.0}
    for name, choice in (("any", "required"), ("time", {"type": "function", "function": {"name": "time"}})):
        daemon.drop(f"{name}.jsonl", request_lines(20, tool_choice=choice, parallel_tool_calls=False, **asked))
    wrong = [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"uniqueItems": True}}}}}
    ]
    daemon.drop("wrong.jsonl", request_lines(1, tool_choice="required", tools=wrong))
    daemon.drop("both.jsonl", request_lines(1, tools=TOOLS, guided_regex="a"))
    assert daemon.start("--once").process.wait(90) == 3
    for stem, names in (("any", {"weather", "time"}), ("time", {"time"})):
        found = choices(daemon, stem)
        assert {choice["finish_reason"] for choice in found} == {"tool_calls"}
        assert {choice["message"]["content"] for choice in found} == {None}
        functions = [call["function"] for choice in found for call in choice["message"]["tool_calls"]]
        assert len(functions) == 20
        assert {function["name"] for function in functions} == names
        for function in functions:
            arguments = json.loads(function["arguments"])
            assert arguments == {} if function["name"] == "time" else arguments["city"] in ("Rome", "Oslo")
    errors = [daemon.lines(f"{stem}.errors.jsonl")[0]["response"]["body"]["error"] for stem in ("wrong", "both")]
    assert [(error["code"], error["param"]) for error in errors] == [
        ("invalid_grammar", "tools[0].function.parameters"),
        ("unsupported_parameter", "tools"),
    ]


def test_thinking_goes_apart_where_the_pipeline_asks(make_daemon):
    """Not into tables and texts at all; an answer that was cut in its thought is empty."""
    thought = "<think>\nHm.\n</think>\n\n"
    daemon = make_daemon(ECHO, pipeline=", reasoning: split, template: '{{ a }}'")
    daemon.drop("chat.jsonl", lines_of(saying(thought + "Yes"), saying(thought + "Yes", max_tokens=10), saying("Yes")))
    daemon.drop("text.txt", "<think></think>b")
    daemon.drop("table.csv", "a\n<think></think>b\n")
    assert daemon.start("--once").process.wait(90) == 0
    found = [
        (choice["message"].get("reasoning_content"), choice["message"]["content"]) for choice in choices(daemon, "chat")
    ]
    assert found == [("Hm.", "Yes"), ("Hm", ""), (None, "Yes")]
    assert (daemon.outbox / "text.output.txt").read_text() == "b\n"
    with (daemon.outbox / "table.output.csv").open(newline="") as file:
        assert [row["output"] for row in csv.DictReader(file)] == ["b"]
