"""Short factual questions and answers from small tables."""
import random

import wording

# country: capital, continent, main language, currency
COUNTRIES = {
    "France": ("Paris", "Europe", "French", "euro"),
    "Germany": ("Berlin", "Europe", "German", "euro"),
    "Italy": ("Rome", "Europe", "Italian", "euro"),
    "Spain": ("Madrid", "Europe", "Spanish", "euro"),
    "Portugal": ("Lisbon", "Europe", "Portuguese", "euro"),
    "Greece": ("Athens", "Europe", "Greek", "euro"),
    "Austria": ("Vienna", "Europe", "German", "euro"),
    "Ireland": ("Dublin", "Europe", "English", "euro"),
    "Norway": ("Oslo", "Europe", "Norwegian", "krone"),
    "Sweden": ("Stockholm", "Europe", "Swedish", "krona"),
    "Denmark": ("Copenhagen", "Europe", "Danish", "krone"),
    "Finland": ("Helsinki", "Europe", "Finnish", "euro"),
    "Poland": ("Warsaw", "Europe", "Polish", "zloty"),
    "Hungary": ("Budapest", "Europe", "Hungarian", "forint"),
    "Romania": ("Bucharest", "Europe", "Romanian", "leu"),
    "Iceland": ("Reykjavik", "Europe", "Icelandic", "krona"),
    "Japan": ("Tokyo", "Asia", "Japanese", "yen"),
    "China": ("Beijing", "Asia", "Chinese", "yuan"),
    "Thailand": ("Bangkok", "Asia", "Thai", "baht"),
    "Vietnam": ("Hanoi", "Asia", "Vietnamese", "dong"),
    "South Korea": ("Seoul", "Asia", "Korean", "won"),
    "Mongolia": ("Ulaanbaatar", "Asia", "Mongolian", "tugrik"),
    "Iran": ("Tehran", "Asia", "Persian", "rial"),
    "Iraq": ("Baghdad", "Asia", "Arabic", "dinar"),
    "Egypt": ("Cairo", "Africa", "Arabic", "pound"),
    "Morocco": ("Rabat", "Africa", "Arabic", "dirham"),
    "Kenya": ("Nairobi", "Africa", "Swahili", "shilling"),
    "Ghana": ("Accra", "Africa", "English", "cedi"),
    "Senegal": ("Dakar", "Africa", "French", "franc"),
    "Angola": ("Luanda", "Africa", "Portuguese", "kwanza"),
    "Canada": ("Ottawa", "North America", "English", "dollar"),
    "Mexico": ("Mexico City", "North America", "Spanish", "peso"),
    "Cuba": ("Havana", "North America", "Spanish", "peso"),
    "Brazil": ("Brasilia", "South America", "Portuguese", "real"),
    "Argentina": ("Buenos Aires", "South America", "Spanish", "peso"),
    "Chile": ("Santiago", "South America", "Spanish", "peso"),
    "Peru": ("Lima", "South America", "Spanish", "sol"),
    "Colombia": ("Bogota", "South America", "Spanish", "peso"),
    "Australia": ("Canberra", "Oceania", "English", "dollar"),
    "New Zealand": ("Wellington", "Oceania", "English", "dollar"),
}
# element: symbol, atomic number, state at room temperature
ELEMENTS = {
    "hydrogen": ("H", 1, "a gas"), "helium": ("He", 2, "a gas"), "lithium": ("Li", 3, "a solid"),
    "carbon": ("C", 6, "a solid"), "nitrogen": ("N", 7, "a gas"), "oxygen": ("O", 8, "a gas"),
    "neon": ("Ne", 10, "a gas"), "sodium": ("Na", 11, "a solid"), "magnesium": ("Mg", 12, "a solid"),
    "aluminium": ("Al", 13, "a solid"), "silicon": ("Si", 14, "a solid"), "sulfur": ("S", 16, "a solid"),
    "chlorine": ("Cl", 17, "a gas"), "calcium": ("Ca", 20, "a solid"), "iron": ("Fe", 26, "a solid"),
    "copper": ("Cu", 29, "a solid"), "zinc": ("Zn", 30, "a solid"), "silver": ("Ag", 47, "a solid"),
    "tin": ("Sn", 50, "a solid"), "gold": ("Au", 79, "a solid"), "mercury": ("Hg", 80, "a liquid"),
    "lead": ("Pb", 82, "a solid"),
}
# animal: young, group, legs
ANIMALS = {
    "dog": ("puppy", "mammal", 4), "cat": ("kitten", "mammal", 4), "cow": ("calf", "mammal", 4),
    "sheep": ("lamb", "mammal", 4), "horse": ("foal", "mammal", 4), "goat": ("kid", "mammal", 4),
    "pig": ("piglet", "mammal", 4), "bear": ("cub", "mammal", 4), "lion": ("cub", "mammal", 4),
    "deer": ("fawn", "mammal", 4), "kangaroo": ("joey", "mammal", 2), "duck": ("duckling", "bird", 2),
    "goose": ("gosling", "bird", 2), "chicken": ("chick", "bird", 2), "swan": ("cygnet", "bird", 2),
    "frog": ("tadpole", "amphibian", 4), "butterfly": ("caterpillar", "insect", 6),
}
# planet: place from the sun, a remark
PLANETS = {
    "Mercury": ("first", "It is the smallest planet."), "Venus": ("second", "It is the hottest planet."),
    "Earth": ("third", "It is the only planet known to have life."), "Mars": ("fourth", "It is called the red planet."),
    "Jupiter": ("fifth", "It is the largest planet."), "Saturn": ("sixth", "It is famous for its rings."),
    "Uranus": ("seventh", "It rolls around the sun on its side."), "Neptune": ("eighth", "It is the farthest planet from the sun."),
}
# work or thing: person, kind of deed, year
MAKERS = {
    "Hamlet": ("William Shakespeare", "wrote", 1600), "Faust": ("Johann Wolfgang von Goethe", "wrote", 1808),
    "Don Quixote": ("Miguel de Cervantes", "wrote", 1605), "Frankenstein": ("Mary Shelley", "wrote", 1818),
    "War and Peace": ("Leo Tolstoy", "wrote", 1869), "Emma": ("Jane Austen", "wrote", 1815),
    "the Mona Lisa": ("Leonardo da Vinci", "painted", 1503), "the Starry Night": ("Vincent van Gogh", "painted", 1889),
    "the Night Watch": ("Rembrandt", "painted", 1642), "the Scream": ("Edvard Munch", "painted", 1893),
    "the telephone": ("Alexander Graham Bell", "patented", 1876), "dynamite": ("Alfred Nobel", "patented", 1867),
    "penicillin": ("Alexander Fleming", "discovered", 1928), "radium": ("Marie and Pierre Curie", "discovered", 1898),
}
OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "light": "dark", "early": "late", "open": "closed", "full": "empty",
    "hard": "soft", "wet": "dry", "young": "old", "strong": "weak", "high": "low", "near": "far", "rich": "poor",
    "loud": "quiet", "clean": "dirty", "sweet": "sour", "thick": "thin",
}
DAYS = {
    "January": 31, "March": 31, "April": 30, "May": 31, "June": 30, "July": 31, "August": 31, "September": 30,
    "October": 31, "November": 30, "December": 31,
}
ONE_WORD = ["Answer with one word.", "One word, please."]


