"""The `llm` tool, from the command line and as a library, with a home of its own."""
import os
import pathlib
import subprocess
import tempfile

HOME = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = HOME.name

import llm
import openai
from client_cases import *

ENTRY = """
- model_id: {id}
  model_name: {name}
  api_base: {base}
  api_key_name: {key}
  supports_tools: true
  supports_schema: true
"""
entries = [("tiny", MODEL, "spinney"), ("unknown", "no-such-model", "spinney"), ("stranger", MODEL, "wrong")]
text = "".join(ENTRY.format(id=id, name=name, base=BASE_URL, key=key) for id, name, key in entries)
pathlib.Path(HOME.name, "extra-openai-models.yaml").write_text(text)
pathlib.Path(HOME.name, "keys.json").write_text(json.dumps({"spinney": KEY, "wrong": "wrong"}))


def run(*arguments, code=0):
    command = [pathlib.Path(sys.executable).with_name("llm"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == code, done
    return done.stderr if code else done.stdout


question = SUM[0]["content"]
assert run("prompt", "-m", "tiny", "--no-stream", question).strip() == "4"
assert run("prompt", "-m", "tiny", question).strip() == "4"
check_place(run("prompt", "-m", "tiny", "--schema", json.dumps(SCHEMA), "-o", "max_tokens", "100", CAPITAL[0]["content"]))
weather = "def get_weather(city: str) -> dict:\n    'Weather for a city'\n    return {'t': 3, 'sky': 'rainy'}\n"
told = run("prompt", "-m", "tiny", "--functions", weather, "--td", WEATHER[0]["content"])
assert told.strip() == "It is rainy in Oslo with 3 degrees.", told
assert "does not exist" in run("prompt", "-m", "unknown", question, code=1)


def get_weather(city: str) -> str:
    """Weather for a city"""
    return json.dumps({"t": 3, "sky": "rainy"})


def ask(name, text=question, **options):
    os.environ.pop("OPENAI_API_KEY", None)
    return llm.get_model(name).prompt(text, **options).text()


model = llm.get_model("tiny")
for stream in (False, True):
    answer = model.prompt(WEATHER[0]["content"], tools=[get_weather], stream=stream)
    call, = answer.tool_calls()
    check_call(call.name, call.arguments)
    check_place(model.prompt(CAPITAL[0]["content"], schema=SCHEMA, stream=stream, max_tokens=100).text())
    assert model.prompt(question, stream=stream).text().strip() == "4"
assert model.chain(WEATHER[0]["content"], tools=[get_weather]).text() == "It is rainy in Oslo with 3 degrees."
refused(openai.NotFoundError, lambda: ask("unknown"))
refused(openai.AuthenticationError, lambda: ask("stranger"))
refused(openai.BadRequestError, lambda: ask("tiny", TOO_LONG[0]["content"]))
