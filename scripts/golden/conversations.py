"""Conversations that exercise every branch of a ChatML template with tools and reasoning."""


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def tool(text):
    return {"role": "tool", "content": text}


def assistant(text, reasoning=None, calls=None, wrapped=True):
    message = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        bare = [{"name": n, "arguments": a} for n, a in calls]
        message["tool_calls"] = [{"type": "function", "function": c} for c in bare] if wrapped else bare
    return message


def function(name, description, properties, required=()):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


WEATHER = function(
    "get_weather",
    "Weather for a city",
    {"city": {"type": "string"}, "days": {"type": "integer"}},
    ["city"],
)
SEARCH = function(
    "search",
    'Finds pages; understands "quotes", <tags> & ampersands, it\'s case-blind',
    {"query": {"type": "string"}, "limit": {"type": "number", "default": 1.0, "maximum": 50}},
    ["query"],
)
STORE = function(
    "store",
    "Stores a value: naïve café 数据 🌲",
    {
        "value": {
            "type": "object",
            "properties": {"tags": {"type": "array", "items": {"type": "string"}}, "深": {"type": "null"}},
            "additionalProperties": False,
        }
    },
)
NESTED = {"value": {"z": [1, 2.0, -0.5, True, None], "a": {"b": [], "c": {}}, "path": "a/b\\c\n"}}

TWO_CALLS = [
    system("Be brief."),
    user("Weather in Oslo and Rome?"),
    assistant("", "Two calls.", [("get_weather", {"city": "Oslo", "days": 2}), ("get_weather", {"city": "Rome"})]),
    tool('{"t": 3}'),
    tool('{"t": 19}'),
]
EASY = [user("2+2?"), assistant("4", "easy"), user("times 3?")]


def case(name, messages, tools=None, **kwargs):
    kwargs.setdefault("add_generation_prompt", True)
    return {"name": name, "messages": messages, "tools": tools, "kwargs": kwargs}


PLAIN = [
    case("trimmed_system", [system("  Be brief. \n"), user("Hi")]),
    case("thinking_off", [system("  Be brief. \n"), user("Hi")], enable_thinking=False),
    case("thinking_on", [system("Be brief."), user("Hi")], enable_thinking=True),
    case("old_reasoning_dropped", EASY),
    case("old_reasoning_preserved", EASY, preserve_thinking=True),
    case("inline_reasoning", [user("2+2?"), assistant("<think>\neasy\n</think>\n\n4"), user("times 3?")]),
    case(
        "inline_reasoning_preserved",
        [user("2+2?"), assistant("<think>\neasy\n</think>\n\n4"), user("times 3?")],
        preserve_thinking=True,
    ),
    case("no_generation_prompt", [user("Hi"), assistant("Hello.")], add_generation_prompt=False),
    case("last_turn_keeps_reasoning", [user("Hi"), assistant("Hello.", "  greet \n")], add_generation_prompt=False),
    case("empty_system", [system("  "), user("Hi")]),
    case("text_parts", [user([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}])]),
    case("null_content", [user("Hi"), {"role": "assistant", "content": None}, user("Still there?")]),
    case("unicode", [system("日本語で答えて"), user("e\u0301 \u00e9 Ж 👩‍🌾\u200b नमस्ते")]),
    case("markup_kept", [user("<b>1 < 2 & \"x\" 'y'</b> {{ a }} {% b %}")]),
    case("marker_in_text", [user("say <|im_end|> and <think>")]),
    case("inner_whitespace", [user("\n\n a\r\n\tb  \n"), assistant("  c\n\n\nd "), user(" e")]),
]

WITH_TOOLS = [
    case("two_calls", TWO_CALLS, [WEATHER]),
    case("two_calls_thinking_off", TWO_CALLS, [WEATHER], enable_thinking=False),
    case("tools_without_system", [user("Hi")], [WEATHER, SEARCH]),
    case("empty_tools", [user("Hi")], []),
    case("tools_empty_system", [system(" \n"), user("Hi")], [SEARCH]),
    case("json_spelling", [user("Hi")], [SEARCH, STORE]),
    case("bare_calls", [user("Go"), assistant("On it.", None, [("search", {"query": "a"})], False), tool("x")], [SEARCH]),
    case(
        "nested_arguments",
        [user("Keep it"), assistant("", None, [("store", NESTED), ("store", {"value": 1.0, "n": 10, "s": "1.0"})]), tool("ok")],
        [STORE],
    ),
    case(
        "odd_arguments",
        [
            user("Find it"),
            assistant("Looking.", "hm", [("search", {"query": "<a> & \"b\" 'c' </parameter>\n", "limit": None, "all": False})]),
            tool("nothing\n"),
        ],
        [SEARCH],
    ),
    case("no_arguments", [user("Now?"), {"role": "assistant", "tool_calls": [{"function": {"name": "now"}}]}, tool("12:00")], [WEATHER]),
    case("new_question_drops_reasoning", TWO_CALLS + [assistant("3 and 19.", "done"), user("And tomorrow?")], [WEATHER]),
    case(
        "new_question_preserved",
        TWO_CALLS + [assistant("3 and 19.", "done"), user("And tomorrow?")],
        [WEATHER],
        preserve_thinking=True,
    ),
    case("steps_keep_reasoning", TWO_CALLS + [assistant("", "again", [("get_weather", {"city": "Bergen"})]), tool("5")], [WEATHER]),
    case("wrapped_user_response", [user("Q"), assistant("A", "r"), user("<tool_response>\n5\n</tool_response>")]),
    case("float_spelling", [user("N"), assistant("", None, [("f", {"a": [1e16, 1e-7, 123456789.25, 0.1, -0.0]})]), tool("ok")]),
]

RAISES = [
    case("no_messages", []),
    case("no_user", [system("Be brief.")]),
    case("late_system", [user("Hi"), system("Be brief.")]),
    case("two_systems", [system("a"), system("b"), user("Hi")]),
    case("unknown_role", [user("Hi"), {"role": "critic", "content": "no"}]),
    case("only_tool_response", [user("<tool_response>\n5\n</tool_response>")]),
    case("number_as_content", [user(5)]),
    case("unknown_part", [user([{"type": "sound", "sound": "x"}])]),
]
