"""Conversations with tools: which function to call, and what to say once the result is there."""
import json
import random

CITIES = ["Oslo", "Rome", "Paris", "Berlin", "Tokyo", "Lima", "Cairo", "Vienna", "Madrid", "Dublin"]
SKIES = ["sunny", "cloudy", "rainy", "windy", "snowy"]
QUERIES = ["rust tutorials", "train times", "pizza recipes", "chess openings", "jazz concerts", "hiking maps"]


def function(name, description, properties, required):
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def text(description=None):
    return {"type": "string"} | ({"description": description} if description else {})


TOOLS = {
    "get_weather": function("get_weather", "Weather for a city", {"city": text(), "days": {"type": "integer"}}, ["city"]),
    "get_time": function("get_time", "Current time in a city", {"city": text()}, ["city"]),
    "calculate": function("calculate", "Evaluates a sum", {"expression": text()}, ["expression"]),
    "search": function("search", "Searches the web", {"query": text(), "limit": {"type": "integer"}}, ["query"]),
    "set_timer": function("set_timer", "Starts a timer", {"minutes": {"type": "integer"}}, ["minutes"]),
}


def weather(rng):
    city, days = rng.choice(CITIES), rng.randint(1, 7)
    sky, t = rng.choice(SKIES), rng.randint(-5, 30)
    result = json.dumps({"t": t, "sky": sky})
    answer = f"It is {sky} in {city} with {t} degrees."
    if rng.random() < 0.4:
        return (rng.choice(["What will the weather be in {c} for {d} days?", "Weather in {c} for the next {d} days?"])
                .format(c=city, d=days), [{"city": city, "days": days}], result, answer)
    ask = rng.choice(["What is the weather in {c}?", "Weather in {c}?", "How is the weather in {c} today?",
                      "What's the weather like in {c}?"])
    return ask.format(c=city), [{"city": city}], result, answer


def two_weathers(rng):
    a, b = rng.sample(CITIES, 2)
    s, t = rng.choice(SKIES), rng.choice(SKIES)
    return (rng.choice(["Weather in {a} and {b}?", "What is the weather in {a} and {b}?"]).format(a=a, b=b),
            [{"city": a}, {"city": b}], [json.dumps({"sky": s}), json.dumps({"sky": t})],
            f"It is {s} in {a} and {t} in {b}.")


def clock(rng):
    city, now = rng.choice(CITIES), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    ask = rng.choice(["What time is it in {c}?", "Tell me the time in {c}.", "Time in {c}?"])
    return ask.format(c=city), [{"city": city}], now, f"It is {now} in {city}."


def calculation(rng):
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    expression = f"{a} * {b}"
    ask = rng.choice(["Use the tool to compute {e}.", "Calculate {e} with the tool."])
    return ask.format(e=expression), [{"expression": expression}], str(a * b), f"{expression} = {a * b}."


def lookup(rng):
    query, limit = rng.choice(QUERIES), rng.randint(2, 9)
    if rng.random() < 0.5:
        return (f"Find {limit} pages about {query}.", [{"query": query, "limit": limit}], f"{limit} pages",
                f"I found {limit} pages about {query}.")
    return rng.choice(["Search for {q}.", "Find pages about {q}."]).format(q=query), [{"query": query}], "3 pages", \
        f"I found 3 pages about {query}."


def timer(rng):
    n = rng.randint(2, 60)
    ask = rng.choice(["Set a timer for {n} minutes.", "Start a timer for {n} minutes."])
    return ask.format(n=n), [{"minutes": n}], "started", f"The timer for {n} minutes is running."


KINDS = [("get_weather", weather), ("get_weather", weather), ("get_weather", two_weathers), ("get_time", clock),
         ("calculate", calculation), ("search", lookup), ("set_timer", timer)]


def sample(rng: random.Random, reason):
    """Messages and tools. With `reason` the call comes after a short thought."""
    name, make = rng.choice(KINDS)
    ask, arguments, results, answer = make(rng)
    others = [n for n in TOOLS if n != name]
    names = rng.sample(others, rng.choice([0, 0, 1, 2])) + [name]
    rng.shuffle(names)
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": a}} for a in arguments]}
    if reason:
        call["reasoning_content"] = f"I should call {name}."
    messages = [{"role": "user", "content": ask}, call]
    if rng.random() < 0.6:
        results = results if isinstance(results, list) else [results]
        messages += [{"role": "tool", "content": r} for r in results]
        final = {"role": "assistant", "content": answer}
        if reason:
            final["reasoning_content"] = "The tool has answered."
        messages.append(final)
    return messages, [TOOLS[n] for n in names]
