"""Instructor, in its modes for JSON schemas, plain JSON and tools."""
import typing

import instructor
import openai
import pydantic
from client_cases import *
from instructor.core import InstructorRetryException


class Place(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    kind: typing.Literal["city", "river"]
    count: int = pydantic.Field(ge=1, le=9)
    sure: bool


class get_weather(pydantic.BaseModel):
    """Weather for a city"""

    city: str


def client(mode, **options):
    options = {"base_url": BASE_URL, "api_key": KEY, "max_retries": 0, "timeout": 60} | options
    return instructor.from_openai(openai.OpenAI(**options), mode=mode)


def create(mode, response_model, messages, **options):
    options = {"model": MODEL, "max_tokens": 120, "max_retries": 0} | options
    return client(mode).chat.completions.create(response_model=response_model, messages=messages, **options)


schema = instructor.Mode.JSON_SCHEMA
place = create(schema, Place, CAPITAL)
assert isinstance(place, Place)
place, answer = client(schema).chat.completions.create_with_completion(
    model=MODEL, response_model=Place, messages=CAPITAL, max_tokens=120, max_retries=0, logprobs=True, top_logprobs=2
)
assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.content)
partial = list(client(schema).chat.completions.create_partial(model=MODEL, response_model=Place, messages=CAPITAL, max_tokens=120, max_retries=0))
assert partial[-1].model_dump() == place.model_dump()
plain = create(schema, None, SUM)
assert plain.choices[0].message.content.strip() == "4"

weather = create(instructor.Mode.TOOLS, get_weather, WEATHER)
assert weather.city == "Oslo", weather


def cause(call):
    try:
        answer = call()
    except InstructorRetryException as error:
        inner = error
        while inner is not None and not isinstance(inner, openai.APIStatusError):
            inner = inner.__cause__ or inner.__context__
        raise inner from None
    except openai.APIStatusError:
        raise
    return answer


refused(openai.BadRequestError, lambda: cause(lambda: create(schema, Place, CAPITAL, temperature=9)))
refused(openai.NotFoundError, lambda: cause(lambda: create(schema, Place, CAPITAL, model="no-such-model")))
stranger = client(schema, api_key="wrong").chat.completions
refused(openai.AuthenticationError, lambda: cause(lambda: stranger.create(model=MODEL, response_model=Place, messages=CAPITAL, max_retries=0)))
refused_when_full(openai.RateLimitError, openai.InternalServerError, lambda: cause(lambda: create(schema, Place, CAPITAL)))
