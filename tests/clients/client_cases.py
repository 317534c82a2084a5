"""What every client asks, and what the server should say: BASE_URL KEY MODEL of a server with two slots, one place in
its queue and a short limit on the time there."""
import contextlib
import json
import re
import sys
import threading
import time
import urllib.request

BASE_URL, KEY, MODEL = sys.argv[1:4]
ROOT = BASE_URL.removesuffix("/v1")

SUM = [{"role": "user", "content": "What is 2+2? Answer with just the number."}]
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
TOO_LONG = [{"role": "user", "content": "x " * 30_000}]
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["city", "river"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "sure": {"type": "boolean"},
    },
    "required": ["kind", "count", "sure"],
    "additionalProperties": False,
}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}}
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TIMER_SCHEMA = {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather for a city", "parameters": WEATHER_SCHEMA}},
    {"type": "function", "function": {"name": "set_timer", "description": "Starts a timer", "parameters": TIMER_SCHEMA}},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def check_place(place):
    """Of a text or an object that `SCHEMA` allows."""
    place = json.loads(place) if isinstance(place, str) else place
    assert list(place) == ["kind", "count", "sure"], place
    assert place["kind"] in ("city", "river") and 1 <= place["count"] <= 9 and isinstance(place["sure"], bool), place


def check_call(name, arguments):
    """Of the one call that `WEATHER` is answered with."""
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert (name, arguments) == ("get_weather", {"city": "Oslo"}), (name, arguments)


def refused(kind, call):
    """The exception of this kind that a call ends with."""
    try:
        answer = call()
    except Exception as error:
        assert isinstance(error, kind), f"expected {kind}, found {type(error)}: {error}"
        return error
    raise AssertionError(f"expected {kind}, found {answer}")


def waiting():
    """Requests in the queue."""
    with urllib.request.urlopen(f"{ROOT}/metrics", timeout=60) as reply:
        text = reply.read().decode()
    return float(re.search(r"^vllm:num_requests_waiting\{.*\} (\S+)$", text, re.MULTILINE).group(1))


@contextlib.contextmanager
def full_slots():
    """Keeps both slots for as long as the block runs."""
    body = {"model": MODEL, "messages": SUM, "stream": True, "ignore_eos": True, "max_tokens": 4_000}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{BASE_URL}/chat/completions", json.dumps(body).encode(), headers)
    with contextlib.ExitStack() as streams:
        for _ in range(2):
            stream = streams.enter_context(urllib.request.urlopen(request, timeout=60))
            assert stream.readline().startswith(b"data: ")
        yield


def refused_when_full(full, late, call):
    """`call` gets `full` beside another one that waits in the queue, and `late` when it is the one that waits for too
    long. Returns both exceptions."""
    found = []

    def wait():
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    with full_slots():
        waiter = threading.Thread(target=wait)
        waiter.start()
        end = time.monotonic() + 10
        while waiting() < 1:
            assert time.monotonic() < end and waiter.is_alive(), found
            time.sleep(0.01)
        error = refused(full, call)
        waiter.join()
    assert isinstance(found[0], late), f"expected {late}, found {found}"
    return error, found[0]
