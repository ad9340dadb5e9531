"""What trees of drafts could bring beside chains, by counting: `python -m bench.draft_trees`.

A drafter's first guess is right with probability `first` at each place; where it is not, its second is with `second`.
Of all trees of a size the one of most kept tokens has the likeliest nodes. Seconds of steps are those of one stream in
docs/benchmarks/speculation.md, drafting costs a part of a step for each level, and the mask, places of their own for
keys and values of branches, and their copies cost nothing here: what a tree brings is less. How often first and second
guesses from a text are right is counted on the answers of `bench.recent_answers`.
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from bench.recent_answers import TEXTS, Words
from bench.speculation import PAGE, table
from kvasir_runtime.core.speculation.drafters import LONGEST_END, TokenHistory

MOST: Final = 15
"""Drafts of a sequence in a step."""
FIRSTS: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SECONDS: Final = (0.2, 0.3, 0.4, 0.5)
LEVEL_COSTS: Final = (0.02, 0.12)
"""Seconds of drafting one level in those of a step: of a head, and of a draft model of an eighth of the layers."""
COUNTED: Final = 24
"""Answers of one kind, one behind the other, as one text."""


def kept(num_drafts: int, first: float, second: float) -> tuple[float, int]:
    """Expected drafts that are kept of the best tree of so many, and its levels. A chain has a second of 0."""
    nodes = [(-first, 1), (-(1 - first) * second, 1)]
    heapify(nodes)
    total, levels = 0.0, 0
    for _ in range(num_drafts):
        minus, level = heappop(nodes)
        total, levels = total - minus, max(levels, level)
        heappush(nodes, (minus * first, level + 1))
        heappush(nodes, (minus * (1 - first) * second, level + 1))
    return total, levels


def guesses(text: Sequence[int]) -> tuple[float, float]:
    """How often the most frequent id behind the longest known end of a text is right; and where it is wrong, how often
    the one that is second by that: where there is none, it is wrong. Of places with a known end.
    """
    history, first, second, wrong = TokenHistory(), 0, 0, 0
    for place in range(2, len(text)):
        history.follow(text[:place])
        places, matched = history.occurrences(2, LONGEST_END)
        if not matched:
            continue
        ranked = [token for token, _ in Counter(reversed(history.ids[places].tolist())).most_common(2)]
        first += ranked[0] == text[place]
        wrong += ranked[0] != text[place]
        second += ranked[0] != text[place] and text[place] in ranked[1:]
    return first / max(1, first + wrong), second / max(1, wrong)


def step_cost(num_drafts: int, costs: Mapping[int, float]) -> float:
    """Seconds of a step in those of one without drafts, on lines between measured ones and behind the last two."""
    known = sorted(costs)
    place = next((at for at, count in enumerate(known) if count >= num_drafts), len(known) - 1)
    low, high = known[max(0, place - 1)], known[max(1, place)]
    return costs[low] + (costs[high] - costs[low]) * (num_drafts - low) / (high - low)


def speed(first: float, second: float, costs: Mapping[int, float], level_cost: float) -> float:
    """Of the best tree, tokens a second by those without drafts; at least 1."""
    found = [1.0]
    for num_drafts in range(1, MOST + 1):
        tokens, levels = kept(num_drafts, first, second)
        found.append((1 + tokens) / (step_cost(num_drafts, costs) + level_cost * levels))
    return max(found)


def measured_costs(page: str) -> dict[int, float]:
    """Of one stream, by drafts of a step, from the first table of the page."""
    head, row = (
        re.search(r"^\| streams \| ms without \|.*$", page, re.MULTILINE),
        re.search(r"^\| 1 \| .*%.*$", page, re.MULTILINE),
    )
    if head is None or row is None:
        raise ValueError("the page has no table of the seconds of steps")
    counts = [int(count) for count in re.findall(r"(\d+) drafts", head[0])]
    ratios = [float(ratio) for ratio in re.findall(r"([\d.]+) \(", row[0])]
    return {0: 1.0} | dict(zip(counts, ratios, strict=True))


def main() -> int:
    """Prints what trees bring by chains, for each cost of a level."""
    costs = measured_costs(PAGE.read_text())
    for level_cost in LEVEL_COSTS:
        rows = [
            [f"{second:.0%}"]
            + [
                f"{speed(first, second, costs, level_cost) / speed(first, 0, costs, level_cost):.2f}"
                for first in FIRSTS
            ]
            for second in SECONDS
        ]
        rows.append(["chain by none"] + [f"{speed(first, 0, costs, level_cost):.2f}" for first in FIRSTS])
        print(
            f"a level costs {level_cost} of a step\n{table(['second', *(f'{first:.0%}' for first in FIRSTS)], rows)}\n"
        )
    rows = []
    for name, answers in TEXTS.items():
        words, made = Words(8192), islice(answers(random.Random(1)), COUNTED)
        first, second = guesses([token for answer in made for token in words.ids(answer)])
        gain = speed(first, second, costs, 0.0) / speed(first, 0, costs, 0.0)
        rows.append([name, f"{first:.0%}", f"{second:.0%}", f"{gain:.2f}"])
    print(table(["answers", "first guess", "second guess", "tree by chain"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
