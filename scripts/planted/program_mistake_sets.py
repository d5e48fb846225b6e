"""How a set of mistakes is written that has the interface of program_mistakes.py: a set of its own, and the ways to plant a mistake that all sets share."""

import re

import torch

from scripts.planted.program_mistakes import weigh


def new_set():
    """The mistakes of a set by name, empty, and what puts some into it: `mistake`, `text`, `weight`, `held`."""
    mistakes = {}

    def mistake(name, causes):
        """Registers a mistake, with the causes that may be named for it."""
        def keep(plant):
            assert name not in mistakes, name
            mistakes[name] = (plant, set(causes.split()))
            return plant

        return keep

    def text(name, causes, *pairs, one=False, where="", only=lambda site: True):
        mistake(name, causes)(lambda site: only(site) and site.edit(*pairs, one=one, where=where))

    def weight(name, causes, how, test=lambda name, module: True, key="weight"):
        """A weight of the linear layers of one role is another."""
        mistake(name, causes)(lambda site: weigh(site, key, lambda weight, module: how(weight), test))

    def held(name, causes, pattern, how, test=lambda name, module: True):
        """What modules of one role hold under a name is another; None: leave it."""
        @mistake(name, causes)
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

    return mistakes, mistake, text, weight, held
