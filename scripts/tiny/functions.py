"""Short Python functions and the ways to ask for them.

Each entry: alternative names, alternative parameter lists, what the function does (completing "that ..."),
and the body. `{f}` is the chosen name; `{0}`, `{1}` are the chosen parameters.
"""
import random

import wording

FUNCTIONS = [
    (["fibonacci", "fib", "nth_fibonacci"], ["n", "count"], "using iteration",
     "returns the n-th Fibonacci number",
     "a, b = 0, 1\nfor _ in range({0}):\n    a, b = b, a + b\nreturn a"),
    (["fibonacci", "fib_recursive"], ["n", "index"], "using recursion",
     "returns the n-th Fibonacci number by recursion",
     "if {0} < 2:\n    return {0}\nreturn {f}({0} - 1) + {f}({0} - 2)"),
    (["factorial", "fact"], ["n", "number"], "using a loop",
     "returns the factorial of a number",
     "result = 1\nfor i in range(2, {0} + 1):\n    result *= i\nreturn result"),
    (["factorial", "fact_recursive"], ["n", "k"], "using recursion",
     "returns the factorial by recursion",
     "if {0} <= 1:\n    return 1\nreturn {0} * {f}({0} - 1)"),
    (["is_prime", "prime"], ["n", "number"], "using trial division",
     "checks whether a number is prime",
     "if {0} < 2:\n    return False\nfor i in range(2, int({0} ** 0.5) + 1):\n    if {0} % i == 0:\n"
     "        return False\nreturn True"),
    (["gcd", "greatest_common_divisor"], ["a, b", "x, y"], "using the Euclidean algorithm",
     "returns the greatest common divisor of two numbers",
     "while {1}:\n    {0}, {1} = {1}, {0} % {1}\nreturn {0}"),
    (["lcm", "least_common_multiple"], ["a, b", "x, y"], "using math.gcd",
     "returns the least common multiple of two numbers",
     "import math\nreturn {0} * {1} // math.gcd({0}, {1})"),
    (["is_palindrome", "palindrome"], ["text", "word"], "using slicing",
     "checks whether a string reads the same in both directions",
     "return {0} == {0}[::-1]"),
    (["reverse_string", "reverse"], ["text", "s"], "using slicing",
     "returns a string in reverse order",
     "return {0}[::-1]"),
    (["count_vowels", "vowels"], ["text", "word"], "using a generator",
     "counts the vowels in a string",
     "return sum(1 for c in {0}.lower() if c in \"aeiou\")"),
    (["sum_list", "total"], ["numbers", "values"], "using a loop",
     "adds up all numbers of a list",
     "result = 0\nfor x in {0}:\n    result += x\nreturn result"),
    (["maximum", "find_max", "largest"], ["numbers", "values"], "without using max",
     "returns the largest number of a list",
     "best = {0}[0]\nfor x in {0}[1:]:\n    if x > best:\n        best = x\nreturn best"),
    (["minimum", "find_min", "smallest"], ["numbers", "values"], "without using min",
     "returns the smallest number of a list",
     "best = {0}[0]\nfor x in {0}[1:]:\n    if x < best:\n        best = x\nreturn best"),
    (["average", "mean"], ["numbers", "values"], "using sum and len",
     "returns the mean of a list of numbers",
     "if not {0}:\n    return 0.0\nreturn sum({0}) / len({0})"),
    (["median", "middle_value"], ["numbers", "values"], "using sorting",
     "returns the median of a list of numbers",
     "ordered = sorted({0})\nmiddle = len(ordered) // 2\nif len(ordered) % 2:\n    return ordered[middle]\n"
     "return (ordered[middle - 1] + ordered[middle]) / 2"),
    (["binary_search", "search"], ["items, target", "values, key"], "using two indices",
     "finds the position of a value in a sorted list",
     "low, high = 0, len({0}) - 1\nwhile low <= high:\n    middle = (low + high) // 2\n"
     "    if {0}[middle] == {1}:\n        return middle\n    if {0}[middle] < {1}:\n        low = middle + 1\n"
     "    else:\n        high = middle - 1\nreturn -1"),
    (["linear_search", "find"], ["items, target", "values, key"], "using a loop",
     "finds the position of a value in a list",
     "for i, item in enumerate({0}):\n    if item == {1}:\n        return i\nreturn -1"),
    (["bubble_sort", "sort_list"], ["items", "values"], "using bubble sort",
     "sorts a list by swapping neighbours",
     "{0} = list({0})\nfor i in range(len({0})):\n    for j in range(len({0}) - 1 - i):\n"
     "        if {0}[j] > {0}[j + 1]:\n            {0}[j], {0}[j + 1] = {0}[j + 1], {0}[j]\nreturn {0}"),
    (["insertion_sort", "sort_values"], ["items", "values"], "using insertion sort",
     "sorts a list by inserting each value into its place",
     "{0} = list({0})\nfor i in range(1, len({0})):\n    value = {0}[i]\n    j = i - 1\n"
     "    while j >= 0 and {0}[j] > value:\n        {0}[j + 1] = {0}[j]\n        j -= 1\n"
     "    {0}[j + 1] = value\nreturn {0}"),
    (["quicksort", "quick_sort"], ["items", "values"], "using recursion",
     "sorts a list with the quicksort algorithm",
     "if len({0}) <= 1:\n    return {0}\npivot = {0}[0]\nsmaller = [x for x in {0}[1:] if x < pivot]\n"
     "larger = [x for x in {0}[1:] if x >= pivot]\nreturn {f}(smaller) + [pivot] + {f}(larger)"),
    (["merge", "merge_sorted"], ["left, right", "a, b"], "using two indices",
     "merges two sorted lists into one",
     "result = []\ni = j = 0\nwhile i < len({0}) and j < len({1}):\n    if {0}[i] <= {1}[j]:\n"
     "        result.append({0}[i])\n        i += 1\n    else:\n        result.append({1}[j])\n        j += 1\n"
     "return result + {0}[i:] + {1}[j:]"),
    (["count_words", "word_count"], ["text", "sentence"], "using split",
     "counts the words of a text",
     "return len({0}.split())"),
    (["word_frequencies", "count_each_word"], ["text", "sentence"], "using a dictionary",
     "counts how often each word occurs",
     "counts = {{}}\nfor word in {0}.split():\n    counts[word] = counts.get(word, 0) + 1\nreturn counts"),
    (["is_even", "even"], ["n", "number"], "using the remainder",
     "checks whether a number is even",
     "return {0} % 2 == 0"),
    (["is_leap_year", "leap"], ["year", "y"], "using the calendar rules",
     "checks whether a year is a leap year",
     "if {0} % 400 == 0:\n    return True\nif {0} % 100 == 0:\n    return False\nreturn {0} % 4 == 0"),
    (["celsius_to_fahrenheit", "to_fahrenheit"], ["celsius", "degrees"], "using the formula",
     "converts degrees Celsius to Fahrenheit",
     "return {0} * 9 / 5 + 32"),
    (["fahrenheit_to_celsius", "to_celsius"], ["fahrenheit", "degrees"], "using the formula",
     "converts degrees Fahrenheit to Celsius",
     "return ({0} - 32) * 5 / 9"),
    (["power", "raise_to"], ["base, exponent", "x, n"], "using a loop",
     "raises a number to a whole power",
     "result = 1\nfor _ in range({1}):\n    result *= {0}\nreturn result"),
    (["unique", "remove_duplicates"], ["items", "values"], "keeping the order",
     "removes repeated values from a list",
     "seen = set()\nresult = []\nfor x in {0}:\n    if x not in seen:\n        seen.add(x)\n"
     "        result.append(x)\nreturn result"),
    (["flatten", "flatten_list"], ["lists", "rows"], "using two loops",
     "joins a list of lists into one list",
     "result = []\nfor row in {0}:\n    for x in row:\n        result.append(x)\nreturn result"),
    (["is_anagram", "anagrams"], ["first, second", "a, b"], "using sorting",
     "checks whether two words use the same letters",
     "return sorted({0}) == sorted({1})"),
    (["digit_sum", "sum_digits"], ["n", "number"], "using a loop",
     "adds up the digits of a number",
     "total = 0\nwhile {0} > 0:\n    total += {0} % 10\n    {0} //= 10\nreturn total"),
    (["sum_of_squares", "squares_total"], ["n", "limit"], "using a generator",
     "adds the squares of the numbers from 1 to n",
     "return sum(i * i for i in range(1, {0} + 1))"),
    (["sum_to", "triangle_number"], ["n", "limit"], "using the formula",
     "adds the numbers from 1 to n",
     "return {0} * ({0} + 1) // 2"),
    (["collatz", "collatz_steps"], ["n", "start"], "using a while loop",
     "counts the Collatz steps down to one",
     "steps = 0\nwhile {0} != 1:\n    if {0} % 2 == 0:\n        {0} //= 2\n    else:\n"
     "        {0} = 3 * {0} + 1\n    steps += 1\nreturn steps"),
    (["fizzbuzz", "fizz_buzz"], ["n", "limit"], "using a loop",
     "prints numbers with Fizz and Buzz",
     "for i in range(1, {0} + 1):\n    if i % 15 == 0:\n        print(\"FizzBuzz\")\n    elif i % 3 == 0:\n"
     "        print(\"Fizz\")\n    elif i % 5 == 0:\n        print(\"Buzz\")\n    else:\n        print(i)"),
    (["primes_up_to", "sieve"], ["limit", "n"], "using a sieve",
     "lists the primes up to a limit",
     "flags = [True] * ({0} + 1)\nprimes = []\nfor i in range(2, {0} + 1):\n    if flags[i]:\n"
     "        primes.append(i)\n        for j in range(i * i, {0} + 1, i):\n            flags[j] = False\n"
     "return primes"),
    (["transpose", "swap_rows_and_columns"], ["matrix", "rows"], "using zip",
     "swaps the rows and columns of a matrix",
     "return [list(row) for row in zip(*{0})]"),
    (["dot_product", "dot"], ["a, b", "x, y"], "using zip",
     "multiplies two vectors and adds up the products",
     "return sum(p * q for p, q in zip({0}, {1}))"),
    (["clamp", "limit_value"], ["value, low, high", "x, low, high"], "using min and max",
     "keeps a value between two limits",
     "return max(low, min({0}, high))"),
    (["read_lines", "load_lines"], ["path", "filename"], "using a with block",
     "reads all lines of a file",
     "with open({0}) as file:\n    return [line.rstrip(\"\\n\") for line in file]"),
    (["invert", "swap_keys_and_values"], ["mapping", "table"], "using a comprehension",
     "swaps the keys and values of a dictionary",
     "return {{value: key for key, value in {0}.items()}}"),
    (["chunks", "split_into_chunks"], ["items, size", "values, length"], "using slices",
     "cuts a list into pieces of equal length",
     "return [{0}[i:i + {1}] for i in range(0, len({0}), {1})]"),
    (["to_binary", "binary_digits"], ["n", "number"], "using division by two",
     "writes a whole number in binary",
     "if {0} == 0:\n    return \"0\"\ndigits = \"\"\nwhile {0} > 0:\n    digits = str({0} % 2) + digits\n"
     "    {0} //= 2\nreturn digits"),
    (["title_case", "capitalize_words"], ["text", "sentence"], "using split and join",
     "writes every word with a capital letter",
     "return \" \".join(word.capitalize() for word in {0}.split())"),
    (["caesar", "caesar_cipher"], ["text, shift", "word, key"], "using character codes",
     "shifts every letter of a lower case text",
     "result = \"\"\nfor c in {0}:\n    if c.isalpha():\n        c = chr((ord(c) - 97 + {1}) % 26 + 97)\n"
     "    result += c\nreturn result"),
]

