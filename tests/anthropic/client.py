"""Drives a running server with the Anthropic client: BASE_URL MODEL. Ends with 0 if everything is as the client expects."""
import sys

import anthropic

base_url, model = sys.argv[1:3]
client = anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0, timeout=60)
QUESTION = [{"role": "user", "content": "What is 2+2? Answer with just the number."}]
WEATHER = {
    "name": "get_weather",
    "description": "Weather for a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def whole():
    answer = client.messages.create(model=model, max_tokens=50, messages=QUESTION)
    assert answer.role == "assistant" and answer.stop_reason == "end_turn", answer
    assert answer.content[0].type == "text" and answer.content[0].text.strip() == "4", answer
    count = client.messages.count_tokens(model=model, messages=QUESTION)
    assert count.input_tokens == answer.usage.input_tokens
    return answer


def stream(answer):
    with client.messages.stream(model=model, max_tokens=50, messages=QUESTION) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text == answer.content[0].text and final.usage.input_tokens == answer.usage.input_tokens
    assert final.stop_reason == "end_turn"


def tools():
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    ask = dict(model=model, max_tokens=100, tools=[WEATHER], thinking={"type": "enabled", "budget_tokens": 1024})
    with client.messages.stream(messages=messages, **ask) as events:
        answer = events.get_final_message()
    assert [block.type for block in answer.content] == ["thinking", "tool_use"], answer
    call = answer.content[1]
    assert answer.stop_reason == "tool_use" and call.input == {"city": "Oslo"}, answer
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"t": 3, "sky": "rainy"}'}
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(messages=messages, **ask)
    assert answer.stop_reason == "end_turn" and answer.content[-1].text, answer


def errors():
    try:
        client.messages.create(model="unknown", max_tokens=5, messages=QUESTION)
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error" and error.request_id, error
    else:
        raise AssertionError("a model that does not exist answered")


answer = whole()
stream(answer)
tools()
errors()
