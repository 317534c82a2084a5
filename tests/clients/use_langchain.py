"""LangChain's ChatOpenAI."""
import os

os.environ["LANGSMITH_TRACING"] = "false"

import typing

import openai
import pydantic
from client_cases import *
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


class Place(pydantic.BaseModel):
    """A place."""

    kind: typing.Literal["city", "river"]
    count: int = pydantic.Field(ge=1, le=9)
    sure: bool


@tool
def get_weather(city: str) -> str:
    """Weather for a city"""
    return json.dumps({"t": 3, "sky": "rainy"})


def model(**options):
    return ChatOpenAI(**{"base_url": BASE_URL, "api_key": KEY, "model": MODEL, "max_retries": 0, "timeout": 60, "stream_usage": True} | options)


def text_of(messages):
    return messages[0]["content"]


plain = model()
whole = plain.invoke(text_of(SUM))
assert whole.content.strip() == "4" and whole.response_metadata["finish_reason"] == "stop"
assert whole.usage_metadata["total_tokens"] > 0
total = None
for piece in plain.stream(text_of(SUM)):
    total = piece if total is None else total + piece
assert total.content == whole.content and total.usage_metadata == whole.usage_metadata

for choice in ("auto", "required", "any", "get_weather"):
    bound = model(max_tokens=64).bind_tools([get_weather], tool_choice=choice)
    answer = bound.invoke(text_of(WEATHER))
    call, = answer.tool_calls
    check_call(call["name"], call["args"])
    total = None
    for piece in bound.stream(text_of(WEATHER)):
        total = piece if total is None else total + piece
    call, = total.tool_calls
    check_call(call["name"], call["args"])
talk = [HumanMessage(text_of(WEATHER)), answer, ToolMessage(get_weather.invoke(answer.tool_calls[0]["args"]), tool_call_id=answer.tool_calls[0]["id"])]
said = model().bind_tools([get_weather]).invoke(talk)
assert said.content == "It is rainy in Oslo with 3 degrees." and not said.tool_calls, said

place = model(max_tokens=100).with_structured_output(Place, method="json_schema").invoke(text_of(CAPITAL))
assert isinstance(place, Place)
check_place(model(max_tokens=100).with_structured_output(SCHEMA | {"title": "place"}, method="json_schema", strict=True).invoke(text_of(CAPITAL)))
pieces = list(model(max_tokens=100).with_structured_output(Place, method="json_schema").stream(text_of(CAPITAL)))
assert pieces[-1] == place
forced = WEATHER_SCHEMA | {"title": "get_weather", "description": "Weather for a city"}
weather = model(max_tokens=64).with_structured_output(forced, method="function_calling").invoke(text_of(WEATHER))
assert weather == {"city": "Oslo"}

lines = model(max_tokens=8, logprobs=True, top_logprobs=2).invoke(text_of(CAPITAL)).response_metadata["logprobs"]["content"]
assert len(lines) == 8 and all(len(line["top_logprobs"]) == 2 for line in lines)
pair = model(n=2, temperature=1, max_tokens=8).generate([[HumanMessage(text_of(SUM))]])
assert len(pair.generations[0]) == 2

refused(openai.BadRequestError, lambda: model(temperature=9).invoke("a"))
for call in (lambda: plain.invoke(text_of(TOO_LONG)), lambda: list(plain.stream(text_of(TOO_LONG)))):
    assert refused(openai.BadRequestError, call).code == "context_length_exceeded"
refused(openai.AuthenticationError, lambda: model(api_key="wrong").invoke("a"))
refused(openai.NotFoundError, lambda: model(model="no-such-model").invoke("a"))
refused_when_full(openai.RateLimitError, openai.InternalServerError, lambda: plain.invoke(text_of(SUM)))
