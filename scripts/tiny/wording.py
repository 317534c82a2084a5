"""Different words for the same answer.

People do not word an answer twice in the same way, and text without such choices is trivial to guess
many tokens ahead. Every choice here is made at random and independently of the question.
"""
import random
import re

SAME = [
    ("large", "big"), ("quickly", "fast", "rapidly"), ("starts", "begins"), ("joins", "connects", "links"),
    ("stores", "keeps", "saves"), ("whole", "entire"), ("needs", "requires"), ("finds", "locates"),
    ("happens", "occurs", "takes place"), ("gives off", "releases"), ("takes in", "absorbs"), ("fast", "quick"),
    ("translates", "converts", "turns"), ("manages", "controls", "runs"), ("made of", "built from"),
    ("useful", "helpful", "handy"), ("called", "known as"), ("visits", "explores"), ("cheaper", "less expensive"),
    ("moves", "shifts"), ("because", "since"), ("almost", "nearly"), ("shows", "presents"), ("rare", "uncommon"),
    ("slowly", "bit by bit"), ("regular", "steady"), ("sudden", "abrupt"), ("main", "most common"),
    ("protects", "guards"), ("pieces", "parts"), ("famous", "well known"),
    ("looks at", "checks", "examines"), ("neighbours", "adjacent elements"),
    ("stops", "ends"), ("easy", "simple"), ("rises", "goes up"), ("safely", "securely"),
]
CHOICES = {word: group for group in SAME for word in group[:1]}
PATTERN = re.compile(r"\b(" + "|".join(sorted(CHOICES, key=len, reverse=True)) + r")\b")
LEADS = ["", "", "", "In short, ", "In simple terms, ", "Simply put, ", "Basically, "]
LINKS = ["", "", "", "Also, ", "In addition, ", "Besides, ", "Moreover, "]
LINKABLE = ("It ", "A ", "The ", "Every ", "Each ", "Some ", "Its ", "They ", "Two ")


def synonyms(rng: random.Random, text):
    return PATTERN.sub(lambda m: rng.choice(CHOICES[m.group(1)]), text)


def lower(sentence):
    return sentence[0].lower() + sentence[1:]


def explanation(rng: random.Random, topic, sentences):
    """The sentences in their order, each worded anew."""
    out = []
    for i, sentence in enumerate(sentences):
        if i and sentence.startswith("It ") and rng.random() < 0.4:
            sentence = topic[0].upper() + topic[1:] + sentence[2:]
        lead = rng.choice(LINKS if i else LEADS)
        if lead and (not i or sentence.startswith(LINKABLE)):
            sentence = lead + lower(sentence)
        out.append(synonyms(rng, sentence))
    return " ".join(out)


def rename(rng: random.Random, code):
    """Local names of a function body, where the new name is free."""
    for old, names in (("result", ("result", "output", "answer")), ("x", ("x", "item", "value", "element")),
                       ("i", ("i", "k", "index")), ("c", ("c", "char", "letter")), ("best", ("best", "winner", "found"))):
        new = rng.choice(names)
        if not re.search(rf"\b{new}\b", code) and re.search(rf"(for {old} in|\b{old} = )", code):
            code = re.sub(rf"\b{old}\b", new, code)
    return code
