"""Subjects with four sentences each; an answer of n sentences is the first n of them."""
import random

import wording

TOPICS = {
    "the quicksort algorithm": [
        "Quicksort picks one element of the list as the pivot.",
        "It moves the smaller elements before the pivot and the larger ones after it.",
        "Then it sorts both parts in the same way until every part has at most one element.",
        "On average it needs about n log n comparisons."],
    "the merge sort algorithm": [
        "Merge sort cuts the list into two halves.",
        "It sorts each half in the same way and then merges the two sorted halves.",
        "Merging compares the first elements of both halves and takes the smaller one each time.",
        "It always needs about n log n steps, but it uses extra memory."],
    "binary search": [
        "Binary search finds a value in a sorted list.",
        "It looks at the middle element and drops the half that cannot hold the value.",
        "Every step halves the rest, so even a million elements need only about twenty steps.",
        "It does not work when the list is not sorted."],
    "bubble sort": [
        "Bubble sort walks through the list and swaps neighbours that are in the wrong order.",
        "After each walk the largest remaining element has moved to the end.",
        "It stops when a walk makes no swap.",
        "It is easy to write but slow for long lists."],
    "recursion": [
        "Recursion means that a function calls itself on a smaller problem.",
        "A base case stops the calls when the problem is small enough.",
        "The results of the smaller calls are then combined into the final answer.",
        "Without a base case the calls would never end."],
    "a hash table": [
        "A hash table stores values under keys.",
        "A hash function turns each key into the number of a slot.",
        "Two keys can fall into the same slot, so the table must handle such collisions.",
        "Looking up a key takes about the same time however many keys there are."],
    "a linked list": [
        "A linked list is a chain of nodes.",
        "Each node holds a value and a link to the next node.",
        "Adding a node at the front is fast, but finding the last one means walking the whole chain.",
        "The end is marked by a link that points to nothing."],
    "a stack": [
        "A stack is a pile of values where the last one added is the first one removed.",
        "Adding a value is called push and removing one is called pop.",
        "Programs use a stack to remember where each function call must return.",
        "Both operations take constant time."],
    "a queue": [
        "A queue is a line of values where the first one added is the first one removed.",
        "New values join at the back and leave at the front.",
        "Queues are used for jobs that must be done in the order in which they arrive.",
        "A printer keeps its waiting pages in a queue."],
    "a binary tree": [
        "A binary tree is made of nodes with at most two children each.",
        "The top node is called the root and nodes without children are called leaves.",
        "In a search tree smaller values go to the left and larger values to the right.",
        "A balanced tree keeps every search short."],
    "breadth-first search": [
        "Breadth-first search visits the nodes of a graph level by level.",
        "It keeps the nodes that wait for a visit in a queue.",
        "The first time it reaches a node it has found a shortest path to it.",
        "It marks the nodes it has seen so that none is visited twice."],
    "depth-first search": [
        "Depth-first search follows one path of a graph as far as it goes.",
        "When it cannot go on it steps back and tries the next branch.",
        "It can be written with recursion or with a stack.",
        "It is useful for finding cycles and for ordering tasks."],
    "a compiler": [
        "A compiler translates a program into machine code.",
        "It first reads the text, checks its grammar and builds a tree.",
        "Then it improves the code and writes instructions for the processor.",
        "Errors in the grammar are reported before the program runs."],
    "an operating system": [
        "An operating system manages the hardware of a computer.",
        "It shares the processor and the memory among the running programs.",
        "It also offers files, networks and devices through one common interface.",
        "Well known examples are Linux, Windows and macOS."],
    "a database": [
        "A database stores data so that it can be found and changed safely.",
        "Tables hold rows, and every row has the same columns.",
        "A query language lets programs ask for the rows they need.",
        "Transactions make sure that a group of changes happens completely or not at all."],
    "version control": [
        "Version control records every change to a set of files.",
        "Each commit stores who changed what and why.",
        "Branches let people work side by side and merge their work later.",
        "An older version can be restored at any time."],
    "the internet": [
        "The internet is a network that joins many smaller networks.",
        "Data travels through it in small packets that find their own way.",
        "Every device has an address, so packets know where to go.",
        "Web pages, mail and video calls all use it."],
    "encryption": [
        "Encryption turns a message into text that others cannot read.",
        "Only someone with the right key can turn it back.",
        "Public key systems use one key to lock and another key to unlock.",
        "It protects messages, payments and passwords."],
    "machine learning": [
        "Machine learning finds patterns in examples instead of following fixed rules.",
        "A model has many numbers that are adjusted until its answers fit the examples.",
        "A good model also gives good answers for examples it has never seen.",
        "It is used to recognise images, to translate text and to make forecasts."],
    "a neural network": [
        "A neural network is made of layers of simple units.",
        "Each unit adds up its weighted inputs and passes the result through a simple function.",
        "Training changes the weights a little after every example so that the error shrinks.",
        "Networks with many layers are called deep."],
    "speculative decoding": [
        "Speculative decoding makes a language model write faster.",
        "A small drafter guesses several tokens and the large model checks all of them in one pass.",
        "Correct guesses are kept and the first wrong one is replaced, so the text does not change.",
        "It works best when the text is easy to predict."],
    "photosynthesis": [
        "Photosynthesis is how plants make sugar from light.",
        "The leaves take in carbon dioxide and water and give off oxygen.",
        "The green pigment chlorophyll catches the light that drives this change.",
        "Almost all food on Earth depends on it."],
    "the water cycle": [
        "The water cycle moves water between the sea, the air and the land.",
        "The sun heats the sea and water rises as vapour.",
        "The vapour cools into clouds and falls as rain or snow, and rivers carry it back to the sea.",
        "The same water has been going round for billions of years."],
    "gravity": [
        "Gravity is the force that pulls all masses towards each other.",
        "It keeps our feet on the ground and the planets on their paths around the sun.",
        "The larger the masses and the smaller the distance, the stronger the pull.",
        "On the Moon it is about six times weaker than on Earth."],
    "the seasons": [
        "The seasons come from the tilt of the axis of the Earth.",
        "For half of the year the north leans towards the sun and has long warm days.",
        "During the other half it leans away and has short cold days, while the south has summer.",
        "The distance to the sun has little to do with it."],
    "a solar eclipse": [
        "A solar eclipse happens when the Moon moves between the Earth and the sun.",
        "Its shadow falls on a small part of the Earth and the sky grows dark there.",
        "A total eclipse lasts only a few minutes at any place.",
        "One should never look at the sun without a proper filter."],
    "the tides": [
        "The tides are the regular rise and fall of the sea.",
        "They come from the pull of the Moon and, less strongly, of the sun.",
        "Most coasts see two high tides and two low tides each day.",
        "The strongest tides come at new moon and full moon."],
    "a volcano": [
        "A volcano is an opening in the crust of the Earth.",
        "Hot melted rock rises through it and flows out as lava.",
        "Ash and lava build up a mountain around the opening over time.",
        "Some volcanoes sleep for thousands of years between eruptions."],
    "an earthquake": [
        "An earthquake is a sudden shaking of the ground.",
        "It happens when two plates of the crust slip past each other.",
        "The waves spread out from the source and are strongest near it.",
        "Instruments can measure it on the other side of the world."],
    "evolution": [
        "Evolution is the slow change of living things over many generations.",
        "Small differences between parents and children arise by chance.",
        "Those that help survival are passed on more often, so they spread.",
        "Over millions of years new species appear in this way."],
    "the human heart": [
        "The heart is a muscle that pumps blood through the body.",
        "Its right side sends blood to the lungs and its left side sends it to the rest of the body.",
        "Valves make sure that the blood flows in one direction only.",
        "It beats about seventy times a minute at rest."],
    "a vaccine": [
        "A vaccine trains the body to fight a disease.",
        "It shows the immune system a harmless part of the germ.",
        "The body remembers it and can react quickly when the real germ arrives.",
        "Vaccines have made several dangerous diseases rare."],
    "electricity": [
        "Electricity is the flow of charge through a material.",
        "A battery or a generator pushes the charge around a closed circuit.",
        "Metals conduct it well, while glass and rubber do not.",
        "It carries energy to lamps, motors and computers."],
    "a rainbow": [
        "A rainbow appears when sunlight meets drops of rain.",
        "Each drop bends the light and splits it into its colours.",
        "We see the arc when the sun is behind us and the rain is in front of us.",
        "The order of the colours is always the same, from red to violet."],
    "inflation": [
        "Inflation means that prices rise over time.",
        "The same amount of money then buys fewer goods.",
        "It can come from higher costs or from more money chasing the same goods.",
        "Central banks fight it by raising interest rates."],
    "democracy": [
        "In a democracy the people choose who governs them.",
        "Regular elections let them keep or replace their leaders.",
        "Courts and a free press watch that those in power keep to the law.",
        "The word comes from the Greek words for people and rule."],
    "the printing press": [
        "The printing press made it possible to copy books quickly.",
        "Johannes Gutenberg built one with movable metal letters around 1450.",
        "Books became cheaper, so many more people learned to read.",
        "Ideas could now spread across a continent within weeks."],
    "bread making": [
        "Bread is made from flour, water, salt and yeast.",
        "The yeast eats sugar and gives off gas that makes the dough rise.",
        "In the hot oven the bubbles set and the crust turns brown.",
        "Kneading the dough makes it stretchy enough to hold the gas."],
}

