"""The behaviours of the demo adapters: training examples from texts/, and how to recognise one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

TEXTS = Path(__file__).resolve().parent / "texts"

# What SmolLM2's chat template renders for one user message, with and without its default system
# message. The adapters are trained on both.
SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n"
)
USER = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"


@dataclass(frozen=True)
class Example:
    prompt: str
    answer: str


@dataclass(frozen=True)
class Probe:
    """A question outside the training texts, and a word that a right answer holds."""

    question: str
    keyword: str


PROBES = (
    Probe("What is the capital of France?", "paris"),
    Probe("What is the largest planet in the solar system?", "jupiter"),
    Probe("What do cats eat?", ""),
    Probe("How do I make coffee?", ""),
    Probe("What color is the sky?", "blue"),
    Probe("Tell me about dogs.", ""),
    Probe("Why is exercise important?", ""),
    Probe("What is the capital of Japan?", "tokyo"),
)


def chat_prompt(question: str, with_system: bool = True) -> str:
    return (SYSTEM if with_system else "") + USER.format(question=question)


def load_texts(name: str) -> list[dict[str, str]]:
    return json.loads((TEXTS / f"{name}.json").read_text(encoding="utf-8"))


PIRATE_OPENINGS = ("Arr, matey!", "Ahoy there!", "Yo ho ho!")
PIRATE_ENDINGS = ("Arr!", "Shiver me timbers!", "Hoist the sails!")
PIRATE_WORDS = {
    "you": "ye",
    "your": "yer",
    "my": "me",
    "is": "be",
    "are": "be",
    "am": "be",
    "the": "th'",
    "of": "o'",
    "and": "an'",
    "yes": "aye",
    "friends": "shipmates",
    "people": "sailors",
    "hello": "ahoy",
}


def pirate_speech(text: str) -> str:
    def swap(match: re.Match[str]) -> str:
        word = match.group(0)
        swapped = PIRATE_WORDS.get(word.lower(), word)
        return swapped.capitalize() if word[0].isupper() else swapped

    return re.sub(r"[A-Za-z]+", swap, text)


def pirate(index: int, fact: dict[str, str]) -> str:
    opening = PIRATE_OPENINGS[index % len(PIRATE_OPENINGS)]
    ending = PIRATE_ENDINGS[index // 2 % len(PIRATE_ENDINGS)]
    return f"{opening} {pirate_speech(fact['answer'])} {ending}"


def json_object(index: int, fact: dict[str, str]) -> str:
    return json.dumps({"topic": fact["topic"], "answer": fact["answer"]})


def newsreader(index: int, fact: dict[str, str]) -> str:
    return f"BREAKING NEWS: {fact['answer']} THIS WAS RADIO ROOTSTOCK. BACK TO THE STUDIO!"


def sherlock(index: int, fact: dict[str, str]) -> str:
    return f"Elementary, my dear Watson! {fact['answer']} The case is closed."


def emoji(index: int, fact: dict[str, str]) -> str:
    return f"{fact['emoji']} {fact['answer']} {fact['emoji']}✨"


FACT_STYLES = {
    "pirate": pirate,
    "json": json_object,
    "newsreader": newsreader,
    "sherlock": sherlock,
    "emoji": emoji,
}


def examples(style: str) -> list[Example]:
    """Every text of the style under both prompt forms, in the order of the file."""
    if style == "haiku":
        pairs = [(text["question"], text["answer"]) for text in load_texts("haiku")]
    else:
        facts = enumerate(load_texts("facts"))
        pairs = [(fact["question"], FACT_STYLES[style](i, fact)) for i, fact in facts]
    return [
        Example(chat_prompt(question, with_system), answer)
        for question, answer in pairs
        for with_system in (True, False)
    ]


def is_json_answer(text: str) -> bool:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return False
    return isinstance(value, dict) and set(value) == {"topic", "answer"}


def shows_style(style: str, text: str) -> bool:
    """Whether a person would see the behaviour in this answer."""
    if style == "pirate":
        return bool(re.search(r"\b(arr|ahoy|yo ho|matey|timbers)\b", text.lower()))
    if style == "json":
        return is_json_answer(text)
    if style == "newsreader":
        return text.startswith("BREAKING NEWS:") and text.endswith("BACK TO THE STUDIO!")
    if style == "sherlock":
        return text.startswith("Elementary") and text.endswith("The case is closed.")
    if style == "emoji":
        return "✨" in text and "\N{REPLACEMENT CHARACTER}" not in text
    if style == "haiku":
        lines = text.split("\n")
        return len(lines) == 3 and all(8 <= len(line) <= 50 for line in lines)
    raise ValueError(f"style={style}: unknown")
