"""LiteLLM, as an OpenAI-compatible server and as a hosted vLLM."""
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from client_cases import *

litellm.telemetry = False
litellm.suppress_debug_info = True


def checks(provider):
    def create(**options):
        options = {"api_key": KEY, "model": MODEL, "max_retries": 0, "num_retries": 0, "timeout": 60} | options
        options["model"] = f"{provider}/{options['model']}"
        return litellm.completion(api_base=BASE_URL, **options)

    whole = create(messages=SUM)
    text = whole.choices[0].message.content
    assert text.strip() == "4" and whole.choices[0].finish_reason == "stop"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0
    chunks = list(create(messages=SUM, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    built = litellm.stream_chunk_builder(chunks)
    assert built.choices[0].message.content == text and built.usage.prompt_tokens == whole.usage.prompt_tokens

    thinking = create(messages=SUM, max_tokens=200, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert thinking.choices[0].message.reasoning_content and thinking.choices[0].message.content.strip() == "4"

    for choice in ("auto", "required", NAMED):
        options = {"messages": WEATHER, "tools": TOOLS, "tool_choice": choice, "max_tokens": 64}
        call, = create(**options).choices[0].message.tool_calls
        check_call(call.function.name, call.function.arguments)
        built = litellm.stream_chunk_builder(list(create(stream=True, **options)))
        call, = built.choices[0].message.tool_calls
        check_call(call.function.name, call.function.arguments)

    check_place(create(messages=CAPITAL, response_format=RESPONSE_FORMAT, max_tokens=100).choices[0].message.content)
    lines = create(messages=CAPITAL, logprobs=True, top_logprobs=2, max_tokens=8).choices[0].logprobs.content
    assert len(lines) == 8 and all(len(line.top_logprobs) == 2 and line.logprob <= 0 for line in lines)
    pair = create(messages=SUM, n=2, temperature=1, seed=3, max_tokens=8)
    assert [choice.index for choice in pair.choices] == [0, 1]

    refused(litellm.BadRequestError, lambda: create(messages=SUM, temperature=9))
    refused(litellm.ContextWindowExceededError, lambda: create(messages=TOO_LONG))
    refused(litellm.ContextWindowExceededError, lambda: create(messages=TOO_LONG, stream=True))
    refused(litellm.AuthenticationError, lambda: create(messages=SUM, api_key="wrong"))
    refused(litellm.NotFoundError, lambda: create(messages=SUM, model="no-such-model"))
    refused_when_full(litellm.RateLimitError, litellm.ServiceUnavailableError, lambda: create(messages=SUM))


checks("openai")
checks("hosted_vllm")
