"""Drives a running server with the OpenAI client: BASE_URL MODEL. Ends with 0 if everything is as the client expects."""
import asyncio
import json
import sys

import openai

base_url, model = sys.argv[1:3]
client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60)
QUESTION = [{"role": "user", "content": "What is 2+2? Answer with just the number."}]


def chat():
    answer = client.chat.completions.create(model=model, messages=QUESTION)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content.strip() == "4", choice
    assert choice.finish_reason == "stop" and answer.object == "chat.completion"
    usage = answer.usage
    assert usage.prompt_tokens > 0 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return choice.message.content


def chat_stream(whole):
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    text, roles, finishes, usages = "", [], [], []
    for chunk in stream:
        assert chunk.object == "chat.completion.chunk" and chunk.model == model
        if chunk.usage:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            text += choice.delta.content or ""
            roles += [choice.delta.role] if choice.delta.role else []
            finishes += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole and roles == ["assistant"] and finishes == ["stop"] and len(usages) == 1


def options():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Explain the quicksort algorithm in 3 sentences."}]
    answer = client.chat.completions.create(
        model=model, messages=messages, n=2, temperature=0.9, top_p=0.95, seed=7, max_tokens=12,
        presence_penalty=0.1, frequency_penalty=0.1, logprobs=True, top_logprobs=3, logit_bias={"5": -100},
        extra_body={"top_k": 40, "min_p": 0.01, "chat_template_kwargs": {"enable_thinking": False}},
    )
    assert [c.index for c in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.finish_reason in ("length", "stop")
        content = choice.logprobs.content
        assert 0 < len(content) <= 12
        assert all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in content)
        assert "".join(t.token for t in content).startswith(choice.message.content[:4])


def stop_string(whole):
    answer = client.chat.completions.create(model=model, messages=QUESTION, stop=[whole.strip()])
    assert answer.choices[0].finish_reason == "stop" and whole.strip() not in answer.choices[0].message.content


def tools():
    weather = {"type": "function", "function": {"name": "get_weather", "description": "Weather for a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
    messages = [{"role": "user", "content": "Weather in Oslo and Rome?"}]
    answer = client.chat.completions.create(model=model, messages=messages, tools=[weather])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
    calls = choice.message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Oslo"}, {"city": "Rome"}]
    with client.chat.completions.stream(model=model, messages=messages, tools=[weather]) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert [(c.type, c.function.name, c.function.arguments) for c in streamed.message.tool_calls] == [
        (c.type, c.function.name, c.function.arguments) for c in calls
    ]
    messages.append(choice.message)
    messages += [{"role": "tool", "tool_call_id": c.id, "content": json.dumps({"sky": sky})} for c, sky in zip(calls, ["sunny", "rainy"])]
    answer = client.chat.completions.create(model=model, messages=messages, tools=[weather])
    assert answer.choices[0].message.content == "It is sunny in Oslo and rainy in Rome.", answer
    assert answer.choices[0].message.tool_calls is None


def completions():
    answer = client.completions.create(model=model, prompt="The sum of", max_tokens=6, logprobs=2, echo=True, temperature=0)
    choice = answer.choices[0]
    assert choice.text.startswith("The sum of") and choice.logprobs.token_logprobs[0] is None
    assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert "".join(choice.logprobs.tokens) == choice.text
    pieces = client.completions.create(model=model, prompt="The sum of", max_tokens=6, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in pieces if c.choices) == choice.text[len("The sum of"):]
    both = client.completions.create(model=model, prompt=["One", "Two"], max_tokens=3)
    assert [c.index for c in both.choices] == [0, 1]


def errors():
    for call, kind, status in [
        (lambda: client.chat.completions.create(model=model, messages=[]), openai.BadRequestError, 400),
        (lambda: client.chat.completions.create(model=model, messages=QUESTION, temperature=9), openai.BadRequestError, 400),
        (lambda: client.completions.create(model=model, prompt="x " * 30000), openai.BadRequestError, 400),
        (lambda: client.models.retrieve("no-such-model"), openai.NotFoundError, 404),
    ]:
        try:
            call()
        except kind as error:
            assert error.status_code == status and error.body["message"], error
        else:
            raise AssertionError(f"expected {kind}")


def responses():
    answer = client.responses.create(model=model, input=QUESTION)
    assert answer.status == "completed" and answer.output_text.strip() == "4", answer
    with client.responses.stream(model=model, input=QUESTION) as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    assert final.output_text == answer.output_text and final.usage == answer.usage
    weather = {"type": "function", "name": "get_weather", "description": "Weather for a city", "strict": False,
               "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
    question = [{"role": "user", "content": "What is the weather in Oslo?"}]
    first = client.responses.create(model=model, input=question, tools=[weather])
    call = first.output[0]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Oslo"}, first
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"t": 3, "sky": "rainy"}'}
    second = client.responses.create(model=model, input=question + first.output + [result], tools=[weather])
    assert second.output_text, second
    try:
        client.responses.retrieve("resp_1")
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("a response that was not kept was found")


async def together(whole):
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as many:
        calls = [many.chat.completions.create(model=model, messages=QUESTION) for _ in range(8)]
        assert all(a.choices[0].message.content == whole for a in await asyncio.gather(*calls))


assert model in [m.id for m in client.models.list()]
answer = chat()
chat_stream(answer)
options()
stop_string(answer)
tools()
completions()
responses()
errors()
asyncio.run(together(answer))
print(f"openai {openai.__version__}: everything as expected")
