"""Defines the sets of mistakes: who wrote them, and whether the developers of laws have seen them. `third(12, "name", ..)` is number 12 of the third set.

Every set but the first was written by people who had not seen how laws are found; they read public issues and pull requests of ports. docs/measured/laws.md has what was
named of each in its first run, as it was unseen then. Since that run it is seen: a figure of it is no forecast.
"""

from scripts.forms.form import Form

SEEN, OWN = "seen since its first run", "the catalogue's own"


class Set:
    def __init__(self, name, seen, about):
        self.name, self.seen, self.about, self.numbered = name, seen, about, {}

    def __call__(self, number, name, sites, truth, expected, how, **more):
        """Adds a mistake: each number and each name once."""
        assert number not in self.numbered and all(other.name != name for other in self.numbered.values()), (self.name, number, name)
        form = self.numbered[number] = Form(name, sites, truth, expected, how, **more)
        form.set = self

    @property
    def forms(self):
        return [self.numbered[number] for number in sorted(self.numbered)]


first = Set("first", "seen while laws were made", "the laws were made with it; what has no short law too, and two mistakes at once (doubled.py)")
second = Set("second", SEEN, "none repeats one of the first")
third = Set("third", SEEN, "none repeats one of the sets before, as of all up to the ninth")
fourth = Set("fourth", SEEN, "after what public issues of ports report")
fifth = Set("fifth", SEEN, "kernels, caches, quantised blocks and routers of ports, after public issues")
sixth = Set("sixth", SEEN, "plain ones of ports: kernels, caches, split and quantised weights, variants of the rotation, mixtures of experts")
seventh = Set("seventh", SEEN, "plain ones of ports")
eighth = Set("eighth", SEEN, "plain and odd ones of ports: tiles, strides, aliased buffers, packed and split weights, tables, caches, routers")
ninth = Set("ninth", SEEN, "ports to Rust, C++, CUDA, WASM: wrong buffers, strides, caches, byte formats, loops")
tenth = Set("tenth", SEEN, "as a person makes them who ports a decoder, after pull requests")
eleventh = Set("eleventh", SEEN, "the same by two people: numbers to 45, and from 46")
twelfth = Set("twelfth", SEEN, "as they are fixed in pull requests of inference engines, by two people: numbers to 35, and from 36")
thirteenth = Set("thirteenth", SEEN, "by two people: numbers to 35, and from 36")
fourteenth = Set("fourteenth", SEEN, "ports of Llama and Qwen, drawn by how often they are made, by two people: numbers to 60, and from 61")
fifteenth = Set("fifteenth", SEEN, "the same by two others: numbers to 60, and from 61")
sixteenth = Set("sixteenth", SEEN, "the same by two others: numbers to 60, and from 61")
listed = Set("listed", OWN, "mistakes that the catalogue lists, for mixtures with others; what is expected is its id, with its numbers")

SETS = {one.name: one for one in (first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth, eleventh, twelfth, thirteenth, fourteenth, fifteenth, sixteenth, listed)}
