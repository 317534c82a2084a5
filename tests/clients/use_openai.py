"""The official OpenAI client."""
import typing
import warnings

import openai
import pydantic
from client_cases import *

# The client's models complain about what they did not expect with warnings.
warnings.simplefilter("error")
client = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0, timeout=60)
create = client.chat.completions.create


class Place(pydantic.BaseModel):
    kind: typing.Literal["city", "river"]
    count: int = pydantic.Field(ge=1, le=9)
    sure: bool


def same_as_its_dump(answer):
    """Every value has the type that the client's model declares."""
    type(answer).model_validate(answer.model_dump(warnings="error"), strict=True)
    return answer


def plain_and_stream():
    whole = same_as_its_dump(create(model=MODEL, messages=SUM))
    assert whole.choices[0].message.content.strip() == "4"
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=SUM)
    assert raw.headers["x-request-id"] and raw.parse()._request_id == raw.headers["x-request-id"]
    for n in (1, 2):
        texts, ends = [""] * n, [None] * n
        for chunk in create(model=MODEL, messages=SUM, n=n, stream=True, stream_options={"include_usage": True}):
            same_as_its_dump(chunk)
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                ends[choice.index] = choice.finish_reason
            usage = chunk.usage
        assert texts == [whole.choices[0].message.content] * n and ends == ["stop"] * n
        assert usage.completion_tokens == n * whole.usage.completion_tokens
        assert usage.prompt_tokens == whole.usage.prompt_tokens
    pair = same_as_its_dump(create(model=MODEL, messages=SUM, n=2, temperature=1, seed=3, max_tokens=8))
    assert [choice.index for choice in pair.choices] == [0, 1]


def tools():
    for choice in ("auto", "required", NAMED):
        whole = same_as_its_dump(create(model=MODEL, messages=WEATHER, tools=TOOLS, tool_choice=choice, max_tokens=64))
        call, = whole.choices[0].message.tool_calls
        check_call(call.function.name, call.function.arguments)
        assert whole.choices[0].finish_reason == "tool_calls" and whole.choices[0].message.content is None
        with client.chat.completions.stream(model=MODEL, messages=WEATHER, tools=TOOLS, tool_choice=choice, max_tokens=64) as stream:
            kinds = {event.type for event in stream}
            call, = stream.get_final_completion().choices[0].message.tool_calls
        assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
        check_call(call.function.name, call.function.arguments)
    none = create(model=MODEL, messages=WEATHER, tools=TOOLS, tool_choice="none", max_tokens=16)
    assert not none.choices[0].message.tool_calls
    timer = {"type": "function", "function": {"name": "set_timer"}}
    forced = create(model=MODEL, messages=[{"role": "user", "content": "Set a timer for 7 minutes."}], tools=TOOLS, tool_choice=timer, max_tokens=64)
    call, = forced.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("set_timer", {"minutes": 7})


def json_schema():
    for temperature in (0, 1):
        options = {"model": MODEL, "messages": CAPITAL, "temperature": temperature, "seed": 1, "max_tokens": 100}
        text = create(response_format=RESPONSE_FORMAT, **options).choices[0].message.content
        check_place(text)
        pieces = create(response_format=RESPONSE_FORMAT, stream=True, **options)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == text
        parsed = client.chat.completions.parse(response_format=Place, **options).choices[0].message.parsed
        assert isinstance(parsed, Place)
        with client.chat.completions.stream(response_format=Place, **options) as stream:
            for _ in stream:
                pass
            assert stream.get_final_completion().choices[0].message.parsed == parsed
    short = {"model": MODEL, "messages": CAPITAL, "max_tokens": 3}
    refused(openai.LengthFinishReasonError, lambda: client.chat.completions.parse(response_format=Place, **short))


def logprobs():
    options = {"model": MODEL, "messages": CAPITAL, "logprobs": True, "top_logprobs": 2, "max_tokens": 8, "temperature": 0}
    whole = same_as_its_dump(create(**options)).choices[0]
    lines = whole.logprobs.content
    assert "".join(line.token for line in lines) == whole.message.content
    assert all(line.logprob == line.top_logprobs[0].logprob <= 0 and len(line.top_logprobs) == 2 for line in lines)
    assert b"".join(bytes(line.bytes) for line in lines).decode() == whole.message.content
    chunks = create(stream=True, **options)
    streamed = [line for chunk in chunks for line in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])]
    assert streamed == lines


def errors():
    bad = [{"temperature": 9}, {"messages": []}, {"messages": TOO_LONG}, {"n": 99}, {"tools": [{"type": "strange"}]}]
    bad.append({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "strange"}}}})
    for wrong in bad:
        for stream in (False, True):
            body = {"model": MODEL, "messages": SUM, "stream": stream} | wrong
            error = refused(openai.BadRequestError, lambda: create(**body))
            assert error.status_code == 400 and error.type == "invalid_request_error" and error.code, error
            assert error.param.split(".")[0] == next(iter(wrong)) and error.request_id and error.body["message"]
    assert refused(openai.BadRequestError, lambda: create(model=MODEL, messages=TOO_LONG)).code == "context_length_exceeded"
    stranger = client.with_options(api_key="wrong")
    error = refused(openai.AuthenticationError, lambda: stranger.chat.completions.create(model=MODEL, messages=SUM))
    assert (error.status_code, error.code) == (401, "invalid_api_key")
    visitor = client.with_options(base_url=ROOT)
    error = refused(openai.PermissionDeniedError, lambda: visitor.post("/flush_cache", cast_to=object))
    assert (error.status_code, error.code, error.type) == (403, "insufficient_permissions", "permission_error")
    for call, code in [
        (lambda: create(model="no-such-model", messages=SUM), "model_not_found"),
        (lambda: client.models.retrieve("no-such-model"), "model_not_found"),
        (lambda: client.embeddings.create(model=MODEL, input="a"), "unknown_url"),
    ]:
        error = refused(openai.NotFoundError, call)
        assert (error.status_code, error.code) == (404, code)
    full, late = refused_when_full(openai.RateLimitError, openai.InternalServerError, lambda: create(model=MODEL, messages=SUM))
    assert (full.status_code, full.code, full.type) == (429, "queue_full", "rate_limit_error")
    assert (late.status_code, late.code, late.type) == (503, "queue_timeout", "server_error")
    for error in (full, late):
        assert 1 <= int(error.response.headers["retry-after"]) <= 60 and int(error.response.headers["retry-after-ms"]) > 0
    # The client tries again by itself and gets an answer once there is room.
    with full_slots():
        patient = client.with_options(max_retries=9)
        waiter = threading.Thread(target=lambda: answers.append(patient.chat.completions.create(model=MODEL, messages=SUM)))
        answers = []
        waiter.start()
        time.sleep(0.3)
    waiter.join()
    assert answers[0].choices[0].message.content.strip() == "4"


plain_and_stream()
tools()
json_schema()
logprobs()
errors()
