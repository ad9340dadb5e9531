"""The text that accuracy is measured on where none is given: prose, dialogue, code, numbers, other languages. Fixed."""

from typing import Final

TEXT: Final = '''\
The harbour had been silent for so long that the first horn of the morning made the gulls rise all at once. Anna set
down her cup, counted the boats that were missing, and wrote the number into the book that her father had begun.
There were eleven, as there had been eleven in every spring since the bridge was built. She did not believe in luck,
but she believed in books, and a book that says the same thing forty times is hard to argue with.

"You will want the small one," said the man at the counter, without looking up. "How do you know?" "Because you came
on foot. No customer who came on foot has ever wanted the large one, and I have sold both for nineteen years."

Water boils at one hundred degrees at the level of the sea, and at about ninety-three on a mountain of two thousand
metres, because the air above presses less. That is why an egg takes longer there: it is not the boiling that cooks
it, but the heat.

def median(values):
    """The middle of the sorted values; the mean of the two middle ones if their number is even."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2

The invoice lists 12 chairs at 84.50, 3 tables at 219.00 and delivery at 35.00; the total is 1,706.00, due on 14 March.

| station | trains | late | share |
|---------|-------:|-----:|------:|
| north   |    412 |   31 | 7.5 % |
| harbour |    268 |    9 | 3.4 % |

Der Zug nach Norden fährt heute von Gleis sieben ab und hält nicht in Altenau. Bitte achten Sie auf die Durchsagen.
Le marché ouvre à huit heures ; les fruits sont à gauche, le poisson au fond, et le café se prend debout.
今天的会议改到下午三点，请带上新的图纸。

{"name": "sensor-7", "values": [0.12, 0.15, 0.11], "unit": "mm", "ok": true}

To sum up: measure before you change anything, change one thing at a time, and write down what did not help, since
the next person will otherwise try it again. The cheapest experiment is the one that somebody has already made and
described.
'''
