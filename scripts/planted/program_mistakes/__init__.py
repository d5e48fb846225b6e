"""Mistakes that people make when they port a model, made in PyTorch, by what is wrong (a file each): a function's source is rewritten, an attribute set, a weight exchanged.

Each says which causes of docs/reference/why/README.md name it (`unlisted`: none does). A mistake finds its site by the text of the code and by the shapes of weights,
in whatever architecture has such a text; where it finds none it is not plantable there. Nothing here is shared with the product.
`~cause`: gives the same numbers where what stands between two taps was not recorded. Which set a mistake is of: sets.py. Asked by suites/test_program_mistakes.py.
"""

from scripts.planted.program_mistakes import (  # noqa: F401  each adds to its sets
    cache, embedding, experts, gate, head, images, latent, linear, norm, residual, rotation, scores, state_space,
)
from scripts.planted.program_mistakes.sets import SETS, UNLISTED  # noqa: F401
from scripts.planted.program_mistakes.site import Site  # noqa: F401
