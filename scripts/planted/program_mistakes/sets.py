"""Defines the sets of mistakes: who wrote them, and what they had seen of the detector. `mistake(third, 12, "name", ..)` is number 12 of the third.

Of what is drawn by chance from a set (suites/test_program_mistakes.py) the numbers are the order.
"""

import re

import torch

from scripts.planted.program_mistakes.parts import weigh

# A cause of its own: no entry of the catalogue says it. Beside another: that entry's words fit, but not surely, or what is done to the operation may be said as well.
UNLISTED = "unlisted"


class Set:
    def __init__(self, name, seen, about):
        self.name, self.seen, self.about, self.numbered = name, seen, about, {}

    def add(self, number, name, plant, causes):
        """Each number and each name once."""
        assert number not in self.numbered and all(other != name for other, *_ in self.numbered.values()), (self.name, number, name)
        self.numbered[number] = name, plant, causes

    @property
    def mistakes(self):
        """What plants each mistake, and the causes that may be named for it; by name, in order."""
        return {name: (plant, causes) for _, (name, plant, causes) in sorted(self.numbered.items())}


SEEN = "seen since its first run"
first = Set("first", "seen while causes were made", "written by those who work on the explainer")
second = Set("second", SEEN, "held back from those who work on the explainer; causes after the words of the catalogue alone, as in the next two")
third = Set("third", SEEN, "written without sight of the code that finds or names any; none repeats one of the sets before")
fourth = Set("fourth", SEEN, "written without sight of that code and of what it answers; none repeats one of the sets before")

SETS = {one.name: one for one in (first, second, third, fourth)}


def mistake(tag, number, name, *causes):
    """Registers what plants a mistake in a set, with the causes that may be named for it."""
    def keep(plant):
        tag.add(number, name, plant, set(" ".join(causes).split()))
        return plant

    return keep


def text(tag, number, name, causes, *pairs, one=False, where="", only=lambda site: True):
    """The text of functions is another."""
    mistake(tag, number, name, causes)(lambda site: only(site) and site.edit(*pairs, one=one, where=where))


def weight(tag, number, name, causes, how, test=lambda name, module: True, key="weight"):
    """A weight of the linear layers of one role is another."""
    mistake(tag, number, name, causes)(lambda site: weigh(site, key, lambda weight, module: how(weight), test))


def held(tag, number, name, causes, pattern, how, test=lambda name, module: True):
    """What modules of one role hold under a name is another; None: leave it."""
    @mistake(tag, number, name, causes)
    def plant(site):
        def value(owner, module):
            return next((tensor for key, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
                         if re.search(pattern, f"{owner}.{key}")), None)

        done = False
        for owner, module in site.role(lambda owner, module: value(owner, module) is not None and test(owner, module)):
            new = how(value(owner, module).detach().clone())
            if new is not None:
                with torch.no_grad():
                    value(owner, module).copy_(new)
                done = site.note(owner)
        return done