ASKS = [
    "Write a Python function {call} {how}.",
    "Write a function {call} in Python {how}.",
    "Write a Python function {call} that {does}.",
    "I need a Python function {call} that {does}.",
    "Please write {call} in Python; it {does}.",
    "Give me a Python function named {f} that {does}.",
    "Show me Python code for {call} {how}.",
    "Can you write a Python function that {does}? Call it {f}.",
    "Implement {call} in Python {how}.",
]
STYLES = ["Return only code.", "Only code, please.", "Return only code.", "No explanation.", "", "", "",
          "Add a docstring.", "Keep it short."]
BARE = {"Return only code.", "Only code, please.", "No explanation."}
OPENINGS = ["Here is {f}:", "Here is a function for that:", "Sure, here it is:", "Here is the code:", "Here you go:",
            "This function should do it:", "Of course:"]
CLOSINGS = ["The function {does}.", "It {does}.", "This {does}.", "`{f}` {does}."]
REMARKS = ["", "", " It works {how}.", " Call it as `{call}`.", " It takes {count}."]


def fill(body, name, arguments):
    parts = [a.strip() for a in arguments.split(",")]
    return body.format(*parts, f=name)


def source(entry, name, arguments, docstring=False):
    body = fill(entry[4], name, arguments)
    lines = [f"def {name}({arguments}):"]
    if docstring:
        first, _, rest = entry[3].partition(" ")
        lines.append(f'    """{first.capitalize()} {rest}."""')
    lines += ["    " + line for line in body.split("\n")]
    return "\n".join(lines)


