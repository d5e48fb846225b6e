"""Lists the mistakes, or makes the run of one.

    python -m scripts.forms [--set fourth]
    python -m scripts.forms --make DIR FORM [--set fourth] [--arch llama] [--arith f32] [--seed N]    # DIR/model and DIR/dump; FORM `right` is the right engine
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.engines.hooked_engine import Engine, make_model, make_tokens, write_dump
from scripts.forms import SETS


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--set", choices=SETS)
    p.add_argument("--make", nargs=2, metavar=("DIR", "FORM"))
    p.add_argument("--arch", default="llama")
    p.add_argument("--arith", default="f32")
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    sets = [SETS[a.set]] if a.set else list(SETS.values())
    if not a.make:
        for one in sets:
            print(f"{one.name}: {len(one.forms)}, {one.seen}: {one.about}")
            for f in one.forms:
                print(f"    {f.name:36} {f.sites[0]:14} {f.truth}")
        return
    form = next((f for one in sets for f in one.forms if f.name == a.make[1]), None)
    if form is None and a.make[1] != "right":
        p.error(f"no mistake is called {a.make[1]}")
    folder = Path(a.make[0])
    model = make_model(folder / "model", a.arch, a.arith, a.seed)
    ids = make_tokens(a.seed)
    write_dump(folder / "dump", Engine(model, form).run(ids), model, ids)


if __name__ == "__main__":
    main()