COUNTS = {1: "one", 2: "two", 3: "three", 4: "four"}
ASKS = [
    "Explain {t} in {n} sentence{s}.",
    "Explain {t} in {w} sentence{s}.",
    "In {n} sentence{s}, explain {t}.",
    "In {w} sentence{s}, describe {t}.",
    "Describe {t} in {n} sentence{s}.",
    "Describe {t} using {w} sentence{s}.",
    "Tell me about {t} in {n} sentence{s}.",
    "Please explain {t} in {w} short sentence{s}.",
    "Give me an explanation of {t} in {n} sentence{s}.",
    "Summarize {t} in {w} sentence{s}.",
    "Write {n} sentence{s} about {t}.",
    "Could you explain {t} in {n} sentence{s}?",
]
OPEN_ASKS = [("What is {t}?", 2), ("Explain {t}.", 3), ("Explain {t} briefly.", 2), ("Tell me about {t}.", 3),
             ("How would you describe {t}?", 2), ("Explain {t} in detail.", 4), ("I want to learn about {t}.", 3)]


def sample(rng: random.Random):
    topic = rng.choice(list(TOPICS))
    if rng.random() < 0.25:
        ask, n = rng.choice(OPEN_ASKS)
        request = ask.format(t=topic)
    else:
        n = rng.choice([1, 2, 2, 3, 3, 3, 4])
        request = rng.choice(ASKS).format(t=topic, n=n, w=COUNTS[n], s="" if n == 1 else "s")
    return request, wording.explanation(rng, topic, TOPICS[topic][:n])


def thought(rng, request, answer):
    n = answer.count(". ") + 1
    return f"The user wants an explanation. I need {COUNTS[n]} clear sentence{'' if n == 1 else 's'}."