def sample(rng: random.Random):
    """One request and its answer."""
    entry = rng.choice(FUNCTIONS)
    name, arguments = rng.choice(entry[0]), rng.choice(entry[1])
    ask, style = rng.choice(ASKS), rng.choice(STYLES)
    request = ask.format(call=f"{name}({arguments})", f=name, how=entry[2], does=entry[3])
    # A request that does not spell the parameters gets the first list.
    arguments = arguments if "{call}" in ask else entry[1][0]
    code = wording.rename(rng, source(entry, name, arguments, docstring="docstring" in style))
    answer = f"```python\n{code}\n```"
    if style not in BARE:
        count = len(arguments.split(","))
        words = {"f": name, "call": f"{name}({arguments})", "how": entry[2], "does": entry[3],
                 "count": "one argument" if count == 1 else f"{count} arguments"}
        opening, closing = rng.choice(OPENINGS), rng.choice(CLOSINGS) + rng.choice(REMARKS)
        answer = f"{opening.format(**words)}\n\n{answer}\n\n{closing.format(**words)}"
    return f"{request} {style}".strip(), answer


def thought(rng: random.Random, request, answer):
    code = answer.split("```python\n")[1].split("\n")[0]
    return f"The user wants Python code. I start with {code.rstrip(':')} and write the body step by step."
