"""Short factual questions and answers from small tables."""
import random

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


def country(rng):
    name = rng.choice(list(COUNTRIES))
    capital, continent, language, money = COUNTRIES[name]
    forms = [
        ("What is the capital of {c}?", f"The capital of {name} is {capital}.", capital),
        ("Which city is the capital of {c}?", f"The capital of {name} is {capital}.", capital),
        ("Name the capital of {c}.", f"The capital of {name} is {capital}.", capital),
        ("Tell me the capital city of {c}.", f"The capital of {name} is {capital}.", capital),
        ("On which continent is {c}?", f"{name} is in {continent}.", continent),
        ("Where is {c}?", f"{name} is in {continent}. Its capital is {capital}.", None),
        ("Which language do people speak in {c}?", f"Most people in {name} speak {language}.", language),
        ("What is the main language of {c}?", f"Most people in {name} speak {language}.", language),
        ("What is the currency of {c}?", f"People in {name} pay with the {money}.", money),
        ("What money is used in {c}?", f"People in {name} pay with the {money}.", money),
        ("Give me two facts about {c}.", f"The capital of {name} is {capital}. Most people in {name} speak {language}.", None),
        ("Give me three facts about {c}.",
         f"{name} is in {continent}. The capital of {name} is {capital}. Most people in {name} speak {language}.", None),
        ("Tell me something about {c}.",
         f"{name} is in {continent} and its capital is {capital}. People there speak {language} and pay with the {money}.", None),
        ("Describe {c} in two sentences.",
         f"{name} is in {continent} and its capital is {capital}. People there speak {language} and pay with the {money}.", None),
    ]
    ask, long, short = rng.choice(forms)
    return ask.format(c=name), long, short


def city(rng):
    name = rng.choice(list(COUNTRIES))
    capital, continent, language, _ = COUNTRIES[name]
    ask = rng.choice(["In which country is {x}?", "{x} is the capital of which country?", "Where is {x}?"])
    long = f"{capital} is the capital of {name}, in {continent}. Most people there speak {language}."
    return ask.format(x=capital), long, name


def element(rng):
    name = rng.choice(list(ELEMENTS))
    symbol, number, state = ELEMENTS[name]
    title = name.capitalize()
    forms = [
        ("What is the chemical symbol of {x}?", f"The chemical symbol of {name} is {symbol}.", symbol),
        ("Which symbol stands for {x}?", f"The chemical symbol of {name} is {symbol}.", symbol),
        ("What is the atomic number of {x}?", f"The atomic number of {name} is {number}.", str(number)),
        ("Is {x} a gas, a liquid or a solid?", f"{title} is {state} at room temperature.", state.split()[1]),
        ("Tell me about the element {x}.",
         f"{title} has the symbol {symbol} and the atomic number {number}. It is {state} at room temperature.", None),
        ("Give me two facts about {x}.",
         f"{title} has the symbol {symbol} and the atomic number {number}. It is {state} at room temperature.", None),
    ]
    ask, long, short = rng.choice(forms)
    return ask.format(x=name), long, short


def animal(rng):
    name = rng.choice(list(ANIMALS))
    young, kind, legs = ANIMALS[name]
    an = "an" if kind[0] in "aeiou" else "a"
    forms = [
        ("What is a young {x} called?", f"A young {name} is called a {young}.", young),
        ("What do you call a baby {x}?", f"A young {name} is called a {young}.", young),
        ("What kind of animal is a {x}?", f"A {name} is {an} {kind}.", kind),
        ("How many legs does a {x} have?", f"A {name} has {legs} legs.", str(legs)),
        ("Tell me about the {x}.", f"A {name} is {an} {kind} with {legs} legs. A young {name} is called a {young}.", None),
        ("Give me two facts about the {x}.", f"A {name} is {an} {kind} with {legs} legs. A young {name} is called a {young}.", None),
    ]
    ask, long, short = rng.choice(forms)
    return ask.format(x=name), long, short


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
    return prefix + ask, long


def thought(rng, request, answer):
    return "This is a question about a known fact. I recall it: " + answer.split(". ")[0].rstrip(".") + "."