def about_country(rng, name):
    """Four facts about a country, each in one of several forms."""
    capital, continent, language, money = COUNTRIES[name]
    return {
        "capital": rng.choice([f"The capital of {name} is {capital}.", f"{capital} is the capital of {name}.",
                               f"{name} has {capital} as its capital.", f"The capital city is {capital}."]),
        "continent": rng.choice([f"{name} is in {continent}.", f"{name} lies in {continent}.",
                                 f"The country is part of {continent}.", f"{name} belongs to {continent}."]),
        "language": rng.choice([f"Most people in {name} speak {language}.", f"The main language of {name} is {language}.",
                                f"People there speak {language}.", f"{language} is the language of most people there."]),
        "money": rng.choice([f"People in {name} pay with the {money}.", f"The currency of {name} is the {money}.",
                             f"The money there is the {money}.", f"Its currency is called the {money}."]),
    }


def mixed(rng, facts, first, count):
    """The fact that was asked for, then others in any order, `count` in all."""
    rest = [fact for key, fact in facts.items() if key != first]
    rng.shuffle(rest)
    return " ".join([facts[first], *rest][:count])


def country(rng):
    name = rng.choice(list(COUNTRIES))
    capital, continent, language, money = COUNTRIES[name]
    facts = about_country(rng, name)
    some, any_key = rng.choice([1, 2, 2, 3]), rng.choice(list(facts))
    ask, first, count, short = rng.choice([
        ("What is the capital of {c}?", "capital", some, capital),
        ("Which city is the capital of {c}?", "capital", some, capital),
        ("Name the capital of {c}.", "capital", some, capital),
        ("Tell me the capital city of {c}.", "capital", some, capital),
        ("On which continent is {c}?", "continent", some, continent),
        ("Where is {c}?", "continent", some, None),
        ("Which language do people speak in {c}?", "language", some, language),
        ("What is the main language of {c}?", "language", some, language),
        ("What is the currency of {c}?", "money", some, money),
        ("What money is used in {c}?", "money", some, money),
        ("Give me two facts about {c}.", any_key, 2, None),
        ("Give me three facts about {c}.", any_key, 3, None),
        ("Tell me something about {c}.", any_key, 4, None),
        ("Describe {c} in two sentences.", "continent", 2, None),
    ])
    return ask.format(c=name), mixed(rng, facts, first, count), short


