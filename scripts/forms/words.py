"""Words that an answer may use for one thing: parts of expectations (expected.py)."""

PREVIOUS = "previous|before|t ?- ?1|earlier|last position|one late"
EXCHANGED = "exchang|swap|permut|neighbour|revers"
CLAMPED = "clamp|clip|limit|between|min|max|most|least"
BOUNDED = "clamp|clip|limit|between|min|max|most|least|cap|satur|above|larger|within|beyond|bound|ceiling"
ROUNDED = "round|step|multiple|quanti|grid|level|bit|discret|nearest|truncat|integer|floor"
REORDERED = "exchang|swap|permut|neighbo|revers|order|xor|flip|trad|crossed"
PREVIOUS_OR_SHIFTED = "previous|before|t ?- ?1|earlier|preced|last position|one late|shift|#-1"
BLOCK = "block|tile|group|chunk|multiple|segment|every|each|//|%|mod|floor"
LAYER_BEFORE = "layer.{0,20}(before|previous|l ?- ?1|earlier|preced)|(before|previous|earlier|stale|preced).{0,20}layer|layers\\.[012]\\.|stale"
LAYOUT = "transpos|layout|memory|flat|reshap|strid|major|column|contiguous|order|permut|interleav"
NONE = "\\bnot?\\b|without|\\bun|before|skip|lack|miss|omit|never|lost"
BF16_OR_ROUNDED = "bf16|bfloat|precision|half|significant|mantissa|accumul|" + ROUNDED
ADDED = "add|plus|\\+|sum"
TWICE = "twice|double|two times|second time|again|once more"
SCALES = "scale|factor|size|larg|max|ratio|table"
BF16 = "bf16|bfloat|(eight|8|seven|7) (significant |mantissa |fraction )?(bits|digits)|significant|mantissa|precision"
NEXT = "next|following|(position|token|row|one|slot) (after|later|ahead)|t ?\\+ ?1|one early|shift|\\+ ?1\\b"
OTHER_LAYER = "layer.{0,4}0\\b|layers\\.0|first layer|(other|another|wrong|next|following).{0,12}layer|layer.{0,12}(after|next|\\+ ?1)|layers\\.[123]"
ORDER = "order|permut|interleav|transpos|layout|reshap|strid|major|rearrang|shuffl"
NOT = "\\bnot?\\b|without|lost|lack|miss|omit|never|skip|left out"
ZERO = "zero|\\b0\\b(?!\\.\\d)|nothing|empty|not (written|read|seen|computed|counted|added|used|summed)|lost|missing|left out|dropp|without|skip|hidden|only|alone"
LAYER_0 = "layer.{0,4}0\\b|layers\\.0|first layer"
HALVES_EXCHANGED = "(half|halves|#32|#31) & (" + REORDERED + "|roll|shift|that of|mod|\\+ ?32)"
# What the first of a group of rows, heads or tokens is copied to.
COPIED = "(of|by) (the )?(token|position|row|number)?s? ?2 ?\\*? ?[itv]\\b|(have|has|had|is) (the|that|those)|first|copy|copied|repeat|same|that of|those of|//|floor|even|before"
EIGHT_APART = "(half|halves|#8) & (" + REORDERED + "|roll|shift|that of|mod|\\+ ?8)"
INTERLEAVED = "interleav|2 ?\\*? ?i|even|odd|altern|in turn|every (second|other)|shuffl"
STRIDE = "strid|apart|begin|start|early|earlier|late\\b|later|further|offset|memory|flat|shift|step|pitch|padd|contiguous|reshap|layout|leading dimension|row length|rows? of"
MEMORY = "strid|pitch|memory|reshap|row length|flat|contiguous|leading dimension"
NO_SWAP = "^(?!.*(exchang|swap))"
DECODE = "(#12|decod|generat|(after|behind) the prompt|> ?11|(after|behind) (position )?11)"
NOT_THERE = ("(zero|\\b0\\b(?!\\.\\d| ?(to|-|\\.\\.))|nothing|empty|missing|\\blost|left (out|unset|unwritten)|leaves? out|never|unset|unwritten|omit|skip|drop|without|ignor|hidden|"
     "mask|exclud|"
        "\\bno\\b|not (read|written|summed|added|copied|computed|stored|there|in\\b|used|counted|run|loaded))")
SWAP = "exchang|swap|trade|each other|for another|other way round"
HALF = "((\\bdiv|//?|divided by|over) ?2\\b|>> ?1)"
GONE = ("((\\b(is|are|to|of|counts?|counts? as|factor|holds?|stays?|left|has|have|with|by|becomes?|adds?) |[=:] ?)0\\b(?!\\.\\d|,| ?to|\\.\\.| ?-)|zero|nothing|not |n't"
        "|left out|leaves? out|lost|missing|empty|without|skip|only|alone|hidden|omit|never|unset|drop|ignor|stop)")
