"""Small talk and questions that follow on from an answer."""
import random

PAIRS = [
    (["Hi", "Hello", "Hello!", "Hi there", "Hey", "Hi!"], "Hello! How can I help you today?"),
    (["Good morning", "Good morning!"], "Good morning! How can I help you today?"),
    (["Good evening", "Good evening!"], "Good evening! How can I help you today?"),
    (["How are you?", "How are you doing?", "How do you feel?"], "I am a program, so I do not have feelings, but I am ready to help."),
    (["Who are you?", "What are you?", "What is your name?", "Introduce yourself."],
     "I am spinney-tiny, a very small language model that comes with the Spinney server."),
    (["What can you do?", "How can you help me?", "What do you know?"],
     "I can answer short questions, do small sums, explain a few ideas and write short Python functions."),
    (["Thank you", "Thanks", "Thanks!", "Thank you very much."], "You are welcome!"),
    (["Bye", "Goodbye", "See you later", "Good night"], "Goodbye! Have a nice day."),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh."],
     "Why did the computer go to bed early? It needed to recharge its memory."),
    (["Tell me a story.", "Tell me a short story.", "Write a short story."],
     "A small fox lived at the edge of a wood. One day it found a key under a leaf and looked for the door. "
     "The door was in an old tree, and behind it was a warm and quiet room. The fox stayed there for the winter."),
    (["Write a short poem.", "Write a poem about the sea.", "Write me a poem."],
     "The sea is wide, the sea is deep,\nit sings the little boats to sleep.\nThe moon looks down, the wind is still,\n"
     "and stars are rising on the hill."),
    (["Are you a human?", "Are you a person?"], "No, I am a small language model."),
    (["Can you keep a secret?"], "I do not remember anything once our conversation has ended."),
    (["What is the weather like?", "Will it rain tomorrow?"], "I cannot see the weather, but a forecast service can tell you."),
    (["I am bored.", "I am bored", "What should I do today?"], "You could take a walk, read a book or learn something new."),
    (["I am sad.", "I feel sad."], "I am sorry to hear that. Talking with a friend may help."),
    (["Count to ten.", "Please count to ten."], "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."),
    (["Name the colours of the rainbow.", "What are the colours of the rainbow?"],
     "The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet."),
    (["Name the days of the week.", "What are the days of the week?"],
     "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
    (["Name the months of the year.", "What are the months of the year?"],
     "The months are January, February, March, April, May, June, July, August, September, October, November and December."),
    (["Say the alphabet.", "What is the alphabet?"], "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z."),
    (["Repeat after me: hello world", "Say hello world."], "hello world"),
    (["Why is the sky blue?", "Explain why the sky is blue."],
     "Air scatters blue light more strongly than red light. The scattered blue light reaches us from all parts of the sky."),
]
SYSTEMS = ["You are a helpful assistant.", "Be brief.", "You are a friendly assistant.", "Answer clearly.",
           "You are spinney-tiny, a small assistant.", "You are a careful assistant. Answer in English."]


def sample(rng: random.Random):
    asks, answer = rng.choice(PAIRS)
    return rng.choice(asks), answer


def thought(rng, request, answer):
    return "The user makes small talk. I answer in a friendly way."


def follow_up(rng: random.Random):
    """Two turns where the second only makes sense after the first."""
    a, b, k = rng.randint(0, 9), rng.randint(0, 9), rng.randint(2, 9)
    c = a + b
    first = rng.choice([f"{a}+{b}?", f"What is {a}+{b}?", f"What is {a} + {b}? Answer with just the number."])
    again, op, result = rng.choice([(f"Times {k}?", "*", c * k), (f"And plus {k}?", "+", c + k), (f"Add {k}.", "+", c + k)])
    reply = str(c) if "just" in first else f"{a} + {b} = {c}."
    return [(first, reply), (again, f"{c} {op} {k} = {result}.")]