def city(rng):
    name = rng.choice(list(COUNTRIES))
    capital, continent = COUNTRIES[name][:2]
    ask = rng.choice(["In which country is {x}?", "{x} is the capital of which country?", "Where is {x}?"])
    facts = about_country(rng, name)
    facts["capital"] = rng.choice([f"{capital} is the capital of {name}, in {continent}.", f"{capital} is in {name}.",
                                   f"{capital} lies in {name} and is its capital."])
    return ask.format(x=capital), mixed(rng, facts, "capital", rng.choice([1, 2, 3])), name


def element(rng):
    name = rng.choice(list(ELEMENTS))
    symbol, number, state = ELEMENTS[name]
    title = name.capitalize()
    facts = {
        "symbol": rng.choice([f"The chemical symbol of {name} is {symbol}.", f"{title} has the symbol {symbol}.",
                              f"Its symbol is {symbol}."]),
        "number": rng.choice([f"The atomic number of {name} is {number}.", f"{title} has the atomic number {number}.",
                              f"It has {number} protons."]),
        "state": rng.choice([f"{title} is {state} at room temperature.", f"At room temperature {name} is {state}.",
                             f"Normally {name} is {state}."]),
    }
    some, any_key = rng.choice([1, 2, 2, 3]), rng.choice(list(facts))
    ask, first, count, short = rng.choice([
        ("What is the chemical symbol of {x}?", "symbol", some, symbol),
        ("Which symbol stands for {x}?", "symbol", some, symbol),
        ("What is the atomic number of {x}?", "number", some, str(number)),
        ("Is {x} a gas, a liquid or a solid?", "state", some, state.split()[1]),
        ("Tell me about the element {x}.", any_key, 3, None),
        ("Give me two facts about {x}.", any_key, 2, None),
    ])
    return ask.format(x=name), mixed(rng, facts, first, count), short