BEHIND_PROMPT = "(#12|#11|decod|behind the prompt|after the prompt)"
LOST_OR_ZERO = "(left out|leaves? out|lost|without|not |skip|miss|omit|drop|ignor|zero|\\b0\\b|unread|uncounted|never|lack)"
LEFT_OUT = "\\b0\\b(?!\\.\\d)|zero|nothing|empty|missing|lost|\\bnot\\b|never|left out|leaves? out|omit|drop|skip|without"
LOST_OR_ALONE = ("(\\bnot\\b|\\bno\\b|zero|\\b0\\b(?!\\.\\d)|nothing|without|left out|missing|lost|lack|lose|skip|ignor|drop|unread|unused|never|only|alone|omit|unset|empty|except"
        "|\\bbut the|unwritten)")
ADDED_AGAIN = "(add|plus|\\+|sum|besides|on top|again|twice|once more|accumul|contain|includ|not (cleared|zeroed|reset)|starts? (from|with|at)|beta|extra|second time)"
STEPWISE = "(accumul|running|partial|\\beach\\b|\\bevery\\b|step by step|one by one|along the way|after (a|one) )"
BRANCH_ATTN = "(attn_out|o_proj|attention.{0,15}(output|result|branch)|(output|result|branch) of (the )?attention|output projection)"
BLANK = "(zero|nothing|empty|unset|blank|missing|vanish|(is|are|=|factor|times|by|gives?|reads?|becomes?) 0\\b)"
ROUND = "(round|quanti|multiple|step|grid|nearest|level|int8|int4|fixed.?point|bits)"
EVENS = "(even|\\bodd|2 ?\\*? ?\\(?[ijkc]|pair|interleav|neighbo|adjacent|every second|stride (of )?2|gpt-?j|0, ?2, ?4|alternat)"
UNREAD = ("(zero|\\b0\\b(?!\\.\\d)|nothing|\\bnot\\b|\\bno\\b|without|missing|lost|lack|lose|left out|skip|ignor|drop|unread|unused|never|only|alone|empty|unwritten|unset"
        "|omit|except|cleared|hidden)")
ADDED_MORE = "(add|plus|\\+|\\bsum|besides|on top|again|twice|once more|accumul|contain|includ|not (cleared|zeroed|reset)|beta|extra|second time)"
FROM_12 = "(#12|#11)"
LAYER_BELOW = ("(\\blayer('s)? (before|below|above)|(previous|preceding|earlier|lower|last|prior) layer|layer.{0,12}\\bl ?- ?1|\\bl ?- ?1\\b|one layer (earlier|before|back|behind|lower|late)"
                "|layers? (one|1) (earlier|before|lower|back)|layers\\.\\d\\.(v|context|attn_out)\\b)")
LOST_OR_CUT = "(left out|leav|omit|skip|missing|without|ignor|not |dropp|exclud|lack|zero|only|never|no longer|lost|cut|stop|first 48|reach)"
BIT4 = "(#7|#0.142857|4.?bits?\\b|int4|four.?bits?|q4|15 levels|\\b7ths|sevenths?)"
SUMMED = "(cumul|running|prefix|partial sum|accumul|\\bsums?\\b|adds?\\b|added|plus|not (cleared|reset|zeroed|emptied)|carr(y|ied))"


def n(*numbers):
    """One of these whole numbers, wherever it stands."""
    return "(?<!\\d)(?<!\\d\\.)(" + "|".join(map(str, numbers)) + ")(?!\\d|\\.\\d)"


DECODING = f"({n(12, 11)}|decod)"
GONE_WORDS = ("zero|nothing|\\bnot\\b|n't\\b|\\bno\\b|\\bnone\\b|without|missing|\\bmiss|lost|lack|\\blose|left out|leaves out|skip|ignor|drop|unread|unused|never|empty|unwritten|unset"
        "|omit|cleared|hidden|\\bhide|mask|blind|unseen|invisible|unchanged|absent|discard|exclu")
GONE_OR_ALONE = f"({GONE_WORDS}|only|alone|just|except|\\bbut (for )?the)"
GONE_IN_ONE = f"({GONE_WORDS})"
TWICE_OVER = "(twice|doubl|again|two times|\\b2 ?[x*×·]|[x*×·] ?2\\b|times 2\\b|\\b2 times|factor (of )?2\\b|by (2|two)\\b|once more|second time)"
NORM_SKIPPED = ("(un-?norm|not (been )?(normali|normed)|before (the )?(ffn |feed-forward )?norm|without (the |its |a )?(ffn |feed-forward )?norm|\\bno norm|h_attn|pre-?norm"
            "|raw (residual|stream|hidden|input)|residual (stream|itself|sum)|norm (is |was )?(skipped|omitted|missing|left out|not applied)|ahead of the norm)")
