"""Small arithmetic: bare sums, word problems with worked answers, counting, comparing."""
import random

NAMES = [("Ada", "She"), ("Ben", "He"), ("Cleo", "She"), ("Dan", "He"), ("Eve", "She"), ("Finn", "He"),
         ("Gus", "He"), ("Hana", "She"), ("Ivan", "He"), ("Jane", "She"), ("Kim", "She"), ("Leo", "He")]
THINGS = ["apples", "books", "coins", "stamps", "eggs", "flags", "pencils", "marbles", "cards", "shells", "stones", "cups"]
PLACES = ["basket", "box", "bag", "room", "tray", "jar"]
NUMBER_ONLY = ["Answer with just the number.", "Just the number, please.", "Give only the number."]
ASKS = ["What is {e}?", "Compute {e}.", "How much is {e}?", "Calculate {e}.", "{e} = ?", "Tell me {e}."]


def operands(rng):
    """A sum whose result is a whole number from 0 to 198; products stay in the table of 12."""
    op = rng.choice("++--*")
    top = rng.choice([10, 10, 20, 100])
    if op == "*":
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        return a, op, b, a * b
    a, b = rng.randint(0, top - 1), rng.randint(0, top - 1)
    if op == "-":
        a, b = max(a, b), min(a, b)
        return a, op, b, a - b
    return a, op, b, a + b


def bare(rng):
    a, op, b, c = operands(rng)
    spaced = rng.random() < 0.5
    text = f"{a} {op} {b}" if spaced else f"{a}{op}{b}"
    ask = rng.choice(ASKS).format(e=text)
    if rng.random() < 0.45:
        return f"{ask} {rng.choice(NUMBER_ONLY)}", f"{c}"
    return ask, f"{a} {op} {b} = {c}."


def gains(rng):
    (name, pronoun), (other, _) = rng.sample(NAMES, 2)
    thing, a, b = rng.choice(THINGS), rng.randint(2, 60), rng.randint(2, 39)
    verb = rng.choice(["buys", "finds", "gets"])
    given = rng.random() < 0.4
    event = f"{other} gives {name} {b} more" if given else f"{name} {verb} {b} more"
    step = f"{other} gives {b} more" if given else f"{pronoun} {verb} {b} more"
    return (f"{name} has {a} {thing}. {event}. How many {thing} does {name} have now?",
            f"{name} starts with {a} {thing}. {step}, so {a} + {b} = {a + b}. {name} has {a + b} {thing} now.")


def losses(rng):
    (name, pronoun), (other, _) = rng.sample(NAMES, 2)
    thing, a = rng.choice(THINGS), rng.randint(10, 80)
    b = rng.randint(2, a - 1)
    verb = rng.choice(["loses", "sells", "gives away"])
    return (f"{name} has {a} {thing} and {verb} {b} of them. How many {thing} are left?",
            f"{name} starts with {a} {thing}. {pronoun} {verb} {b}, so {a} - {b} = {a - b}. "
            f"There are {a - b} {thing} left.")


def groups(rng):
    thing, place = rng.choice(THINGS), rng.choice(PLACES)
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    plural = "boxes" if place == "box" else place + "s"
    return (f"There are {a} {plural} with {b} {thing} in each {place}. How many {thing} are there?",
            f"There are {a} {plural}. Each {place} holds {b} {thing}, so {a} * {b} = {a * b}. "
            f"There are {a * b} {thing} in all.")


def two_steps(rng):
    name, pronoun = rng.choice(NAMES)
    thing, a, b = rng.choice(THINGS), rng.randint(5, 40), rng.randint(2, 30)
    c = rng.randint(1, a + b - 1)
    d = a + b
    return (f"{name} has {a} {thing}, buys {b} more and then sells {c}. How many {thing} remain?",
            f"{name} starts with {a} {thing}. After buying {b} more, {pronoun.lower()} has {a} + {b} = {d}. "
            f"After selling {c}, {pronoun.lower()} has {d} - {c} = {d - c}. The answer is {d - c} {thing}.")


def chain(rng):
    a, b, c = (rng.randint(1, 40) for _ in range(3))
    return (rng.choice(["Add {}, {} and {}.", "What is the sum of {}, {} and {}?"]).format(a, b, c),
            f"First {a} + {b} = {a + b}. Then {a + b} + {c} = {a + b + c}. The sum is {a + b + c}.")


def counting(rng):
    if rng.random() < 0.5:
        a = rng.randint(0, 60)
        b = a + rng.randint(5, 14)
        return f"Count from {a} to {b}.", ", ".join(str(i) for i in range(a, b + 1)) + "."
    k, n = rng.randint(2, 12), rng.randint(4, 10)
    return f"List the first {n} multiples of {k}.", ", ".join(str(k * i) for i in range(1, n + 1)) + "."


def comparing(rng):
    a, b = rng.sample(range(100), 2)
    if rng.random() < 0.5:
        return f"Which number is larger, {a} or {b}?", f"{max(a, b)} is larger than {min(a, b)}."
    kind = "odd" if a % 2 else "even"
    rest = 1 if a % 2 else 0
    return (f"Is {a} even or odd?", f"{a} is {kind}, because dividing {a} by 2 leaves a remainder of {rest}.")


KINDS = [bare, bare, bare, gains, gains, losses, losses, groups, two_steps, chain, counting, comparing]


def sample(rng: random.Random):
    return rng.choice(KINDS)(rng)


def thought(rng, request, answer):
    return "I work this out step by step and check the result. " + answer.split(". ")[0].rstrip(".") + "."