def animal(rng):
    name = rng.choice(list(ANIMALS))
    young, kind, legs = ANIMALS[name]
    an = "an" if kind[0] in "aeiou" else "a"
    facts = {
        "young": rng.choice([f"A young {name} is called a {young}.", f"The young of a {name} is a {young}.",
                             f"When young it is known as a {young}."]),
        "kind": rng.choice([f"A {name} is {an} {kind}.", f"The {name} is {an} {kind}.", f"It is {an} {kind}."]),
        "legs": rng.choice([f"A {name} has {legs} legs.", f"The {name} walks on {legs} legs.", f"It has {legs} legs."]),
    }
    some, any_key = rng.choice([1, 2, 2, 3]), rng.choice(list(facts))
    ask, first, count, short = rng.choice([
        ("What is a young {x} called?", "young", some, young),
        ("What do you call a baby {x}?", "young", some, young),
        ("What kind of animal is a {x}?", "kind", some, kind),
        ("How many legs does a {x} have?", "legs", some, str(legs)),
        ("Tell me about the {x}.", any_key, 3, None),
        ("Give me two facts about the {x}.", any_key, 2, None),
    ])
    return ask.format(x=name), mixed(rng, facts, first, count), short


def planet(rng):
    name = rng.choice(list(PLANETS))
    place, remark = PLANETS[name]
    ask, long = rng.choice([
        ("Which planet is the {p} from the sun?", f"{name} is the {place} planet from the sun."),
        ("Tell me about {n}.", f"{name} is the {place} planet from the sun. {remark}"),
        ("What do you know about the planet {n}?", f"{name} is the {place} planet from the sun. {remark}"),
        ("Describe {n} in two sentences.", f"{name} is the {place} planet from the sun. {remark}"),
        ("What is {n}?", f"{name} is the {place} planet from the sun. {remark}"),
    ])
    return ask.format(n=name, p=place), long, name if "{p}" in ask else None


def maker(rng):
    thing = rng.choice(list(MAKERS))
    person, verb, year = MAKERS[thing]
    title = thing[0].upper() + thing[1:]
    past = {"wrote": "written"}.get(verb, verb)
    ask, long = rng.choice([
        (f"Who {verb} {thing}?", f"{person} {verb} {thing}."),
        (f"Tell me who {verb} {thing}.", f"{person} {verb} {thing}."),
        (f"By whom was {thing} {past}?", f"{title} was {past} by {person}."),
        (f"When was {thing} {past}?", f"{title} was {past} around {year} by {person}."),
        (f"Tell me about {thing}.", f"{title} was {past} around {year} by {person}."),
    ])
    return ask, long, None


def opposite(rng):
    word = rng.choice(list(OPPOSITES))
    other = OPPOSITES[word]
    if rng.random() < 0.5:
        word, other = other, word
    ask = rng.choice(["What is the opposite of {x}?", "Name the opposite of {x}.", "Which word means the opposite of {x}?",
                      "What is the antonym of {x}?"])
    return ask.format(x=word), f"The opposite of {word} is {other}.", other


def month(rng):
    name = rng.choice(list(DAYS))
    ask = rng.choice(["How many days does {x} have?", "How long is {x}?", "How many days are in {x}?"])
    return ask.format(x=name), f"{name} has {DAYS[name]} days.", str(DAYS[name])


TABLES = [country] * 6 + [city] * 2 + [element] * 3 + [animal] * 3 + [planet] * 2 + [maker] * 2 + [opposite, month]


def sample(rng: random.Random):
    ask, long, short = rng.choice(TABLES)(rng)
    if short and rng.random() < 0.15:
        return f"{ask} {rng.choice(ONE_WORD)}", short
    prefix = rng.choice(["", "", "", "", "Please tell me: ", "Quick question: "])
    return prefix + ask, wording.synonyms(rng, long)


def thought(rng, request, answer):
    return "This is a question about a known fact. I recall it: " + answer.split(". ")[0].rstrip(".") + "."
