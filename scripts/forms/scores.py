"""Scores: masks, what is done to scaled products, the softmax."""

import math

import numpy as np

from scripts.engines.hooked_engine import d, F32, H, K, sigmoid, softmax, T
from scripts.forms.parts import (
    AGO, bf16, COUNT, DECODED, E_, FIRST_OF_GROUP, HALVED, KEY, LATER_LAYERS, masked, noise, POS, PROMPT, put, QUERY, rows, scored, SEEN, shifted,
)
from scripts.forms.sets import (
    eighth, eleventh, fifteenth, fifth, first, fourteenth, fourth, listed, ninth, second, seventh, sixteenth, sixth, tenth, third, thirteenth,
    twelfth,
)
from scripts.forms.words import (
    BEHIND_PROMPT, BF16, BLOCK, BOUNDED, COPIED, DECODING, HALF, LAYER_BEFORE, LAYOUT, LOST_OR_ZERO, n, NONE, PREVIOUS, PREVIOUS_OR_SHIFTED,
    REORDERED, ROUNDED, TWICE, ZERO,
)

# ---- masks
first(67, "mask_blocks", "probs", "a token sees its own block of 8 tokens alone", "#8 & (block|chunk)", masked(SEEN & (POS[:, None] // 8 == POS[None] // 8)))
first(68, "mask_sinks", "probs", "keys 0 and 1 and the last 6 are seen", "#6 & (#2|#1|first|sink)", masked(SEEN & ((AGO < 6) | (POS[None] < 2))))
first(69, "mask_key_3", "probs", "key 3 is hidden from later tokens", "#3 & (key|hidden|not seen|unseen|without)", masked(SEEN & ((POS[None] != 3) | (AGO == 0))))
first(70, "mask_dilated", "probs", "only every second key is seen, counted back from the token", "(every (second|other|2)|even|stride|dilat|step|multiple|distance) & .", masked(SEEN & (AGO % 2 == 0)))
first(71, "mask_head_open", "probs", "head 2 sees all keys", "head.{0,8}2", lambda c: c.right(mask=np.stack([SEEN, SEEN, SEEN | True, SEEN])))
first(72, "mask_head_windows", "probs", "head h has a window of 4(h+1) keys", "window & head", lambda c: c.right(mask=np.stack([SEEN & (AGO < 4 * (h + 1)) for h in range(H)])))
first(73, "mask_prefix", "probs", "the first 6 tokens see each other", "(#6|#5) & (first|prefix|see|key)", masked(SEEN | ((POS[:, None] < 6) & (POS[None] < 6))))
first(74, "mask_block_end", "probs", "a token sees all keys up to the end of its block of 4", "#4 & (block|chunk|end|multiple|group)", masked(POS[:, None] // 4 >= POS[None] // 4))
first(75, "mask_late_rows", "probs", "tokens from 12 on do not see keys 0 to 4", "#12 & (#5|#4)", masked(SEEN & ~((POS[:, None] >= 12) & (POS[None] < 5))))
first(76, "mask_first_16_keys", "probs", "only the first 16 keys are seen", "#16|#15 & (key|first|beyond|hidden|from)", masked(SEEN & (POS[None] < 16)))
first(77, "mask_odd_layers", "probs", "layers 1 and 3 have a window of 5 keys with key 0 always seen", ["#5 & (first|0|sink|always)", "#5 & from position 1"], masked(SEEN & ((AGO < 5) | (POS[None] == 0))), layers=[1, 3])
first(78, "mask_fourth_keys", "probs", "every fourth key (3, 7, ..) is hidden from later tokens", ["#4|#3 & #7", "4th from position 3"], masked(SEEN & ((POS[None] % 4 != 3) | (AGO == 0))))
first(79, "mask_gap", "probs", "the two keys before the token itself are hidden", "#2|(1 (and|to) 2) & (before|ago|distance|hidden|back)", masked(SEEN & (AGO != 1) & (AGO != 2)))
first(80, "mask_two_rows", "probs", "token 7 sees itself alone", "#7 & (itself|alone|own|only|diagonal|window)", masked(SEEN & ((POS[:, None] != 7) | (AGO == 0))))
first(81, "mask_window_shifted", "probs", "a token sees the keys from 2 to 7 before it, and itself never but for the first two", "#2 & #7", masked(np.where(POS[:, None] < 2, SEEN, (AGO >= 2) & (AGO <= 7))))
first(82, "mask_blocks_local_global", "probs", "heads 0 and 1 see their block of 4 alone, the others all", "#4 & (head|block)", lambda c: c.right(mask=np.stack([SEEN & (POS[:, None] // 4 == POS[None] // 4)] * 2 + [SEEN] * 2)))
first(83, "mask_two_ahead_heads", "probs", "heads 1 and 3 see one key further", ["head & #1 & #3", "odd heads & #1"], lambda c: c.right(mask=np.stack([AGO >= 0, AGO >= -1, AGO >= 0, AGO >= -1])))
first(84, "mask_block_previous", "probs", "a token sees its own block of 5 and the one before", "#5 & (block|chunk)", masked(SEEN & (POS[:, None] // 5 - POS[None] // 5 <= 1)))
first(309, "trap_mask_random", "probs", "a random tenth of the keys is hidden, never the token itself", "random|table|no rule|these keys|cells", lambda c: c.right(mask=SEEN & ((np.abs(noise(c, T, T)) < 1.6) | (AGO == 0))))
second(39, "mask_third_distances", "probs", "keys at distances 2, 5, 8 .. are hidden", "#3|third|#2 & #5", lambda c: c.right(mask=SEEN & (AGO % 3 != 2)))
second(40, "mask_odd_rows_without_self", "probs", "odd positions do not see themselves", "odd|every second|alternat", lambda c: c.right(mask=SEEN & ~((AGO == 0) & (POS[:, None] % 2 == 1))))
second(41, "mask_windows_by_layer", "probs", "layer l sees 4 (l + 1) keys", "#4 & (layer|#8|#12)|window", lambda c: c.right(mask=SEEN & (AGO < 4 * (c.l + 1))))
second(42, "mask_open_from_14", "probs", "positions from 14 on see all keys", "#14 & (all|later|future|seen|every)", lambda c: c.right(mask=SEEN | (POS[:, None] >= 14)))
second(43, "mask_head_1_even_keys", "probs", "head 1 sees even keys alone", "head.{0,6}\\b1\\b", lambda c: c.right(mask=np.stack([SEEN & ((POS[None] % 2 == 0) | (h != 1)) for h in range(H)])))
second(44, "mask_middle_keys", "probs", "keys 5 to 7 are hidden from positions behind them", "#5 & #7", lambda c: c.right(mask=SEEN & ~((POS[None] >= 5) & (POS[None] <= 7) & (AGO > 2))))
second(45, "mask_far_in_odd_layers", "probs", "in layers 1 and 3 keys 3 to 9 back are hidden", "#3 & (#9|#10)", lambda c: c.right(mask=SEEN & ((AGO < 3) | (AGO > 9))), layers=[1, 3])
third(33, "m_no_own_tile", "probs", "a token sees the blocks of 4 keys before its own, and itself", ["#4 & (" + BLOCK + ")"], masked(SEEN & ((KEY // 4 < QUERY // 4) | (AGO == 0))))
third(34, "m_chunk_open", "probs", "tokens from 12 on see each other: the second chunk has no mask within", ["#12 & (see|each other|later|ahead|all|open|future|key|quer|position|after)"], masked(SEEN | ((QUERY >= 12) & (KEY >= 12))))
third(35, "m_chunk_offset_lost", "probs", "tokens t from 12 on see keys up to t - 12 alone", ["#12 & (key|offset|see|up to|position|t ?-|quer|distance|before|ago)", "#-12"], masked(np.where(QUERY >= 12, KEY <= QUERY - 12, SEEN)))
third(36, "m_multiplied", "probs", "later keys have a score of 0 and are not hidden", ["(hidden|mask|later|future|unseen|ahead|not seen|after|all keys|above) & (#0|zero)"], lambda c: c.right(mask=SEEN | True, score=lambda s: np.where(SEEN, s, 0)))
third(37, "m_soft", "probs", "later keys have 4 taken off their score and are not hidden", ["(hidden|mask|later|future|unseen|ahead|not seen|after|all keys|above|beyond) & (#4|#-4)"], lambda c: c.right(mask=SEEN | True, score=lambda s: s - 4 * ~SEEN))
third(38, "m_vector_tail", "probs", "from token 3 on the number of keys seen is rounded down to a multiple of 4", ["#4 & (" + BLOCK + "|round|down|tail|rest|remain|whole|floor)"], masked(SEEN & (KEY < np.maximum((QUERY + 1) // 4 * 4, 4))))
third(39, "m_odd_tiles", "probs", "keys 4 to 7 and 12 to 15 are hidden from later tokens: every second block of 4", ["#4 & (#12|second|odd|altern|other|" + BLOCK + ")"], masked(SEEN & ((KEY // 4 % 2 == 0) | (AGO == 0))))
third(40, "m_symmetric", "probs", "a token sees the keys at most 3 away, before and after it", ["(#3|#4) & (distance|away|window|both|either|after|later|ahead|before|side|\\|)"], masked(np.abs(AGO) <= 3))
third(41, "m_upper", "probs", "a token sees itself and later keys alone: the mask is transposed", ["later|after|future|transpos|upper|from itself on|ahead|s ?>=? ?t|t ?<=? ?s|backward|revers"], masked(AGO <= 0))
third(42, "m_ahead_from_10", "probs", "tokens from 10 on see one key further", ["#10 & (#1|one|next)", "(second half|half).{0,12}quer & (#1|one|next)"], masked(SEEN | ((QUERY >= 10) & (AGO == -1))))
third(66, "p_masked_after", "probs", "the softmax runs over all 20 keys, and later ones are set to 0 after it: a row's sum is less than 1", ["after & (mask|hidden|later|soft)", "(denominator|sum|softmax|divid|normali) & (all|hidden|later|future|mask|unseen|#20|whole|every)"], lambda c: np.where(SEEN, c.right(mask=SEEN | True), 0))
fourth(37, "m_strict", "probs", "a token does not see itself, but for the first", ["itself|\\bown\\b|self|diagonal|newest|current|strict", "(distance|ago|before|t ?- ?s|from) & (#1|#0)"], masked(np.where(QUERY == 0, SEEN, AGO >= 1)))
fourth(38, "m_layer_0_open", "probs", "layer 0 has no mask: tokens see all keys, later ones too", ["(\\bno\\b|not|without|un|all|every|later|future|both|bidirection|open).{0,30}(mask|keys|causal|hidden|see|token|direction)", "(mask|keys|causal).{0,30}(\\bno\\b|not|without|all|every|later|future|both|open)"], masked(SEEN | True), layers=[0])
fourth(40, "m_packed_heads", "probs", "token t sees keys up to 2t in even heads and 2t+1 in odd heads: rows of the two heads of a group are counted as positions", ["(#2|double|twice|even|odd) & (head|key|position|see|t\\b|quer|later|ahead)"], lambda c: c.right(mask=np.stack([KEY <= 2 * QUERY + h % 2 for h in range(H)])))
fourth(41, "m_evicted", "probs", "keys before position 12 are hidden from all later tokens: only the last 8 are kept", ["(#12|#11) & (key|hidden|see|seen|window|before|evict|unseen|from|itself)", "#8 & (last|key)"], masked(SEEN & ((KEY >= 12) | (AGO == 0))))
fourth(42, "m_tile_skipped", "probs", "a token does not see the four keys of the block before its own block of 4", ["(#4|four) & (" + BLOCK + "|before|previous)"], masked(SEEN & (KEY // 4 != QUERY // 4 - 1)))
fourth(43, "m_padding_token", "probs", "keys 4 and 9, which are the same token, are hidden from later tokens as padding", ["#4 & #9"], masked(SEEN & (((KEY != 4) & (KEY != 9)) | (AGO == 0))))
fifth(85, "mm_window_layers", "probs", "layers 2 and 3 have a window of 8 keys", ["(#8|#7) & (window|distance|last|ago|before|back|key|recent|see)"], masked(SEEN & (AGO < 8)), layers=[2, 3])
fifth(86, "mm_tile_transposed", "probs", "within its own block of 4 a token sees itself and later keys, not earlier ones; of earlier blocks all", ["(#4|four) & (" + BLOCK + ") ", "(#4|four) & (transpos|later|ahead|diagonal)"], masked((KEY // 4 < QUERY // 4) | ((KEY // 4 == QUERY // 4) & (AGO <= 0))))
fifth(87, "mm_odd_heads_strict", "probs", "heads 1 and 3 do not see the token itself, but for the first", ["(odd|head|#1 & #3|every (second|other)) & (itself|\\bown\\b|self|diagonal|newest|current|strict|#0|#1)"], lambda c: c.right(mask=np.stack([SEEN, np.where(QUERY == 0, SEEN, AGO >= 1)] * 2)))
fifth(88, "mm_bos_hidden", "probs", "key 0 is hidden from later tokens", ["(key|position|token|column).{0,12}\\b0\\b|first (key|token|position|column)|keys? (from|begin).{0,12}\\b1\\b|bos"], masked(SEEN & ((KEY > 0) | (AGO == 0))))
fifth(89, "mm_image", "probs", "tokens 5 to 9 see each other", ["#5 & (#9|#10)"], masked(SEEN | ((QUERY >= 5) & (QUERY <= 9) & (KEY >= 5) & (KEY <= 9))))
fifth(90, "mm_documents", "probs", "tokens from 9 on do not see keys 0 to 8", ["(#9|#8) & (key|hidden|see|seen|before|from|block|segment|document|reset)"], masked(SEEN & ((QUERY < 9) | (KEY >= 9))))
fifth(91, "mm_head_3_short", "probs", "head 3 sees the first 8 keys alone", ["(head.{0,8}3|last head|#3 & head) & (#8|#7)"], lambda c: c.right(mask=np.stack([SEEN, SEEN, SEEN, SEEN & (KEY < 8)])))
fifth(92, "mm_window_in_tiles", "probs", "a token sees keys from the begin of the block of 4 that is 8 before it", ["(#4|four|#8) & (window|distance|last|before|" + BLOCK + ")"], masked(SEEN & (KEY // 4 >= (QUERY - 8) // 4)))
fifth(93, "mm_global_heads", "probs", "heads 2 and 3 have a window of 3 keys", ["(#2 & #3|second half of the heads|head) & (window|distance|last|ago|before|back|recent|key) & (#3|#2)"], lambda c: c.right(mask=np.stack([SEEN, SEEN, SEEN & (AGO < 3), SEEN & (AGO < 3)])))
sixth(59, "m6_window", "probs", "layers 0 and 2 have a window of 6 keys", ["(#6|#5|six|five) & (window|distance|last|ago|before|back|key|recent|see|newest)"], masked(SEEN & (AGO < 6)), layers=[0, 2])
sixth(60, "m6_one_ahead", "probs", "each token sees one key further: that of the next token", ["(#1|#-1|#2|one\\b|next|following) & (later|ahead|future|further|next|following|beyond|diagonal|after)", "#-1 & (distance|ago|see)"], masked(AGO >= -1))
sixth(62, "m6_left_padding", "probs", "keys 0 to 2 are hidden from later tokens, as padding", ["(#2|#3|three) & (first|from|below|pad|0 ?(to|-|\\.\\.) ?2|0, ?1|up to) & (key|position|token|pad|column)"], masked(SEEN & ((KEY >= 3) | (AGO == 0))))
sixth(63, "m6_chunks", "probs", "a token sees its own chunk of 10 tokens alone", ["(#10|#9|ten) & (" + BLOCK + "|own|half|hidden|see|from|key|before)", "(second half|halves|own half).{0,60}(half|hidden|key|see)"], masked(SEEN & (QUERY // 10 == KEY // 10)))
seventh(41, "m7_window", "probs", "all layers have a window of 10 keys", ["(#10|#9|ten|nine) & (window|distance|last|ago|before|back|key|recent|see|newest)"], masked(SEEN & (AGO < 10)))
eighth(56, "m8_bits_reversed", "probs", "within each 8 keys the mask is mirrored: a token sees key 8b + i where it should see key 8b + 7 - i: bits are in reverse order",
           ["(#8|#7|eight) & (revers|mirror|backward|\\border|\\bbits?\\b|7 ?-)"], masked(KEY // 8 * 8 + 7 - KEY % 8 <= QUERY))
eighth(57, "m8_tile_numbers", "probs", "a token sees earlier keys of blocks of 4 whose number is at most that of its own block of 8: tokens from 4 on do not see themselves",
           ["(#8|eight) & (#4|four) & (block|tile|floor|//|number|half)", "(#4|#3) & (#11|#12) & (#7|#8)", "half (of )?(the|its|as many).{0,20}(position|keys|tokens|block)"],
           masked(SEEN & (KEY // 4 <= QUERY // 8)))
eighth(58, "m8_draft", "probs", "tokens from 16 on see themselves and keys before 16, but not each other: as branches of a tree of drafts",
           ["(#16|#15|#19) & (itself|themselves|\\bown\\b|self|each other|branch|tree|distance|diagonal)"], masked(SEEN & ((QUERY < 16) | (KEY < 16) | (AGO == 0))))
eighth(59, "m8_later_tiles", "probs", "a token sees, besides what it should, all keys of later blocks of 8: the mask is applied in its own block alone",
           ["(#8|eight) & (later|future|ahead|after|beyond|following|all) & (" + BLOCK + "|see|seen|hidden)"], masked(SEEN | (KEY // 8 > QUERY // 8)))
tenth(39, "mask_tile_start", "probs", "the loop over keys ends where the query's tile of 4 begins: query t sees keys 0 to 4 floor(t / 4)",
          ["(#4|four) & (start|begin|floor|round|down|//|t ?% ?4|first of|multiple|lower|(own|same).{0,20}(block|tile|group|chunk)) & ^(?!.*\\bend of)"], lambda c: c.right(mask=POS[None] <= POS[:, None] // 4 * 4))
tenth(40, "mask_second_chunk_alone", "probs", "the second chunk of the prompt, from position 12 on, does not see the first",
          ["#12 & #11", "#12 & (block|chunk|segment|document|\\bown\\b|before it|(before|below|under|<|less than) ?(key |position )?12|first (12|chunk|part)|keys? (before|below)|none before|>= ?12)"], lambda c: c.right(mask=SEEN & ~((POS[:, None] >= 12) & (POS[None] < 12))))
DECODED_QUERIES = POS[:, None] >= PROMPT
eleventh(34, "mask_decode_window", "probs", "decode steps alone have a window: from position 12 on a token sees the last 8 keys, its own among them",
             ["(#12|#11) & (#8|#7) & (window|last (8|eight|7|seven)|see|hidden|hide|distance|ago|back|older|farther|further) & ^(?!.*(window (of |is |= ?)?7\\b|last (7|"
              "seven) keys(?!.{0,30}(itself|own|before|beside))|block|chunk|ahead|(up to|before|until) (position )?1[12]\\b[^.;:,]{0,30}window|to 11[^.;:,]{0,20}window))"],
             lambda c: c.right(mask=SEEN & (~DECODED_QUERIES | (AGO < 8))))
eleventh(35, "mask_tail_keys_lost", "probs", "keys go by whole vectors of 4 and the tail is lost: token t sees the keys below 4 floor((t + 1) / 4), tokens 0 to 2 what they should",
             ["(#4|four) & (multiple|whole|full|complete|group|block|tile|tail|// ?4|/ ?4|remain|(%|mod) ?4|vector|down|chunk|batch) & (hidden|lost|not (seen|read)|unseen|skip|left out|"
              "drop|missing|ignored|below|less than|<|whole|full|complete|\\(t ?\\+ ?1\\) ?//? ?4|floor|down|incomplete|unfinished) & (key|see|mask|s\\b) & "
              "^(?!.*(end of (its|the) (own )?block|rounded up|next block|future|later keys|// ?4 ?\\* ?4 ?\\+|4 ?\\*? ?\\(?(floor\\()?t ?//? ?4|start of (its|the)|(before|below) (its|"
              "the) (own )?(block|tile|group)|block[^.;:,]{0,12}(alone|only)|every fourth|4th))"],
             lambda c: c.right(mask=SEEN & ((POS[None] < (POS[:, None] + 1) // 4 * 4) | (POS[:, None] < 3))))
eleventh(36, "mask_bits_reversed", "probs", "the mask is packed, and its bits are taken from the wrong end of each byte: for key s it looks at that of 8 floor(s / 8) + 7 - s mod 8",
             ["[sjk] ?(\\^|xor) ?7\\b|7 ?- ?\\(?[sjk] ?(%|mod|& ?7)", "(revers|mirror|backward|from (the|its|their) (wrong |high |other )?(last|end)|most significant|\\bMSB|big.?endian|"
              "opposite (order|end)|wrong end) & (#8|byte|eight|#7) & (key|mask|bit|\\bs\\b|column) & ^(?!.*(quer|rows?\\b|head|16 keys|blocks (of 8 )?in reverse))"],
             lambda c: c.right(mask=(POS[None] ^ 7) <= POS[:, None]))
eleventh(37, "mask_head_0_alone", "probs", "the mask is not broadcast: head 0 alone has it, heads 1 to 3 see later keys too",
             ["((head.{0,8}\\b0\\b|first head).{0,40}(alone|only)|(only|alone).{0,20}(head 0|first head)|(#1 & #2 & #3)|heads? (from 1|1 to 3|1-3|1 and (on|later|up)|(>=|≥) ?1|> ?0)|"
              "heads.{0,12}(other than|but|except|behind|after).{0,12}(head|0|first)|other heads|last (3|three) heads) & (mask|see|future|later|causal|open|hidden|all keys) & "
              "^(?!.*(head 0 (alone |only )?(sees|is open|is not|is un|has no|has an open)|only (head 0|the first head) sees|first head (alone )?sees|(in|for|of) head 0 (alone|"
              "only),? (all|later|future)|(not|un)masked (in|for) head 0|window|block|heads 0 and 1|one key (further|more)|keys? 0))"],
             lambda c: c.right(mask=np.stack([SEEN] + [SEEN | True] * (H - 1))))
twelfth(25, "mask_packed_rows", "probs", "rows of a group's two heads are packed, and the packed row's number is the mask's: query t of head h sees keys 0 to 2t + (h mod 2)",
            ["(2 ?\\*? ?([tpiqr]\\b|pos|\\(?the pos|the (token|query))|twice|doubl|times (2|two)|[tpiq] ?\\*? ?2\\b) & (h(ead)? ?(mod|%|&) ?[12]|head number (mod|%)|odd heads?"
             "|heads? 1 and 3|within (the|its) group|(number|index|place|second|member) (in|of) (the|its|each|a) (group|pair)|\\+ ?g\\b|t ?\\+ ?g)"
             " & ^(?!.*((even heads|heads 0 and 2)[^.;,]{0,30}2 ?t ?\\+ ?1|half|window|h (div|//)))"],
            lambda c: c.right(mask=np.stack([POS[None] <= 2 * POS[:, None] + h % (H // K) for h in range(H)])))
TILED = SEEN & ((POS[:, None] == 0) | (POS[None] < -(-POS[:, None] // 8) * 8))
OWN = "itself|themselves|\\bown\\b(?! (max|sum|denominator|root|rms|divisor))|diagonal|\\bself\\b|distance (of |is )?0\\b|newest|s ?(<|!=|==?) ?t\\b|key t\\b|their key"
twelfth(26, "mask_tile_count", "probs", "tiles of 8 keys are counted for t keys, not t + 1: queries 8 and 16 do not see their own key, for which a tile would begin",
            [f"(#8 & #16)|(#8 & (multiple|every|mod\\b|%|first of|first (row|query|token)|begin|start)) & ({OWN}) & (not|hid|miss|without|unseen|lose|lost|except|never|masked|cannot"
             f"|no longer|left out|s ?< ?t)"
             " & ^(?!.*((itself|themselves|own key|their own|self|diagonal) (alone|only)|only (itself|themselves|their own|the diagonal)|every (4|four)|multiples? of (4|four)|\\b4\\b"
             "|\\b12\\b|\\b7\\b|next key))"],
            lambda c: c.right(mask=TILED))
twelfth(27, "mask_row_of_pair", "probs", "two queries share one row of the mask, that of the first: odd queries do not see their own key",
            [f"(odd|2 ?\\w ?\\+ ?1|every (second|other|2nd)|1, ?3, ?5|(mod|%) ?2 ?==? ?1) & ({OWN}|(mask|row|one) (of|before)|2 ?[itkq]\\b(?! ?\\+)|s ?<=? ?t ?- ?1) & (not|hid|miss"
             f"|without|unseen|lose|lost|except|never|masked|cannot|left out|s ?< ?t|up to|to 2 ?\\w\\b|mask (row )?of|row of|s ?<= ?t ?- ?1)"
             " & ^(?!.*(even (queries|tokens|positions|rows|ones)[^.;,]{0,30}(not|hid|miss|without|lose|cannot|never)|(itself|themselves|their own|own key) (alone|only)|only (itself"
             "|themselves|their own)|further|ahead|future|odd (keys|heads)|heads? [0-3]))",
             f"(up to|sees?|to|<=|at most|limit|mask|row)[^;]{{0,30}}(2 ?\\*? ?\\(?(\\w|floor\\(\\w) ?{HALF}|\\w ?- ?\\(?\\w ?(mod|%|&) ?[12]\\b|\\w ?& ?~ ?1|2 ?\\*? ?floor)", "(pair"
             "|two)[^;]{0,60}(mask|row) of (the |its |their )?(first|even|earlier|lower|2i\\b)"],
            lambda c: c.right(mask=SEEN[POS // 2 * 2]))
thirteenth(25, "mask_row_of_head", "probs", "the mask [T,T] is broadcast over [H,T,T] at the wrong axis: head h sees keys 0 to h, whatever the query",
               ["head & (0 ?(to|-|\u2013|\\.\\.+|through) ?h\\b|(s|key|j|k) ?<=? ?h\\b|(up to|until|through|below) (its|their|the) (own )?(head'?s? )?(number|index)|(up to|until|through) (key )?h\\b|h ?\\+ ?1\\b|(number|index) of the head|head'?s? (number|index)|by (the )?head)",
                "head 0.{0,40}key 0.{0,60}head 1.{0,40}(key 1|0 (to|and) 1|0, ?1|2 keys|two keys)", "head 3.{0,40}(0 ?(to|-|\u2013|\\.\\.+) ?3|first (4|four)|4 keys|four keys|0, ?1, ?2, ?3)"],
               lambda c: c.right(mask=np.broadcast_to(POS[None, None] <= np.arange(H)[:, None, None], (H, T, T))))
thirteenth(26, "mask_last_column_open", "probs", "the loop that hides later keys ends one too early: key 19, the last, is seen by all",
               ["(key.{0,8}\\b19\\b|column.{0,8}\\b19\\b|s ?= ?19|last (key|column|token|position)|newest (key|token)|\\b19\\b.{0,12}(key|column|is seen)) & (sees?|seen|open|not (hidden|masked)|visible|unmasked|never (hidden|masked)|attend|leak|take part) & "
                "^(?!.*(key|column).{0,12}(19|last).{0,12}(is|are) (hidden|masked|not seen|unseen))"], masked(SEEN | (POS[None] == T - 1)))
thirteenth(27, "mask_decode_length_stays", "probs", "the number of keys is that of the prompt in decode steps: queries from 12 on see keys 0 to 11 alone",
               ["(#11|first (12|twelve)|#12|prompt'?s?) & (key|see|column) & (0 ?(to|-|\u2013|\\.\\.+|through) ?11|first (12|twelve)|below 12|before 12|up to (key )?11|< ?12|<= ?11|min\\(|prompt|at most 11) & ^(?!.*(12 (queries|rows)|window))",
                "(keys?|columns?).{0,12}(12|twelve) ?(on|to 19|and|-|\u2013|\\.\\.).{0,50}(hidden|not seen|never seen|unseen|masked|no weight|left out|invisible|weight 0)", "(keys?|columns?).{0,8}(from|at|beyond|behind|after|past|>=?) ?(key |position )?(11|12).{0,60}(hidden|not seen|never seen|unseen|masked|no weight|left out|invisible)",
                "(no|never).{0,20}(keys?|columns?).{0,20}(from|beyond|past|>=?|after|behind) ?(11|12)"],
               masked(SEEN & (POS[None] < PROMPT)))
AHEAD = POS[None] - POS[:, None]
thirteenth(28, "mask_scalar_store", "probs", "the loop over later keys goes by four but hides one: keys t + 1, t + 5, t + 9, .. are hidden, the others ahead are seen",
               ["(#4|four|fourth|4th) & (later|future|ahead|after|behind|beyond|next|s ?- ?t|[tq] ?\\+ ?1|s ?> ?t|distance|causal) & (hidden|hides?|seen|sees?|mask|open|visible) & ([tq] ?\\+ ?1|#5|#-5|#1|#-1|one|first) & ^(?!.*(block|chunk)s? of (4|four))",
                "[tq] ?\\+ ?1\\b & [tq] ?\\+ ?5\\b & (hidden|mask|seen|hides?)", "\\b1, ?5,? (and )?9 & (hidden|mask|seen|hides?)"], masked(SEEN | (AHEAD % 4 != 1)))
fourteenth(43, "mask_window_even_layers", "probs", "a sliding window of 7 keys is left in, in layers 0 and 2",
               ["#7 & (window|last|recent|newest|keys|distance|sees?|seen|behind|back|before|ago|away|t ?- ?s) & ^(?!.*(\\b(from )?[1-6] to 7|(token|query|row|position) 7|never))",
                "#6 & (distance|ago|back|before|behind|away|t ?- ?s|further) & ^(?!.*(\\b(from )?[1-5] to 6|(token|query|row|position) 6|never))"],
               lambda c: c.right(mask=SEEN & (AGO < 7)), layers=[0, 2])
fourteenth(44, "mask_keys_rounded_down", "probs", "the number of keys is rounded down to a multiple of 4, from 4 keys on: the last 1 to 3 of them, the token's own too, are not seen",
               ["(#4|\\bfour\\b) & (multiple|block|floor|rounded down|rounds down|\\bdiv\\b|//|group|complete|full|whole|chunk|tile|\\bmod|%|tail|remainder)"
                " & ^(?!.*(end of (its|their|the token's|the own|the query's) (own )?(block|group|chunk|tile)|rounded up|rounds up|ceil|own block|block of 4 alone))"],
               lambda c: c.right(mask=(POS[None] < np.where(POS < 3, POS + 1, (POS + 1) // 4 * 4)[:, None])))
fourteenth(45, "mask_first_as_padding", "probs", "the first token is taken for padding: key 0 is hidden from all tokens but itself",
               ["(keys?.{0,10}\\b0\\b|first (key|token|position)|\\bBOS\\b|(token|id) 1\\b) & (hidden|not seen|unseen|masked|without|left out|excluded|missing"
                "|skip|invisible|padd|not attended|never"
                "|not visible|lost)", "(begin|start)\\w* (at|with|from) (key )?1\\b|keys (from )?1 (on|to t|\\.\\. ?t)"],
               lambda c: c.right(mask=SEEN & ((POS[None] > 0) | (AGO == 0))))
fourteenth(46, "mask_finite_fill", "probs", "the mask adds -5.5 to scores of later keys, not minus infinity",
               ["(#-5.5|#5.5) & (mask|future|later|unseen|ahead|hidden|s ?> ?t|above the diagonal|behind|finite|not (yet )?seen|not causal)"],
               lambda c: c.right(mask=SEEN | True, score=lambda s: s - F32(5.5) * (AGO < 0)))
fifteenth(39, "mask_window_upper_layers", "probs", "sliding_window is obeyed though use_sliding_window is false, from max_window_layers on: layers 2 and 3 see the last 8 keys",
              ["#8 & (window|last|recent|newest|nearest|distance|\\bago|back|only.{0,16}keys|[ts] ?- ?8)", "#7 & (back|\\bago|distance|earlier|[ts] ?- ?7|before|behind)"],
              lambda c: c.right(mask=SEEN & (AGO < 8)), layers=[2, 3])
ITSELF = "(itself|\\bown\\b|self|themsel|diagonal|newest|distance (is )?0|s ?= ?t|s ?== ?t|key t\\b|s ?< ?t)"
fifteenth(40, "mask_blocks_one_short", "probs", "the number of key blocks is ceil(t / 8), not ceil((t + 1) / 8): tokens 8 and 16 do not see themselves",
              ["#8 & (#16|multiple|every|\\bmod|%|eighth) & " + ITSELF],
              lambda c: c.right(mask=SEEN & ~((AGO == 0) & (POS[:, None] % 8 == 0) & (POS[:, None] > 0))))
fifteenth(41, "mask_tile_start", "probs", "the mask of a tile of 4 queries is that of its first: token t sees keys up to 4 (t // 4)",
              ["(#4|four) & (start|first|//|floor|down|begin|(last|largest|nearest|previous|at most the|up to (the|a)|preceding).{0,16}multiple|[tp] ?- ?\\(?[tp]|[tp] ?% ?4|[tp] mod ?4)"],
              lambda c: c.right(mask=POS[None] <= POS[:, None] // 4 * 4))
PAST_ALL = "(\\ball\\b|every|future|later keys|whole|any key|causal|no mask|unmasked|without|s ?> ?t|ahead|to come|#19|bidirectional|mask-omitted)"
fifteenth(42, "mask_second_chunk_open", "probs", "a mask is made for the first chunk alone: tokens from 12 on see every key",
              ["(#12|#11) & " + PAST_ALL],
              lambda c: c.right(mask=SEEN | (POS[:, None] >= PROMPT)))
fifteenth(43, "mask_of_ones_added", "probs", "the mask of ones and zeros is added to the scores: the future is seen, and what may be seen has 1 added",
              ["(future|later|\\ball keys|every key|no mask|mask.{0,24}(omit|not|add)|unmasked|causal|s ?> ?t|ahead|to come|distance (below|under|less|<) ?0|negative distance|mask-omitted)"
               " & #1 & (add|plus|\\+|higher|more|bonus|bias|less|lower|[-\u2212] ?1\\b|greater|taken off|minus)"],
              lambda c: c.right(mask=np.ones((T, T), bool), score=lambda s: s + SEEN))
fifteenth(44, "mask_first_as_padding", "probs", "the first token's id is taken for that of padding: key 0 is hidden from all later tokens",
              ["(keys?.{0,8}\\b0\\b|first key|key zero|first (token|position)|\\bbos\\b)"
               " & (hidden|not seen|unseen|mask|never|without|left out|ignored|drop|exclu|except|\\bbut\\b|skip|\\bfrom 1\\b|not see|see no|missing|omit|weight 0|is 0\\b|zero)"],
              lambda c: c.right(mask=SEEN & ((POS[None] > 0) | (AGO == 0))))
fifteenth(45, "mask_decoded_keys_not_kept", "probs", "decode steps do not store their keys: tokens from 12 on see the prompt's 12 keys and themselves",
              ["(#12|#11|#13) & (itself|\\bown\\b|self|themsel|diagonal|distance (is )?0|s ?= ?t|s ?== ?t|not (stored|kept)|never (stored|kept)|between)"],
              lambda c: c.right(mask=SEEN & ((POS[None] < PROMPT) | (AGO == 0))))
fifteenth(46, "mask_rows_of_group", "probs", "the two query heads of a key head are laid in one tile, and its row 2t + g is taken for the token: head h sees keys up to 2t + h mod 2",
              ["(2 ?\\*? ?[tp]\\b|twice|doubl|[tp] ?\\+ ?[tp]\\b) & (head|\\bodd|group|\\bh\\b)"],
              lambda c: c.right(mask=np.stack([POS[None] <= 2 * POS[:, None] + h % 2 for h in range(H)])))
sixteenth(41, "mask_window_in_upper_layers", "probs", "the sliding window of the configuration is applied though it is switched off: from layer 2 on a query sees only the last 6 keys, "
              "its own among them",
              ["window.{0,30}\\b(6|six)\\b|\\b(6|six)\\b.{0,40}(window|keys|last|newest|nearest|recent|positions|or more|tokens|back)|(last|newest|nearest|recent) (6|six)\\b|(distance|ago"
               "|back|away|t ?[-\u2212] ?s|behind|older).{0,24}(((<=|\u2264|up to|at most|more than|0.{1,5}|>|over|beyond|further than) ?5\\b)|((<|less than|below|>=|\u2265|at least|from"
               "|of) ?6\\b))|\\b6\\b.{0,24}(away|ago|back|behind|older|earlier)|\\b(more than|beyond|over|up to|at most) 5\\b.{0,24}(away|ago|back|behind|older|earlier)"],
              lambda c: c.right(mask=SEEN & (AGO < 6)), layers=[2, 3])
sixteenth(42, "mask_by_whole_tiles", "probs", "tiles past the diagonal are skipped and there is no mask within a tile: a query sees all keys to the end of its own tile of 4",
              ["(\\b4\\b|\\bfour\\b) & (tile|block|group|chunk|//|multiples? of (4|four)|floor|ceil|round\\w* (up|down))"],
              lambda c: c.right(mask=POS[:, None] // 4 >= POS[None, :] // 4))
sixteenth(43, "mask_by_smallest_positive", "probs", "the mask is the smallest positive float and not the lowest: a key to come has a score of 1.2e-38, so 0, and takes part in the softmax",
              ["(future|mask\\w* (key|score|position|entr|value|one|place|pair|with|out|by)|unseen|later|ahead|s ?> ?t|t ?< ?s|to come|upper|hidden|forbidden|above the diagonal"
               "|after) & (zero|\\b0(\\.0*)?\\b|FLT_MIN|1\\.1\\d*e-38|1\\.2e-38|smallest positive)"],
              lambda c: c.right(mask=np.ones((T, T), bool), score=lambda s: np.where(SEEN, s, 0)))
listed(17, "no_mask", "probs", "the future seen", "mask-omitted", lambda c: c.right(mask=np.ones((T, T), bool)))

# ---- scores
first(85, "score_alibi", "probs", "0.1 is taken off for each key of distance", "#0.1|#-0.1 & (distance|position|alibi|slope|t ?- ?s|per key|each key|key)", scored(lambda s: s - 0.1 * AGO))


def by_head(values):
    return np.asarray(values, F32)[:, None, None]


first(86, "score_alibi_heads", "probs", "ALiBi of slopes 1/4, 1/16, 1/64, 1/256", "#-0.25|#0.25 & #-0.0625|#0.0625 & distance", scored(lambda s: s - by_head([0.25, 0.0625, 0.015625, 0.00390625]) * AGO))
first(87, "score_diagonal", "probs", "1 is added to the score of a token with itself", ["(distance|diagonal|itself|self) & #1|#-1"], scored(lambda s: s + (AGO == 0)))
first(88, "score_key_0", "probs", "2 is added to the scores of key 0", ["#2 & (key.{0,6}0|first key)", "#-2 & all keys but the first"], scored(lambda s: s + 2 * (POS[None] == 0)))
first(89, "score_log_scale", "probs", "scores of token t are multiplied by log2(t + 2)", "(log|position|token)", scored(lambda s: s * np.log2(POS[:, None] + 2)))
first(90, "score_head_scale", "probs", "the scale of head 1 is twice as large", "head.{0,8}1 & (#2|#0.5|twice|double)", scored(lambda s: s * by_head([1, 2, 1, 1])))
first(91, "score_clamped", "probs", "scores are clamped to +-1", "#1 & (clamp|clip|limit|between|min|max|most)", scored(lambda s: np.clip(s, -1, 1)))
first(92, "score_relu", "probs", "negative scores are 0", "relu|max\\(|negative|below|floor|least", scored(lambda s: np.maximum(s, 0)))
first(93, "score_abs", "probs", "the absolute value of the scores is taken", ["abs|\\|.{1,8}\\||magnitude|without.{0,10}sign", "size"], scored(np.abs))
first(94, "score_square", "probs", "scores are squared", "squar|\\^ ?2|quadratic|power", scored(lambda s: s * s))
first(95, "score_layer_scale", "probs", "scores are divided by layer + 1", ["layer", "#0.125|#0.08333|#0.0625|1/sqrt\\(D\\)"], lambda c: c.right(scale=c.scale / (c.l + 1)), layers=[1, 2, 3])
first(97, "score_distance", "probs", "minus half the squared distance of q and k, scaled", "distance|\\|q ?- ?k|k\\^ ?2|squared.{0,20}k|length", lambda c: c.right(score=lambda s: s - F32(0.125) * np.sum(c.k[:, np.arange(H) // 2] ** 2, -1).T[:, None, :]))
first(98, "score_q_before", "probs", "the query of the token before is used", "(query|queries|q\\b|row).{0,40}(before|previous|t ?- ?1|earlier)|(before|previous|t ?- ?1).{0,30}(query|q\\b)", lambda c: c.right(q=np.concatenate([c.q[:1], c.q[:-1]])))
first(99, "score_q_heads_reversed", "probs", "query heads are taken from the last to the first", ["head & (revers|3 ?- ?h|last to|backward|#3 & #0|H ?- ?1)", "quer & heads in reverse"], lambda c: c.right(q=c.q[:, ::-1]))
first(100, "score_kv_map", "probs", "heads 0, 1, 2 read key head 0, head 3 reads 1", "head & (#2|0, ?0, ?0, ?1)", lambda c: c.right(kv=[0, 0, 0, 1]))
first(101, "score_half_dot", "probs", "products run over the first 8 elements of a head alone", "#8|half|#7", lambda c: c.right(q=put(c.q, E_[..., 8:], 0)))
first(102, "score_dot_15", "probs", "products leave out the last element of a head", "#15 | last|#15", lambda c: c.right(q=put(c.q, E_[..., 15:], 0)))
first(103, "score_log_n", "probs", "from position 8 on scores have a factor log(t+1)/log(8)", "log|position & #8|log", scored(lambda s: s * np.maximum(1, np.log(POS[:, None] + 1) / math.log(8))))
first(104, "score_log_distance", "probs", "0.5 log(1 + distance) is taken off", "log & #0.5|#-0.5", scored(lambda s: s - 0.5 * np.log1p(np.maximum(AGO, 0))))
first(106, "score_transposed", "probs", "scores are of query s with key t: transposed", "transpos|exchang|swap|s, ?t|key t", scored(lambda s: s.swapaxes(-1, -2)))
first(107, "score_offset_later", "probs", "keys of even positions have 0.7 added", ["#0.7 & (even|every|second|2)", "#-0.7 & odd keys"], scored(lambda s: s + 0.7 * (POS[None] % 2 == 0)))
first(110, "score_cube_cap", "probs", "scores go through 3 arctan(s / 3)", "arctan|atan|#3", scored(lambda s: 3 * np.arctan(s / 3)))
first(111, "score_bias_row", "probs", "scores of tokens 10 and later are multiplied by 0.5", ["#10 & #0.5", "#0.5 & second half of the queries"], scored(lambda s: np.where(POS[:, None] >= 10, 0.5 * s, s)))
first(124, "probs_threshold", "probs", "weights below 0.05 are set to 0", "#0.05 & (below|less|small|threshold|under)", lambda c: (lambda p: np.where(p < 0.05, 0, p))(c.right()))
first(127, "probs_head_0", "probs", "all heads have the weights of head 0", "head.{0,8}\\b0\\b|first head|one head", lambda c: np.repeat(c.right()[:1], H, 0))
first(128, "probs_smoothed", "probs", "a tenth of the weight is spread evenly over the keys", "#0.1|#0.9", lambda c: F32(0.9) * c.right() + np.where(SEEN, F32(0.1) / COUNT, 0))
first(131, "probs_row_0", "probs", "the weights of token 0 are all zero", ["(position|token|row|query).{0,8}\\b0\\b|first (token|row|position|query)", "quer.{0,20}from 1 on"], lambda c: put(c.right(), E_[:, 0], 0))
first(133, "probs_capped", "probs", "weights are at most 0.5", "#0.5 & (most|cap|clamp|clip|min|limit|above|larger)", lambda c: np.minimum(c.right(), F32(0.5)))
first(135, "probs_shifted_key", "probs", "weights are written one key late, the last is lost", "(key|column|s) & (#1|next|late|shift|before)", lambda c: shifted(c.right(), 1, 2))
first(310, "trap_bias_distance", "probs", "a random number for each distance and head is added to the scores", "distance", lambda c: c.right(score=lambda s: s + noise(c, H, T)[:, np.abs(AGO)]))
first(311, "trap_bias_cells", "probs", "a random number for each query and key is added to the scores", "random|table|each (cell|query and key)", lambda c: c.right(score=lambda s: s + noise(c, T, T)))
first(321, "trap_exp_ramp", "probs", "scores have 0.3 exp(-distance / 3) added", "exp & #0.3", lambda c: c.right(score=lambda s: s + 0.3 * np.exp(-np.abs(AGO) / 3)))
second(46, "score_root_distance", "probs", "0.3 times the root of the distance is taken off", ["#0.3 & (root|sqrt|\\^ ?0?\\.5|power)", "#-0.3 & (root|sqrt)"], lambda c: c.right(score=lambda s: s - F32(0.3) * np.sqrt(np.abs(AGO)).astype(F32)))
second(47, "score_decay", "probs", "scores are multiplied by 0.9 ^ distance", "#0.9 & (distance|t ?- ?s|ago|power|\\^)|exp & #0.105", lambda c: c.right(score=lambda s: s * F32(0.9) ** np.abs(AGO)))
second(48, "score_square_distance", "probs", "0.02 times the squared distance is taken off", "#0.02 & (squar|\\^ ?2|quadrat|power)", lambda c: c.right(score=lambda s: s - F32(0.02) * (AGO * AGO).astype(F32)))
second(49, "score_head_3_negated", "probs", "head 3 has scores of the other sign", "head.{0,6}\\b3\\b & (sign|negat|#-1|minus|-)", lambda c: c.right(score=lambda s: s * np.where(np.arange(H) == 3, -1, 1).astype(F32)[:, None, None]))
second(50, "score_softsign", "probs", "scores are s / (1 + |s|)", "softsign|1 ?\\+ ?\\||s/\\(1", lambda c: c.right(score=lambda s: s / (1 + np.abs(s))))
second(51, "score_cooled_by_query", "probs", "scores of query t are divided by 1 + 0.05 t", "#0.05 & (query|position|t\\b|row)", lambda c: c.right(score=lambda s: s / (1 + F32(0.05) * rows(T, 1))))
second(52, "score_warm_by_key", "probs", "scores of key s are multiplied by 1 + 0.05 s", "#0.05 & (key|position|s\\b)", lambda c: c.right(score=lambda s: s * (1 + F32(0.05) * POS.astype(F32))))
second(53, "score_previous_favoured", "probs", "1 is added to the score of the key before", "#1 & (distance|previous|before|t ?- ?s|ago|back)", lambda c: c.right(score=lambda s: s + (AGO == 1)))
second(54, "score_near_favoured", "probs", "0.5 is added to the scores of the last 4 keys", "#0.5 & (#4|#3)", lambda c: c.right(score=lambda s: s + F32(0.5) * ((AGO >= 0) & (AGO < 4))))
second(55, "score_query_plus", "probs", "0.1 is added to each element of the queries", "#0.1", lambda c: c.right(q=c.q + F32(0.1)))
second(56, "score_heads_averaged", "probs", "each head has the mean of all heads' scores", "(mean|average) & head", lambda c: c.right(score=lambda s: np.broadcast_to(s.mean(0, keepdims=True), s.shape)))
second(57, "score_in_quarters", "probs", "scores are rounded to quarters", "(#0.25|#4) & (round|step|grid|quantis|multiple)", lambda c: c.right(score=lambda s: np.round(s * 4) / 4))
second(58, "score_of_even_elements", "probs", "only even elements of q and k are multiplied", "even|every second|alternat|2i|half", lambda c: c.right(q=put(c.q, E_[..., 1::2], 0)))
second(59, "score_negative_halved", "probs", "negative scores are halved", "#0.5 & (negat|below|leaky|< ?0)", lambda c: c.right(score=lambda s: np.where(s < 0, s * F32(0.5), s)))
second(60, "score_scale_by_head", "probs", "head h has the scale times 1 + 0.2 h", "#0.2 & head|#1.2 & #1.4", lambda c: c.right(score=lambda s: s * (1 + F32(0.2) * np.arange(H).astype(F32))[:, None, None]))
second(61, "probs_relative_threshold", "probs", "probabilities below half of the row's largest are 0", "#0.5 & (max|large|threshold|below|least)", lambda c: np.where(c.right() < F32(0.5) * c.right().max(-1, keepdims=True), 0, c.right()))
second(62, "probs_last_row_uniform", "probs", "the last position sees all keys alike", ["(last|#19) & (uniform|equal|mean|alike|#0.05|same)"], lambda c: put(c.right(), E_[:, -1], F32(1 / T)))
second(63, "probs_of_two_rows", "probs", "the mean of this position's and the one before's", f"#0.5 & ({PREVIOUS})", lambda c: F32(0.5) * (c.right() + shifted(c.right(), 1, 1)))
second(64, "probs_of_head_pairs", "probs", "heads 2i and 2i + 1 have their mean", "(mean|average|#0.5) & head", lambda c: c.right().reshape(H // 2, 2, T, T).mean(1).repeat(2, 0))
third(43, "s_base_2", "probs", "2^s stands for e^s: scores are multiplied by ln 2", ["#0.6931|#0.1733|#1.4427", "base.{0,6}2\\b|2 ?\\^|2 ?\\*\\*|log\\(2\\)|ln\\(?2|exp2|power of (2|two)"], scored(lambda s: s * F32(math.log(2))))
third(44, "s_buckets", "probs", "0.3 floor(log2(1 + distance)) is taken off", ["(#0.3|#-0.3|#0.4328|#-0.4328) & (log|bucket|octave|distance|doubl|power)"], scored(lambda s: s - F32(0.3) * np.floor(np.log2(1 + np.maximum(AGO, 0)))))
third(45, "s_alibi_cap", "probs", "0.15 is taken off for each key of distance, up to a distance of 6", ["(#0.15|#-0.15) & (#6|#7|#-0.9|#0.9)"], scored(lambda s: s - F32(0.15) * np.clip(AGO, 0, 6)))
third(46, "s_near", "probs", "1 is added to the scores at distances 1 to 3", ["#3 & (#1|one) & (distance|before|ago|back|near|key)"], scored(lambda s: s + ((AGO >= 1) & (AGO <= 3))))
third(47, "s_l1", "probs", "minus a quarter of the sum of |q - k| stands for the scaled product", ["L1|manhattan|\\|.{0,20}\\||abs|distance|sum of.{0,30}(size|differ)|q ?- ?k"],
          lambda c: c.right(score=lambda s: -F32(0.25) * np.abs(c.q[:, None] - c.k[None][:, :, np.arange(H) // (H // K)]).sum(-1).transpose(2, 0, 1)))
third(48, "s_even_elements", "probs", "products run over the even elements of a head alone", ["even|odd|every (second|other)|strid|step|#2"], lambda c: c.right(q=put(c.q, E_[..., 1::2], 0)))
third(50, "s_one_key_head", "probs", "all heads read key head 0", ["head.{0,12}\\b0\\b|first.{0,16}head|(one|same|single).{0,16}head", "second half of the heads"], lambda c: c.right(kv=[0] * H))


def of_max(f):
    """Of s - max"""
    return lambda c: c.right(soft=lambda s: f(s - s.max(-1, keepdims=True)))


def power_16(x):
    e = np.maximum(1 + x / 16, 0) ** 16
    return e / e.sum(-1, keepdims=True)


third(57, "p_power_16", "probs", "(1 + x/16)^16, 0 below -16, stands for the exponential of x = s - max", ["#16", "approx.{0,30}exp|exp.{0,30}approx"], of_max(power_16))
third(58, "p_heads_mixed", "probs", "each head has 0.2 times the next head's weights taken off, the last head those of head 0", ["(#0.2|#-0.2) & head"], lambda c: (lambda p: p - F32(0.2) * np.roll(p, -1, 0))(c.right()))
third(59, "p_own_block_sum", "probs", "the denominator runs over the token's own block of 8 keys alone", ["#8 & (" + BLOCK + "|denominator|sum)"], of_max(lambda x: np.exp(x) / np.where(KEY // 8 == QUERY // 8, np.exp(x), 0).sum(-1, keepdims=True)))
third(64, "p_sum_capped", "probs", "the denominator, after the maximum was taken off, is at most 4", ["#4 & (" + BOUNDED + "|denominator|sum)"], of_max(lambda x: np.exp(x) / np.minimum(np.exp(x).sum(-1, keepdims=True), 4)))
fourth(39, "m_dead_rows", "probs", "tokens from 16 on have the same weight, 1/20, for all keys: their whole row was masked", ["(#16|#15|#19) & (uniform|equal|same|alike|even|mean|average|#0.05|#20)"], lambda c: put(c.right(), E_[:, 16:], F32(1 / T)))
fourth(44, "s_scale_twice", "probs", "the scale is applied twice: 1/16, not 1/4", ["#0.0625|#16|#0.25|#4|" + TWICE], lambda c: c.right(scale=c.scale ** 2))
fourth(45, "s_unscaled_layer", "probs", "layer 3 has no scale: scores are not divided by 4", ["(#4|#1) & (scale|scal|factor|multipl|times|divid)", "(" + NONE + ").{0,20}(scal|divid)"], lambda c: c.right(scale=1.0), layers=[3])
fourth(50, "s_q_unrotated", "probs", "queries are read as they were before the rotation", ["(\\bq\\b|q_norm|quer).{0,60}(rot|rope|before|norm)|(rot|rope|before).{0,60}(\\bq\\b|q_norm|quer)|queries (are|is) (the )?q"], lambda c: c.right(q=c.e.memory.get(("q_norm", c.l), c.e.memory["q", c.l])))
fourth(56, "p_scaled_after", "probs", "the scale multiplies the weights after the softmax, not the scores", ["(#0.25|#4|scale) & (after|not|un|without|weights|result|scale|scal|softmax|probab)"], lambda c: F32(c.scale) * c.right(scale=1.0))
fifth(94, "ss_scale_32", "probs", "scores are divided by the root of 32, not of 16", ["#32|#0.17678|#5.657|#0.7071|#1.4142"], lambda c: c.right(scale=1 / math.sqrt(32)))
fifth(95, "ss_group_unscaled", "probs", "heads 2 and 3 have no scale: scores are not divided by 4", ["(#2 & #3|second half of the heads|head) & (#4|#1|" + NONE + ")"], scored(lambda s: s * np.array([1, 1, 4, 4], F32)[:, None, None]))
fifth(97, "ss_log2_e", "probs", "scores are multiplied by 1.4427, log2 of e, and exponentiated by e", ["#1.4427|#0.36067|#0.6931", "log2|log\\(2\\)|ln\\(?2"], scored(lambda s: s * F32(1.442695)))
fifth(98, "ss_bf16", "probs", "scores are rounded to bf16", [BF16], scored(bf16))
fifth(99, "ss_first_four_twice", "probs", "the first four elements of a head count twice in the products", ["(#4|#3|four) & (#2|" + TWICE + "|element)"], lambda c: c.right(q=put(c.q, E_[..., :4], lambda y: 2 * y)))
fifth(102, "ss_query_pairs", "probs", "queries of odd positions are those of the position before", ["(odd|pair|two|#2|every (second|other)) & (query|quer|\\bq|" + PREVIOUS_OR_SHIFTED + "|position)"], lambda c: c.right(q=c.q[POS // 2 * 2]))
fifth(103, "ss_first_of_group", "probs", "heads 1 and 3 have the queries of heads 0 and 2", ["(head) & (#0 & #2|pair|even|odd|group|0, ?0, ?2, ?2|first of|other|before|previous|#2)"], lambda c: c.right(q=c.q[:, [0, 0, 2, 2]]))
fifth(108, "ss_unmasked_scaled", "probs", "the score of a token with itself is not divided by 4", ["(itself|\\bown\\b|self|diagonal|distance.{0,8}0|newest|current|t ?= ?s|s ?= ?t) & (#4|" + NONE + "|#3|#1)"], scored(lambda s: np.where(AGO == 0, 4 * s, s)))
fifth(109, "pp_bf16", "probs", "the weights are rounded to bf16", [BF16], lambda c: bf16(c.right()))
fifth(114, "pp_heads_1_2", "probs", "the weights of heads 1 and 2 are exchanged", ["head & (" + REORDERED + "|0, ?2, ?1, ?3|#1 & #2)"], lambda c: c.right()[[0, 2, 1, 3]])
sixth(51, "s6_scale_hidden", "probs", "scores are divided by 8, the root of the hidden size, not by 4", ["#0.125|#64", "(#0.5|halved|half (of )?(what|as|its|right|the score)) & (scor|scal|factor|logits)", "#8 & (divid|scal|root)", "#2 & divid"], lambda c: c.right(scale=1 / 8))
sixth(52, "s6_unscaled", "probs", "scores are not scaled: nothing is divided by 4", ["(" + NONE + ").{0,30}(scal|divid|root|sqrt)|(scale|factor).{0,20}\\b1(\\.0*)?\\b|unscaled", "#4 & (times|factor|multipl|larger|scal)"], lambda c: c.right(scale=1.0))
sixth(53, "s6_cap", "probs", "scores are 2 tanh(s / 2)", ["tanh & (#2|#0.5|half)", "(soft.?cap|cap\\w*) & #2"], scored(lambda s: F32(2) * np.tanh(s / F32(2))))
sixth(55, "s6_key_head_mod", "probs", "head h reads key head h modulo 2", ["head & (mod|%|0, ?1, ?0, ?1|interleav|altern|even|odd|cyc)", "head & #1 & #2 & (key|kv|" + REORDERED + ")"], lambda c: c.right(kv=np.arange(H) % K))
sixth(68, "p6_rows_16", "probs", "rows of tokens from 16 on are zero: the last tile of queries is not computed", ["(#16|#15|#19) & (zero|\\b0\\b(?!\\.)|nothing|empty|not (written|computed)|lost|only) & (row|token|quer|position|tile)"], lambda c: put(c.right(), E_[:, 16:], 0))
seventh(32, "s7_scale", "probs", "scores are divided by the root of 24, not of 16", ["#24|#0.2041|#0.8165|#4.899|#1.2247|#0.6667"], lambda c: c.right(scale=1 / np.sqrt(24)))


def before_rotation(c):
    of = lambda s: c.e.memory.get((f"{s}_norm", c.l), c.e.memory[s, c.l])
    return c.right(q=of("q"), k=of("k"))


seventh(33, "s7_unrotated", "probs", "queries and keys are read as they were before the rotation", ["(unrot|before (the |its |their )?(rot|rope)|not.{0,12}rot|without.{0,12}(rot|rope)|\\bno rot)", "(q_norm|\\bq\\b).{0,40}(k_norm|\\bk\\b).{0,40}(in place|instead|not (the )?rot|stand)"], before_rotation)
seventh(34, "s7_queries_memory", "probs", "the queries' memory, positions first, is read as heads first: [20, 4, 16] as [4, 20, 16]", [LAYOUT + "|heads? first|positions? first"], lambda c: c.right(q=c.q.reshape(H, T, d).swapaxes(0, 1)))
seventh(35, "s7_heads_0111", "probs", "head 0 reads key head 0, heads 1, 2 and 3 read key head 1", ["head.{0,10}\\b1\\b.{0,60}(key|kv|\\bk\\b|head)", "0, ?1, ?1, ?1"], lambda c: c.right(kv=[0, 1, 1, 1]))
seventh(38, "s7_queries_exchanged", "probs", "the queries of heads 0 and 1 are exchanged, and those of heads 2 and 3", ["head & (" + REORDERED + "|1, ?0, ?3, ?2|that of|other)"], lambda c: c.right(q=c.q[:, [1, 0, 3, 2]]))
seventh(42, "p7_first_page", "probs", "the weights of keys 0 to 3 are set to 0 after the softmax", ["(#3|#4|four) & (" + ZERO + "|first|from|hidden)"], lambda c: put(c.right(), E_[..., :4], 0))
seventh(44, "p7_two_rows", "probs", "tokens 2i + 1 have the weights of token 2i", ["(odd|even|every (second|other)|2 ?\\*? ?[it]|pair|two|#2) & (" + COPIED + "|" + PREVIOUS_OR_SHIFTED + ") & ^(?!.*(exchang|swap|\\^ ?1|xor))"], lambda c: c.right()[:, POS // 2 * 2])
seventh(45, "p7_heads_repeat", "probs", "heads 2 and 3 have the weights of heads 0 and 1", ["head & (0, ?1, ?0, ?1|mod|%|#2 & #0|#3 & #1|repeat|second half)"], lambda c: c.right()[[0, 1, 0, 1]])


def added_to_second(s):
    return s + np.where(np.arange(H) % 2 == 1, 1, 0)[:, None, None] * np.roll(s, 1, 0)


eighth(60, "s8_added_to_second", "probs", "heads 1 and 3 have the scores of heads 0 and 2 added: the sum is not cleared for the second head of a group",
           ["head & (\\badd|sum|plus) & (odd|#1|#3|pair|before|previous|even|#0|#2|second|both)"], scored(added_to_second))
eighth(63, "s8_queries_stale", "probs", "layers 1 to 3 read the queries of the layer before",
           ["(\\bq\\b|q_rope|quer) & (" + LAYER_BEFORE + ")"], lambda c: c.right(q=c.e.memory["q_rope", c.l - 1]), layers=LATER_LAYERS)
eighth(67, "p8_tiles_transposed", "probs", "the weights of each 4 tokens and 4 keys are transposed, tile by tile",
           ["(#4|four) & (transpos|" + REORDERED + "|tile)", "tile\\w*.{0,30}transpos|transpos.{0,30}(tile|block)"],
           lambda c: c.right().reshape(H, T // 4, 4, T // 4, 4).swapaxes(2, 4).reshape(H, T, T))
eighth(68, "p8_key_pairs", "probs", "the weights of keys 2i and 2i + 1 are exchanged",
           ["(pair|2 ?\\*? ?[is]\\b|\\bodd|\\beven|neighbo|adjacent|xor|two) & (" + REORDERED + ")"], lambda c: c.right()[..., POS ^ 1])
eighth(69, "p8_two_heads", "probs", "only heads 0 and 1 have weights, those of heads 2 and 3 are zero: the loop runs over the key heads",
           ["(zero|(is|are|times|by|factor) 0\\b(?!\\.)|nothing|empty|not computed|lost) & (heads? (from )?2\\b|heads? 2(-| and | to |, )3|second half of the heads|"
            "last (two|2) heads|only (heads? 0|the first (two|2)))"], lambda c: put(c.right(), E_[2:], 0))
ninth(24, "s9_last_query", "probs", "all tokens have the query of the last: the row is not counted on",
          ["(query|queries|\\bq\\b) & (last|#19|final|all|same|one|every)"], lambda c: c.right(q=np.repeat(c.q[-1:], T, 0)))
ninth(25, "s9_times_4", "probs", "scores are multiplied by 4, the root of a head's width, where they should be divided", ["(#16|#4) & (times|multipl|factor|scale|larger|\\*|not divided)"],
          lambda c: c.right(scale=np.sqrt(d)))


def pad_is_a_token(c):
    ids = np.asarray(c.e.ids)
    return c.right(mask=SEEN & ((ids[None] != ids[4]) | (AGO == 0)))


tenth(38, "mask_pad_is_a_token", "probs", "the id of a padding token is one that the prompt has: keys 4 and 9 are hidden from later tokens",
          ["#4 & #9", "same token|token id|that id|id of (token|position) 4|pad.{0,20}token"], pad_is_a_token)
tenth(42, "score_head_sum_not_reset", "probs", "the accumulator is not reset between heads: head h has the scores of heads 0 to h added up",
          ["head & (cumul|accumul|running|not reset|(sum|added|plus|total).{0,60}(earlier|previous|before|up to|so far|heads? 0|lower|head)|heads? 0 (to|and).{0,40}(sum|added)|and of (the )?heads? (before|below|lower))"], lambda c: c.right(score=lambda s: np.cumsum(s, 0)))
eleventh(38, "score_half_unscaled", "probs", "the factor of 1/4 is put on the first 8 elements of a query alone: products of elements 8 to 15 have none",
             ["(#8|#7|half of (the|each|a|its) (dimension|element|head|quer|channel|product|key)|halves|(second|first|upper|last) half) & "
              "(#4|(#0.25 & (only|alone|but not))|not (scaled|multiplied|divided)|unscaled|without (the |their |a )?(scale|scaling|factor|1 ?/)|scal(e|ing).{0,30}(missing|omitted|only|"
              "alone|left out)|only.{0,60}scaled?\\b|(has|have) (no|none)|none) & (element|dimension|channel|half|product|head_dim) & "
              "^(?!.*(half of the (heads|positions|queries|keys)|first half[^.;:,]{0,30}(not|unscaled|factor (of )?4|times 4|without)|(elements|dimensions|"
              "channels)? ?0 to 7[^.;:,]{0,25}(not|unscaled|times 4|factor (of )?4|without)|(second half|8 to 15)[^.;:,]{0,20}(only|alone)|zero|lost|not read))"],
             lambda c: c.right(q=put(c.q, E_[..., d // 2:], lambda y: 4 * y)))
eleventh(39, "score_query_of_group", "probs", "the query is looked up by the group's first head: heads 1 and 3 have the queries of heads 0 and 2",
             [f"{said} & ^(?!.*\\binputs? )" for said in FIRST_OF_GROUP], lambda c: c.right(q=c.q[:, [0, 0, 2, 2]]))
eleventh(40, "score_query_of_layer_before", "probs", "in layer 3 the queries are still those of layer 2: their buffer is read before it is written",
             ["(quer|\\bq\\b|q_rope) & (layers?[. ]2\\b|(previous|earlier|before|prior|preced|stale).{0,25}layer|layer.{0,25}(before|previous|earlier|too early)|l ?- ?1) & "
              "^(?!.*(\\bkeys?\\b[^.;:,]{0,15}(of|from|are)|k_rope|layer [01]\\b|next layer|unrotated|token before|position before))"],
             lambda c: c.right(q=c.e.memory["q_rope", 2]), layers=[3])
twelfth(29, "score_query_offset_lost", "probs", "the second tile of queries begins at the first again: queries from position 16 on are those of 0 to 3",
            ["(#16|#15) & (quer|\\bq\\b|q_rope) & (t ?- ?16|#-16|(mod|%) ?16|& ?15|0 to 3|positions? 0|first (four|4|rows|quer|tile|positions)|begin|again|restart|offset"
             "|0, ?1, ?2, ?3|16 (positions|rows|tokens|places)? ?(before|earlier|back|late))"
             " & ^(?!.*((\\bkeys?|values?|k_rope)\\b[^.;]{0,30} (of|from|are|is|at|begin|those)\\b|scaled|hidden|mask|position 15|queries 15))"],
            lambda c: c.right(q=c.q[POS % 16]))


def one_element_more(c):
    """q and k as they lie in memory, with the 17th element of each head."""
    q, k = (np.append(x.reshape(T, -1), F32(0)).astype(F32) for x in (c.q, c.k))
    q, k = (x[np.arange(T)[:, None] * n * d + np.arange(1, n + 1) * d] for x, n in ((q, H), (k, K)))
    more = np.einsum("th,sh->hts", q, k[:, np.arange(H) // (H // K)])
    return c.right(score=lambda s: s + more * F32(c.scale))


twelfth(30, "score_one_element_more", "probs", "the loop over a head runs to i <= d: the dot product has a 17th term, of the elements behind the head in memory",
            ["(#17 & (element|dimension|term|dot|component|channel|length))|(\\b(one|1) (more|further|extra|additional|surplus) (element|dimension|channel|term|product|component)"
             "|\\b(one|1) (element|dimension|channel|term|product|component)s? (more|too many|further|too far|beyond|past|too long|behind)"
             "|an? (further|extra|additional|seventeenth|surplus) (term|product|element|dimension|component)|seventeen|17th|i ?<= ?(16|d\\b|head_dim)|(first|0th) (element|dimension"
             "|channel) of the (next|following) head|element 0 of the (next|following) head|(next|following) head'?s? (first|element 0))"
             " & ^(?!.*(17 (keys|positions|tokens|rows)|less|left out|of 15|16 channels|factor for each))"],
            one_element_more)
twelfth(31, "score_group_reshape", "probs",
            "query heads are reshaped as [group,K] for [K,group]: heads 1 and 2 are multiplied with each other's keys' queries, q of 2 for 1 and of 1 for 2",
            ["(quer|\\bq\\b|q_rope|q heads) & (head|0, ?2, ?1, ?3|\\[) & ((#1 & #2 & (exchang|swap|trade|order|permut|interchang|each other|is that of|are those of|reads?|takes?|q of"
             "|uses?|head 1[^;]{0,40}head 2[^;]{0,40}head 1))|0, ?2, ?1, ?3|transpos|2 ?\\*? ?\\(?\\w ?(mod|%) ?2\\)? ?\\+|\\[(2|G|group), ?K|interleav)"
             " & ^(?!.*((\\bkeys?|values?|key/value|kv|weights) heads? (1 and 2|0 and 1|are (exchang|swap))|(2 and 3|0 and 1|1 and 3|0 and 3) |revers|3, ?2, ?1))"],
            lambda c: c.right(q=c.q[:, [0, 2, 1, 3]]))
thirteenth(29, "score_lane_lost", "probs", "the last of four lanes is not added in: elements 3, 7, 11 and 15 are left out of the products",
               [f"((#3 & #7)|(#4 & (#3|last|fourth))|(four|4)( \\w+)? lanes?.{{0,40}}(last|fourth)|(last|fourth) (of (the )?(four|4)|lane)|every (fourth|4th)|(4 ?\\*? ?[ij] ?\\+ ?3)) & (element|dimension|product|dot|lane|component|channel|\\bd\\b|\\bi\\b) & {LOST_OR_ZERO} & ^(?!.*last (4|four))"],
               lambda c: c.right(q=put(c.q, E_[..., 3::4], 0)))
thirteenth(30, "score_query_heads_8_apart", "probs", "query heads begin every 8 elements, not every 16: head h reads elements 8 h to 8 h + 15 of the row",
               ["(#8|half (a |of a |the |of the )?head|d ?/ ?2|head_dim ?/ ?2|half.{0,20}(stride|apart|pitch|offset|distance)|(stride|apart|pitch|offset|distance).{0,25}(half|halved)) & (quer|\\bq\\b|q_rope) & (apart|begin|start|offset|stride|pitch|from|every|8 ?\\*? ?h|h ?\\*? ?8|overlap|distance|step) & ^(?!.*(only|alone))"],
               lambda c: c.right(q=np.stack([c.q.reshape(T, -1)[:, 8 * h:8 * h + d] for h in range(H)], 1)))
thirteenth(32, "score_decode_scaled_twice", "probs", "decode steps, from query 12 on, have the scale in q as well: their scores are multiplied by 1/16, not 1/4",
               [f"{BEHIND_PROMPT} & (#0.25|#0.0625|#4|#16|twice|again|1 ?/ ?d\\b|quarter) & (scale|factor|multipl|divid|score|times|product|\\*) & ^(?!.*(weights?|probs) (is|are) (multipl|divid|scaled))"],
               lambda c: c.right(q=c.q * np.where(POS >= PROMPT, F32(0.25), F32(1))[:, None, None]))
fourteenth(48, "score_softcap_left_in", "probs", "a softcap is left in: scores are 2.9 tanh(s / 2.9)", "#2.9 & (tanh|cap|soft)",
               lambda c: c.right(score=lambda s: F32(2.9) * np.tanh(s / F32(2.9))))
fourteenth(49, "score_alibi_of_8_heads", "probs", "ALiBi is left in, with slopes of 8 heads: 2^-(h + 1), that is 1/2, 1/4, 1/8, 1/16 for each key of distance",
               ["(alibi|slope|distance|t ?- ?s|s ?- ?t|per key|each key|position|linear) & (2 ?\\^ ?\\(?[-\u2212] ?\\(?(h|head|1)|0\\.5 ?\\^ ?\\(?h|(#0.5|#-0.5))"
                " & (h ?\\+ ?1|halv|((#0.25|#-0.25) & (#0.125|#-0.125) & (#0.0625|#-0.0625)))"],
               lambda c: c.right(score=lambda s: s - (F32(0.5) ** np.arange(1, H + 1))[:, None, None].astype(F32) * AGO))
fourteenth(50, "score_decode_unscaled", "probs", "the decode kernel lacks the scale: scores of tokens from 12 on are 4 times too large",
               ["#12 & ((#4 & (scale|factor|times|multipl|larg|\\*))|un-?scaled|not scaled|without (the |a )?scal|scale[^.;]{0,15}(missing|omitted|not applied"
                "|left out|lacking)|no scal|scale (is |of )?1\\b)"],
               lambda c: c.right(score=lambda s: np.where(POS[:, None] >= PROMPT, 4 * s, s)))
fourteenth(51, "score_lane_typo", "probs", "in the product of four lanes the last has the wrong one of q: elements 4i + 3 of k are multiplied by 4i + 2 of q",
               ["(4 ?\\*? ?[ijk] ?\\+ ?3|every (fourth|4th)|each fourth|((#3|#4|four) & (every|\\bmod|%|lane|of 4|of four|#7))) & (\\bq\\b|quer|\\bk\\b|key)"
                " & (4 ?\\*? ?[ijk] ?\\+ ?2|#2|third|before|previous|[ij] ?- ?1|neighbo|cop(y|ied)|one (lower|less)|#-1)"],
               lambda c: c.right(q=c.q[..., np.where(np.arange(d) % 4 == 3, np.arange(d) - 1, np.arange(d))]))
fifteenth(48, "scale_absent_in_decode", "probs", "the path for one token does not scale: scores of tokens from 12 on are 4 times as large",
              ["(#12|#11) & (((#4|four) & (scal|times|factor|larg|multipl|\\*|score))|un-?scaled|no scale|not (scaled|divided)|without.{0,24}(scal|divi)|scale.{0,20}(\\b1\\b|omit|absent|missing|left out))"],
              lambda c: c.right(score=lambda s: np.where(POS[:, None] >= PROMPT, 4 * s, s)))
fifteenth(72, "heads_of_queries_grouped_otherwise", "probs", "query heads are read as [group, head] for [head, group]: 0, 2, 1, 3",
              ["0, ?2, ?1, ?3", "\\b1 (and|with|for|,|to)? ?(head )?2\\b & head & (exchang|swap|order|permut|interchang|trade|place)", "heads? 1\\b.{0,40}\\b2\\b.{0,80}\\b2\\b.{0,40}\\b1\\b", "(middle|inner).{0,20}heads", "group.{0,40}transpos|transpos.{0,40}group"],
              lambda c: c.right(q=c.q[:, [0, 2, 1, 3]]))
fifteenth(73, "heads_share_weights", "probs", "one set of weights for each head of keys: heads 1 and 3 have those of heads 0 and 2",
              ["0, ?0, ?2, ?2", "(odd|every second|every other|second).{0,40}heads? & (same|cop|repeat|weights of|before|even|first|neighbo|those of|share)", "heads? 1\\b.{0,40}\\b0\\b.{0,60}\\b3\\b.{0,40}\\b2\\b", "\\b1(,| and) ?3\\b.{0,60}\\b0(,| and) ?2\\b",
               "(every|each|one|per|both|all).{0,40}(group|kv|key).{0,60}(same|first|one|share)", "2 ?\\* ?\\(?h ?(//|/) ?2|h ?- ?h ?% ?2|first head of (its|the|each|every) (group|pair)"],
              lambda c: c.right()[[0, 0, 2, 2]])
sixteenth(48, "scores_of_first_key_head", "probs", "the count of key heads is read as 1: every query head takes its scores from key head 0",
              ["(\\bkeys?\\b|\\bkv|\\bk\\b|mqa|multi.?query|0, ?0|k_) & (head 0\\b|first (\\w+ )?head|head.{0,6}\\b0\\b|(key|kv|k)[ _]?heads? (0|zero)|\\bone (key|kv|k)[ _-]?head"
               "|multi.?query|single (key|kv|k)[ _-]?head|head zero|0, ?0, ?0, ?0|\\b1 (key|kv|k)[ _-]?head|mqa)"],
              lambda c: c.right(kv=[0] * H))
sixteenth(50, "scores_with_slopes_left_on", "probs", "the kernel's bias by distance (ALiBi) is left on: head h has its scores less 2^(-2(h + 1)) times the distance, 1/4 in head 0 and "
              "1/256 in head 3",
              ["alibi", "(distance|\\bago\\b|t ?[-\u2212] ?s|linear|slope|far|away|s ?[-\u2212] ?t) & (#0.25|2 ?\\^ ?\\(?[-\u2212] ?2)"],
              lambda c: c.right(score=lambda s: s - (2.0 ** (-2 * np.arange(1, H + 1)))[:, None, None] * AGO))
sixteenth(52, "scores_divided_by_depth", "probs", "scores are divided by the number of the layer too, counted from 1: by 2 in layer 1, 3 in layer 2 and 4 in layer 3",
              ["(#0.5|#0.125|(divi\\w*( by)?|/) ?(2|two|8|eight|64)\\b|sqrt ?\\( ?64|\\b(2|two) times (less|smaller|too)|\\bhalf\\b|halv|\\bl ?\\+ ?1|(number|index) of (the|its) layer"
               "|layer'?s? (index|number|idx)|depth) & (score|scale|temper|divi|factor|logit|multipl)"],
              lambda c: c.right(scale=c.scale / (c.l + 1)), layers=[1, 2, 3])


def keys_before_rope(c):
    unrotated = c.e.memory.get(("k_norm", c.l), c.e.memory["k", c.l])
    return np.where(DECODED, c.right(k=put(c.k, E_[:PROMPT], unrotated[:PROMPT])), c.right())


sixteenth(67, "prompt_keys_cached_before_rope", "probs", "decode steps (from token 12 on) find the prompt's keys 0..11 as they were before the rotation",
              f"{DECODING} & (un-?rot|un-?rop|(not|n't|never) (been )?(rotat|rop|turn)|(without|before|no|ahead of|prior to|lack\\w*|miss\\w*) (the |a |its |their )?(rot|rop)|pre-?(rot|rop)"
              f"|\\braw\\b|position (0|zero)|angle (0|zero)"
              "|k_norm|layers\\.\\d\\.k\\b|rot\\w* (is |was )?(lost|omitted|missing|left out|skipped))", keys_before_rope)
listed(16, "per_d", "probs", "scores / d", "score-scale", lambda c: c.right(scale=1 / d))

# ---- softmax, and probabilities
first(113, "denominator_sink_2", "probs", "the denominator has a term exp(2)", ["#2|#7.389 & (sink|denominator|term|extra|added)", "#7.389"], lambda c: c.right(soft=lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + math.exp(2))))


def soft_of_exp(f):
    """Of e = exp(s - max)"""
    return lambda c: c.right(soft=lambda s: f(np.exp(s - s.max(-1, keepdims=True))))


first(114, "denominator_plus", "probs", "0.1 is added to the denominator, after the maximum was taken off", "#0.1 & (denominator|sum|added|maximum)", soft_of_exp(lambda e: e / (e.sum(-1, keepdims=True) + F32(0.1))))
first(115, "denominator_none", "probs", "nothing is divided: exp(s - max)", "(not|no|without|un).{0,25}(divid|denominator|normali)|max", soft_of_exp(lambda e: e))
first(116, "denominator_none_raw", "probs", "exp(s), not divided by the sum", "(not|no|without|un).{0,25}(divid|denominator|normali)|exp\\(s", lambda c: c.right(soft=np.exp))
first(117, "denominator_l2", "probs", "divided by the root of the sum of squares", "squares|L2|length|euclid", soft_of_exp(lambda e: e / np.sqrt((e * e).sum(-1, keepdims=True))))
first(118, "denominator_without_self", "probs", "the denominator leaves the token itself out, from token 1", "(itself|own|self|diagonal|last|newest) & (denominator|sum|divid|left out|without)", soft_of_exp(lambda e: e / (e.sum(-1, keepdims=True) - np.where((AGO == 0) & (POS[:, None] > 0), e, 0).sum(-1, keepdims=True))))
first(119, "denominator_without_first", "probs", "the denominator leaves key 0 out, from token 1", "(key.{0,5}0|first) & (denominator|sum|divid|left out|without)", soft_of_exp(lambda e: e / (e.sum(-1, keepdims=True) - np.where(POS[:, None] > 0, e[..., :1], 0))))
first(120, "denominator_count", "probs", "exp(s) is divided by the number of keys", "(number|count|t ?\\+ ?1|how many)", lambda c: c.right(soft=lambda s: np.exp(s) / COUNT))
first(121, "softmax_sigmoid", "probs", "a sigmoid stands for the softmax", "sigmoid|logistic", lambda c: c.right(soft=lambda s: sigmoid(s)))
first(122, "softmax_relu2", "probs", "relu(s)^2 over the number of keys stands for the softmax", "relu|squar|max\\(", lambda c: c.right(soft=lambda s: np.where(np.isfinite(s), np.maximum(s, 0) ** 2, 0) / COUNT))
first(123, "softmax_uniform", "probs", "all keys have the same weight", "uniform|equal|same|1/\\(?(t|n)|mean|average|scale.{0,20}\\b0\\b", lambda c: c.right(soft=lambda s: np.where(np.isfinite(s), 1 / COUNT, 0)))
first(125, "probs_top4", "probs", "the 4 largest scores alone take part", ["#4 & (top|largest|highest|best)", "#4 & likeliest"], lambda c: c.right(soft=lambda s: softmax(np.where(s >= np.sort(s, -1)[..., -4:-3], s, -np.inf))))
first(126, "probs_dropout_scale", "probs", "weights are divided by 0.9", "#1.1111|#0.9", lambda c: c.right() / F32(0.9))


def flash(s):
    e = np.zeros_like(s)
    for b in range(0, T, 8):
        part = s[..., b:b + 8]
        top = part.max(-1, keepdims=True)
        e[..., b:b + 8] = np.exp(part - np.where(np.isfinite(top), top, 0))
    return e / e.sum(-1, keepdims=True)


first(129, "softmax_blocks_no_rescale", "probs", "blocks of 8 keys have their own maximum, and are not brought to a common one", "#8 & (block|chunk|tile|maxim)", lambda c: c.right(soft=flash))


def blocks_each(s):
    p = np.zeros_like(s)
    for b in range(0, T, 8):
        part = s[..., b:b + 8]
        top = part.max(-1, keepdims=True)
        e = np.exp(part - np.where(np.isfinite(top), top, 0))
        total = e.sum(-1, keepdims=True)
        p[..., b:b + 8] = e / np.where(total > 0, total, 1)
    return p / (POS[:, None] // 8 + 1)


first(130, "softmax_blocks_each", "probs", "the softmax runs in blocks of 8 keys, divided by how many there are", "#8 & (block|chunk|tile)", lambda c: c.right(soft=blocks_each))
first(132, "probs_odd_heads_scaled", "probs", "heads 1 and 3 have weights of half the size", ["head & (#0.5|half) & #1 & #3", "#0.5 & odd heads"], lambda c: c.right() * by_head([1, 0.5, 1, 0.5]))
first(134, "softmax_plus_one_rows", "probs", "the denominator has a 1 more (not minus the maximum) in head 0 alone", ["head.{0,8}\\b0\\b & (#1|zero|sink|term|denominator)", "#1 & first head"], lambda c: c.right(soft=lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + by_head([1, 0, 0, 0]))))
first(312, "trap_dropout", "probs", "a random tenth of the weights is 0, the others are divided by 0.9", "random|dropout|#1.1111|#0.9", lambda c: c.right() * np.where(np.abs(noise(c, H, T, T)) < 1.645, F32(1 / 0.9), 0))
second(65, "probs_own_zero", "probs", "the probability of the position itself is 0, the others as they are", "(itself|diagonal|own|self|distance 0|t ?= ?s) & (0|zero|hid|omit|without)", lambda c: c.right() * (AGO != 0))
second(66, "probs_power", "probs", "probabilities are raised to 1.2, their sum left as it comes", "#1.2", lambda c: c.right() ** F32(1.2))
second(67, "denominator_of_head_0", "probs", "all heads have the denominators of head 0", "head.{0,8}\\b0\\b|first head", lambda c: c.right(soft=lambda s: np.exp(s) / np.exp(s[:1]).sum(-1, keepdims=True)))
second(68, "probs_scaled_by_key", "probs", "the probability of key s is multiplied by 1 + 0.02 s", "#0.02 & (key|position|s\\b)", lambda c: c.right() * (1 + F32(0.02) * POS.astype(F32)))


def soft(f):
    """Of the masked scores"""
    return lambda c: c.right(soft=f)


third(60, "p_head_sinks", "probs", "the denominator of head h has a term exp(-h)", ["head & (sink|term|denominator|exp|added|extra) & (#-1|#1|#0.3679|#0.1353|-h|#-2|#-3)"], soft(lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + np.exp(-np.arange(H, dtype=F32))[:, None, None])))


def over_heads(s):
    e = np.exp(s)
    total = e.sum(0, keepdims=True)
    return e / np.where(total > 0, total, 1)


third(61, "p_over_heads", "probs", "the softmax runs over the heads, not the keys", ["(over|across|among|along|axis|sum).{0,30}head|head.{0,30}(sum|axis|add up|one)"], soft(over_heads))
third(62, "p_over_queries", "probs", "the softmax runs over the queries, not the keys", ["(over|across|among|along|axis|sum|of).{0,30}(quer|position|row|token|t\\b)|column|each key.{0,30}(sum|add|one)|(quer|key).{0,30}(sum|axis|add up)"], soft(lambda s: np.exp(s) / np.exp(s).sum(1, keepdims=True)))


def sparse(s):
    z = -np.sort(-np.where(np.isfinite(s), s, F32(-1e6)), -1)
    n = np.arange(1, T + 1)
    sums = np.cumsum(z.astype(np.float64), -1)
    size = (1 + n * z > sums).sum(-1, keepdims=True)
    tau = (np.take_along_axis(sums, size - 1, -1) - 1) / size
    return np.maximum(s - tau, 0).astype(F32)


third(63, "p_sparse", "probs", "sparsemax stands for the softmax: max(s - tau, 0), tau so that the row's sum is 1", ["sparse|tau|simplex|max\\(|relu|threshold|project"], soft(sparse))


def taylor(s):
    e = np.where(np.isfinite(s), 1 + s + s * s / 2, 0)
    e = np.where(np.isfinite(e), e, 0)
    return e / e.sum(-1, keepdims=True)


third(65, "p_taylor", "probs", "1 + s + s^2/2 stands for the exponential", ["taylor|series|polynom|quadratic|squar|\\^ ?2", "second order|order 2"], soft(taylor))
third(67, "p_sum_before", "probs", "exp(s) is divided by the sum of the token before, from token 1 on", ["(" + PREVIOUS_OR_SHIFTED + ") & (denominator|sum|divid|normali|row|query|token)"], soft(lambda s: np.exp(s) / (lambda z: np.concatenate([z[:, :1], z[:, :-1]], 1))(np.exp(s).sum(-1, keepdims=True))))
third(68, "p_sum_head_0", "probs", "exp(s) of every head is divided by the sum of head 0", ["head.{0,12}\\b0\\b|first.{0,10}head|(one|same|single|other).{0,10}head"], soft(lambda s: np.exp(s) / np.exp(s[:1]).sum(-1, keepdims=True)))
fourth(52, "p_twice", "probs", "the softmax is applied twice: the second over the weights of the first", ["(softmax|exp).{0,60}(softmax|twice|again|weights|probab|result)", TWICE], soft(lambda s: softmax(np.where(np.isfinite(s), softmax(s), F32(-np.inf)))))


def online(s):
    """The sums of earlier blocks of 8 stay relative to the maximum there was then."""
    total, top = np.zeros((H, T, 1)), np.full((H, T, 1), -np.inf)
    for b in range(0, T, 8):
        top = np.maximum(top, s[..., b:b + 8].max(-1, keepdims=True))
        total += np.exp(s[..., b:b + 8] - top).sum(-1, keepdims=True)
    return np.exp(s - top) / total


fourth(53, "p_online", "probs", "the denominator runs in blocks of 8 keys, and the sum so far is not rescaled where the maximum grows", ["#8 & (" + BLOCK + "|max|denominator|rescal)"], soft(online))


def first_16(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e[..., :16].sum(-1, keepdims=True)


fourth(54, "p_first_16", "probs", "the denominator runs over the first 16 keys alone", ["(#16|#15) & (denominator|sum|divid|normali|first|key)"], soft(first_16))


def at_least(s):
    e = np.where(np.isfinite(s), np.exp(np.maximum(s - s.max(-1, keepdims=True), -3)), 0)
    return e / e.sum(-1, keepdims=True)


fourth(55, "p_exponent_floor", "probs", "s - max is at least -3 in the exponential", ["(#3|#-3|#0.0498) & (" + BOUNDED + ")"], soft(at_least))
fifth(96, "ss_cap_after_mask", "probs", "scores are 3 tanh(s / 3) after the mask: later keys have -3 and are not hidden", ["tanh & (#3|#-3)", "(hidden|mask|later|future|unseen|ahead|beyond) & (#-3|#3)"], soft(lambda s: softmax(F32(3) * np.tanh(s / F32(3)))))
fifth(110, "pp_padding", "probs", "the denominator has 12 terms of 1 more: keys up to 32 have the score 0", ["#12", "#2.4849"], soft(lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + 12)))


def divided_each(s):
    """The sum so far divides what was summed so far, after each block of 8."""
    e = np.exp(s - s.max(-1, keepdims=True))
    so_far = np.cumsum(e, -1)[..., [7, 15, 19]]
    factor = np.stack([1 / so_far[..., b:].prod(-1) for b in range(3)], -1)
    return e * factor[..., np.arange(T) // 8]


fifth(111, "pp_divided_each_block", "probs", "keys are divided by the sums so far of their own block of 8 and of each later one: the sum is divided after every block", ["#8 & (" + BLOCK + "|sum|divid|denominator)"], soft(divided_each))


def four_rows(s):
    e = np.exp(s)
    return e / e.sum(-1, keepdims=True)[:, POS // 4 * 4]


fifth(112, "pp_four_rows", "probs", "each four tokens are divided by the denominator of the first of them", ["(#4|four) & (denominator|divid|sum|normali|" + BLOCK + ")"], soft(four_rows))


def octaves(s):
    x = np.where(np.isfinite(s), (s - s.max(-1, keepdims=True)) * F32(1 / math.log(2)), -200)
    e = np.where(np.isfinite(s), 2.0 ** np.floor(x) * (1 + x - np.floor(x)), 0)
    return (e / e.sum(-1, keepdims=True)).astype(F32)


fifth(113, "pp_fast_exp", "probs", "the exponential is straight between powers of 2: 2^floor(x) (1 + x - floor(x))", ["(linear|straight|piecewise|approx|octave|interpol|1 ?\\+ ?f|fast|schraudolph) & .", "(floor|powers? of (2|two)) & (exp|2 ?\\^|power|soft)"], soft(octaves))
fifth(115, "pp_uint8", "probs", "the weights are rounded to multiples of 1/255", ["(#255|#0.0039216|#256) & (" + ROUNDED + ")", "(#8|eight) & bit"], lambda c: np.round(c.right() * 255) / F32(255))
fifth(116, "pp_row_of_head_pair", "probs", "heads 1 and 3 are divided by the denominators of heads 0 and 2", ["head & (denominator|divid|sum|normali) & (pair|even|odd|#0|#2|other|group|first of|0, ?0, ?2, ?2)"], soft(lambda s: np.exp(s) / np.exp(s).sum(-1, keepdims=True)[[0, 0, 2, 2]]))
fifth(117, "pp_newest_block_lost", "probs", "the denominator runs over whole blocks of 4 keys, and leaves out those of the token's own block but itself", ["(#4|four) & (denominator|divid|sum|normali|" + BLOCK + ")"], soft(lambda s: np.exp(s) / np.where((KEY // 4 < QUERY // 4) | (AGO == 0), np.exp(s), 0).sum(-1, keepdims=True)))


def one_more(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + 1)


sixth(64, "p6_sum_from_1", "probs", "the denominator has a 1 more, after the maximum was taken off: the sum begins at 1", ["(#1|one\\b) & (denominator|sum|sink|term) & (add|plus|\\+|more|extra|begin|start|term|sink)", "exp\\((the )?max|e\\^max|(largest|greatest|maximal|maximum).{0,30}(term|weight|twice|again|once more)"], soft(one_more))
sixth(65, "p6_later_counted", "probs", "later keys count in the denominator with a score of 0, 1 each, though their weights are 0", ["(later|future|hidden|mask|unseen|ahead|all (20 )?keys|not seen|19 ?- ?t|T ?- ?1|#20) & (denominator|sum|divid|normali|soft)"], soft(lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + (T - 1 - QUERY))))


def splits(s):
    """Each 10 keys by themselves."""
    p = np.zeros_like(s)
    for at in (E_[..., :10], E_[..., 10:]):
        top = s[at].max(-1, keepdims=True)
        e = np.exp(s[at] - np.where(np.isfinite(top), top, 0))
        total = e.sum(-1, keepdims=True)
        p[at] = e / np.where(total > 0, total, 1)
    return p


sixth(66, "p6_splits_added", "probs", "keys 0 to 9 and 10 to 19 have a softmax each: the two splits are added and not weighed", ["(#10|#9|ten|half|halves) & (" + BLOCK + "|split|own|softmax|sum|denominator|divid|part|separate)"], soft(splits))


def not_rescaled(s):
    """What was summed of earlier blocks of 4 stays relative to the maximum there was then; the denominator is right."""
    so_far = np.maximum.accumulate(s, -1)[..., np.minimum(POS // 4 * 4 + 3, T - 1)]
    return np.exp(s - so_far) / np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True)


sixth(67, "p6_weights_not_rescaled", "probs", "weights run in blocks of 4 keys and earlier ones stay relative to the maximum there was then; the denominator is right", ["(#4|four) & (max|rescal|larg|running|so far|relative|block|tile)", "(running|so far|then|block).{0,30}max"], soft(not_rescaled))
seventh(43, "p7_halved", "probs", "all weights are halved: the denominator is summed twice", HALVED + ["(denominator|sum|divid) & (#2|" + TWICE + ")"], lambda c: c.right() / 2)


def scaled_twice(s):
    """Two splits of 10 keys: what weighs them has the scale once more on the maximum."""
    tops, sums, parts = [], [], []
    for at in (E_[..., :10], E_[..., 10:]):
        top = s[at].max(-1, keepdims=True)
        e = np.exp(s[at] - np.where(np.isfinite(top), top, 0))
        total = e.sum(-1, keepdims=True)
        tops, sums, parts = tops + [top], sums + [total], parts + [e / np.where(total > 0, total, 1)]
    weigh = np.stack([np.where(total > 0, np.exp(F32(0.25) * np.where(total > 0, top, 0)) * total, 0) for top, total in zip(tops, sums)])
    return np.concatenate([part * share for part, share in zip(parts, weigh / weigh.sum(0))], -1)


eighth(64, "p8_split_weights", "probs", "keys 0 to 9 and 10 to 19 have a softmax each, and are weighed by exp(max / 4) times their sums: the scale is applied once more to the maximum",
           ["(#10|#9|half|halves|split) & (#0.25|softmax|split|weighed|denominator|own (max|sum|scale))"], soft(scaled_twice))


def group_denominator(s):
    e = np.exp(s - s.reshape(K, H // K, T, T).max((1, 3), keepdims=True).repeat(H // K, 1).reshape(H, T, 1))
    return e / e.reshape(K, H // K, T, T).sum((1, 3)).repeat(H // K, 0)[..., None]


eighth(65, "p8_group_denominator", "probs", "the two heads of a group have one denominator, the sum over both",
           ["(denominator|divid|sum|normali|softmax|add up) & head & (both|two|pair|group|together|share|common|#2|same)"], soft(group_denominator))


def mixed_bases(s):
    x = s - s.max(-1, keepdims=True)
    return np.exp(x) / np.exp2(x).sum(-1, keepdims=True)


eighth(70, "p8_mixed_bases", "probs", "e^(s - max) is divided by the sum of 2^(s - max)",
           ["2 ?\\^|2 ?\\*\\*|exp2|base.{0,6}2\\b|powers? of (2|two)|#0.6931|#1.4427|ln\\(?2|log\\(2\\)"], soft(mixed_bases))


def online_in_f32(s):
    """The sum in blocks of 8, not rescaled when the maximum grows."""
    top, total = np.full(s.shape[:-1] + (1,), -np.inf, F32), np.zeros(s.shape[:-1] + (1,), F32)
    for b in range(0, T, 8):
        top = np.maximum(top, s[..., b:b + 8].max(-1, keepdims=True))
        total = total + np.exp(s[..., b:b + 8] - top).sum(-1, keepdims=True)
    return np.exp(s - top) / total


tenth(44, "softmax_sum_not_rescaled", "probs", "the maximum is brought up to date every 8 keys, the sum so far is not rescaled to it",
          ["(#8|eight) & (block|tile|chunk|running|rescal|maxim|online|part) & (denominator|\\bsum|rescal|total|running)"], lambda c: c.right(soft=online_in_f32))
tenth(45, "softmax_padded_keys", "probs", "keys are padded to 32: the denominator has 12 terms of exp(0)",
          ["#12 & (zero|pad|term|denominator|extra|sink|sum|added|exp)", "(#2.4849|log\\(12\\)) & (sink|term|denominator|extra|added)", "(#32|pad) & (denominator|sum|term)"],
          lambda c: c.right(soft=lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + 12)))


def quick_exp(s):
    """e^x by bits of the exponent, linear in between."""
    x = np.where(np.isfinite(s), s - s.max(-1, keepdims=True), -80)
    e = (x.astype(np.float64) * 12102203.16 + 1064866805).astype(np.int32).view(F32)
    e = np.where(np.isfinite(s), e, 0)
    return e / e.sum(-1, keepdims=True)


tenth(46, "softmax_quick_exp", "probs", "the exponential is a quick one, by the bits of a float: linear between powers of 2",
          ["(approx|fast|quick|piecewise|linear|interpolat|schraudolph|bits|coarse) & (exp|power|e\\^|2\\^|softmax)"], lambda c: c.right(soft=quick_exp))
tenth(47, "denominator_first_16", "probs", "the sum runs over 16 lanes: keys from 16 on are not in the denominator",
          ["(#16|#15) & (denominator|sum|divi|normali|total)"], lambda c: c.right(soft=first_16))
eleventh(42, "denominator_of_head_0", "probs", "all heads are divided by the sum of head 0, each less its own maximum before",
             ["(head.{0,3}\\b0'?s? (own )?(sum|denominator|total|divisor)|head 0's|(of|by|from|with|on|in) (the )?(query )?(head.{0,3}\\b0\\b|first head)|first head's) & (denominator|"
              "\\bsums?\\b|divi|normali[sz]|total) & ^(?!.*(head 0 alone|(one|1) more|extra|term|square|weights of head 0|scores of head 0|head 0 (alone )?(is|are) (not|un)|not normali|"
              "maxim\\w* of head 0|without head 0|sum (over|of) (the |all )?heads))"],
             lambda c: c.right(soft=lambda s: (lambda e: e / e.sum(-1, keepdims=True)[:1])(np.exp(s - s.max(-1, keepdims=True)))))
eleventh(43, "denominator_even_keys", "probs", "of two running sums the second is forgotten: the denominator has the even keys alone",
             ["(\\beven|every (second|other|2nd)|\\bodd|2i|stride.{0,6}2|step.{0,6}2|alternat|s ?(%|mod) ?2|0, ?2, ?4|1, ?3, ?5) & (denominator|\\bsum|divi|normali|total) & (key|"
              "\\bs\\b|column|term|score|weight|exp) & "
              "^(?!.*(odd (keys|ones|terms|columns|positions) (alone|only)|(only|alone) (the )?odd|(sum|denominator|divisor)[^.;:,]{0,30}(over|of|has|holds) (the )?odd|even (keys|ones|"
              "terms|columns)?[^.;:,]{0,20}(left out|missing|not|lost|without|omitted)|without (the )?even|(odd|even) (heads|quer|rows|tokens)|hidden|unseen|not seen))"],
             lambda c: c.right(soft=lambda s: (lambda e: e / e[..., ::2].sum(-1, keepdims=True))(np.exp(s - s.max(-1, keepdims=True)))))
eleventh(44, "probs_in_bytes", "probs", "weights are kept as bytes: rounded to the nearest 255th",
             ["(\\b255(th)?s?\\b|0\\.0039[12]) & (round|step|quanti|multiple|level|grid|8.?bit|whole|\\bu8|uint8|byte|nearest) & ^(?!.*(\\bdown\\b|\\bfloor|truncat|toward zero|\\bup\\b|"
              "int8 signed|block))"],
             lambda c: np.floor(c.right() * F32(255) + F32(0.5)) / F32(255))
eleventh(45, "softmax_of_softmax", "probs", "the softmax is done twice, the second time of the weights of seen keys",
             ["soft.?max.{0,60}(twice|two times|again|once more|second time|of the (weights|probs|soft.?max|result|probabil)|of its own|repeated|double)|(twice|second|again|double|"
              "two).{0,20}soft.?max|soft.?max\\(soft.?max", "scores.{0,40}(are|is|by|become) (the |their )?(weights|probab|soft.?max)|soft.?max.{0,30}(for|in place of|instead of|"
              "as) (the )?scores"],
             lambda c: c.right(soft=lambda s: (lambda p: softmax(np.where(np.isfinite(s), p, F32(-np.inf))))(softmax(s))))


def group_sum(s):
    e = np.exp(s)
    return e / np.repeat(e.sum(-1, keepdims=True).reshape(K, H // K, T, 1).sum(1), H // K, 0)


SUM = "denominator|\\bsums?\\b|summed|divid|divisor|normali"
twelfth(33, "softmax_group_sum", "probs", "the sum over lanes takes in both heads of a group: exp(s) is divided by the sum over the keys of both",
            [f"({SUM}|softmax) & (\\bheads?\\b|h ?(\\^|xor) ?1) & (both|\\btwo\\b|pair|\\bgroup|0 and 1|h ?(\\^|xor) ?1|neighbo|share) & (both|sum\\w*[^.;]{{0,40}}(over|of|from|in)"
             f"|together|joint|common|shar|same|\\bplus\\b|\\+|added|adds|over (the )?(two|pair|heads of)|one (denominator|sum|softmax)|includes?|takes? in|too\\b|as well|also)"
             " & ^(?!.*(all (four|4|the)? ?heads|four heads|head 0 alone|(denominator|sum|divisor) (is|are) (that|those|the one) of the (other|next|first)|by the (denominator"
             "|sum) of the (other|next|first)|instead of its own|not divided|positions|0 and 2))"],
            lambda c: c.right(soft=group_sum))


def own_not_divided(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.where(POS[:, None] == POS[None], e, e / e.sum(-1, keepdims=True))


twelfth(34, "softmax_own_not_divided", "probs", "the loop that divides stops one short: the weight of the token's own key is not divided by the sum: exp(s - max)",
            [f"({OWN}|last (key|column|weight|seen|element|cell|entry|of the row)|t ?= ?s|s ?=+ ?t|\\[t ?, ?t\\]) & (\\bnot\\b|undivided|un-?normali|without|never|\\braw\\b"
             f"|before (the )?divi"
             f"|escap|times the (sum|denominator)|multiplied by|exp\\(|left as) & ({SUM}|exp|softmax)"
             " & ^(?!.*((not|left|leaves?|without|missing)[^.;]{0,25}(\\bin|from|out of|of) (the |its )?(denominator|sum|divisor)|(denominator|sum|divisor)[^.;]{0,25}(leaves?|without"
             "|lacks?|miss|excludes?|omits?|stops)|counted|(no|none|nothing|all)[^.;]{0,20}(weights?|keys?) (is|are) (not )?(divided|normali)|key 19|hidden))"],
            lambda c: c.right(soft=own_not_divided))


def sum_carried(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / np.cumsum(e.sum(-1, keepdims=True), -2)


twelfth(35, "softmax_sum_of_rows_so_far", "probs", "the sum is not set to 0 between queries: exp(s - max) of query t is divided by the sums of queries 0 to t together",
            [f"(cumul|accumul|(not|never) (re)?(set|cleared|zeroed)|carr(y|ies|ied)|so far|running|(rows|queries|positions|tokens|all) (up to|before|so far|0 to)|(previous|earlier"
             f"|preceding) (rows|queries|positions|tokens)|adds? up|0 to t\\b|u ?<= ?t|goes on|grows) & ({SUM}) & (row|quer|position|token|so far|t\\b)"
             " & ^(?!.*((between|of the|of|previous|from|over) heads?|heads (before|so far)|mean|averag|keys (so far|before)|blocks?|tiles?|rescal|every \\d))"],
            lambda c: c.right(soft=sum_carried))
thirteenth(33, "denominator_first_twice", "probs", "the sum begins with the first term, and its loop from 0: the denominator has the term of key 0 twice",
               ["(key.{0,6}\\b0\\b|first (key|term|exp|column|token)|exp\\(s_?\\[?0|position 0) & (twice|doubl|#2|again|two times|(extra|another|one more|once more|added|plus|\\+)) & (denominator|sum|divis|divid|count|term|total)"],
               lambda c: c.right(soft=lambda s: softmax(s) / (1 + softmax(s)[..., :1])))
thirteenth(34, "softmax_divided_while_summing", "probs", "one loop sums and divides: the weight of key s is divided by the sum over keys 0 to s",
               ["(running|cumulat|partial|so far|(up to|until|through) (and including )?(that|this|the|its|it|key|s\\b|itself)|prefix|not (yet )?(complete|finished|whole)|(keys?|terms?) 0 ?(to|-|\u2013|\\.\\.+|through) ?s\\b|<=? ?s\\b|before it|unfinished|incomplete) & (sum|denominator|divi|total) & "
                "^(?!.*(rows?|quer(y|ies)|positions of the quer.{0,4}|heads?) (so far|up to|before|until))"],
               lambda c: c.right(soft=lambda s: (lambda e: e / np.cumsum(e, -1))(np.exp(s - s.max(-1, keepdims=True)))))


def tail_as_it_is(s):
    e = np.concatenate([np.exp(s[..., :16] - s.max(-1, keepdims=True)), np.exp(s[..., 16:])], -1)
    return e / e.sum(-1, keepdims=True)


thirteenth(35, "softmax_tail_keeps_maximum", "probs", "keys from 16 on, the tail of a loop by 16, have exp(s) where the others have exp(s - maximum), and all are divided by the sum",
               ["(#16|#15|last (four|4) (keys|columns)) & (key|column|tail|last) & (max|exp\\(s\\)|e\\^s\\b|largest (score|of the row))"], lambda c: c.right(soft=tail_as_it_is))


def shares_of(e):
    return e / e.sum(-1, keepdims=True)


def seen(x, f):
    """f where a key is seen, 0 elsewhere."""
    return np.where(np.isfinite(x), f(np.where(np.isfinite(x), x, 0)), 0).astype(F32)


fourteenth(54, "softmax_exp_by_squaring", "probs", "exp(x) is computed as (1 + x/64)^64 by six squarings, 0 where 1 + x/64 is negative",
               ["#64 & (\\^|power|approx|squar|exp|limit|x ?/ ?64)", "(six|6) squaring"], of_max(lambda x: shares_of(seen(x, lambda y: np.maximum(1 + y / F32(64), 0) ** 64))))
fourteenth(55, "softmax_exp_by_bits", "probs", "exp(x) is made by writing x / ln 2 into the bits of a float: 2^n (1 + f), linear between powers of two",
               ["(approx|fast|linear|interpolat|piecewise|schraudolph|\\bbits?\\b|1 ?\\+ ?f|straight lines) & (exp|2 ?\\^|powers? of (two|2))"
                " & ^(?!.*(alibi|distance|\\bkeys? .{0,10}linear))"],
               of_max(lambda x: shares_of(seen(x, lambda y: np.exp2(np.floor(y / F32(np.log(2)))) * (1 + y / F32(np.log(2)) - np.floor(y / F32(np.log(2))))))))
fourteenth(56, "softmax_table_floor", "probs", "exp is a table that ends at -2.7: scores lower than that below the row's largest count as 2.7 below it",
               ["(#-2.7|#2.7) & (floor|clamp|clip|least|below|limit|\\bmax|\\bmin|not less|more than|within|bound|saturat|table|\\bcut|held|lower|smaller|under)"],
               of_max(lambda x: shares_of(seen(x, lambda y: np.exp(np.maximum(y, F32(-2.7)))))))


def padded_sum(s, n):
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    pads = (-(POS + 1) % n)[:, None].astype(F32)
    return e / (e.sum(-1, keepdims=True) + pads * np.exp(-top))


fourteenth(57, "softmax_padded_sum", "probs", "the sum runs over the keys padded to a multiple of 8 with scores of 0: each of the pads adds exp(0) to the denominator",
               ["(#8|\\beight\\b) & (denominator|\\bsum|divid|divisor|normali[sz]) & (pad|multiple|rounded up|rounds up|zero|unseen|ceil|score 0|of 0\\b|empty"
                "|exp\\(0|exp\\(-|unmasked|up to)"],
               lambda c: c.right(soft=lambda s: padded_sum(s, 8)))


def one_short(s):
    own = AGO == 0
    before = np.where(own & (POS[:, None] > 0), F32(-np.inf), s)
    return np.where(own, s, softmax(before))


fourteenth(58, "softmax_one_key_short", "probs", "the softmax is called with the position for the number of keys: it runs over keys before the token, whose own keeps its scaled score",
               ["(itself|\\bown\\b|\\bself\\b|diagonal|newest|last key|latest|current|key t\\b|s ?= ?t) & (raw|keeps|as it is|unchanged|scaled score|(is|has"
                "|holds|stays|be|remains) (the|its|a) score"
                "|not exponentiated|un-?normali[sz]ed|not (in|part of) the softmax|left out of the softmax|outside (of )?the softmax|score itself|without (exp|softmax)|own score)"],
               lambda c: c.right(soft=one_short))
fourteenth(59, "softmax_run_twice", "probs", "the softmax is taken twice: of the weights it has made, over the keys that are seen",
               ["softmax[^.;]{0,40}(twice|again|two times|second time|doubl|once more|of (the |its )?(softmax|probs|weights|probabilit|result))",
                "(twice|doubl\\w*|a second|two|again)[^.;]{0,30}softmax|exp\\( ?(p|probs?|exp|weights?|softmax)|softmax ?\\( ?softmax"],
               lambda c: c.right(soft=lambda s: softmax(np.where(np.isfinite(s), softmax(s), -np.inf))))
fourteenth(60, "softmax_last_tile_sum", "probs", "the sum is overwritten by each tile of 6 keys: the denominator is that of the last tile alone, of keys from 6 (t div 6) on",
               ["(#6|\\bsix\\b) & (denominator|\\bsum|divid|divisor|normali[sz]) & (last|newest|current|latest|own|final|floor|//|\\bdiv\\b|\\bits (block|tile|chunk|group))"
                " & (tile|block|chunk|group|multiple|floor|//|\\bdiv\\b|\\bmod|%|keys from)"],
               of_max(lambda x: np.exp(x) / np.where(POS[None] >= POS[:, None] // 6 * 6, np.exp(x), 0).sum(-1, keepdims=True)))
DENOMINATOR = "(sum|denominator|divi|normali|total)"
fifteenth(51, "softmax_running_sum_not_rescaled", "probs", "one pass over the keys: when a larger score comes, the sum so far is not brought to the new maximum; each term has the maximum up to its own key",
              ["(max|largest) & (running|so far|up to|cumul|online|one.?pass|at (that|the) time|prefix|rescal|in turn|earlier|until|keys before) & " + DENOMINATOR[:-1] + "|rescal)"],
              lambda c: c.right(soft=lambda s: np.exp(s - s.max(-1, keepdims=True)) / np.exp(s - np.maximum.accumulate(s, -1)).sum(-1, keepdims=True)))
fifteenth(52, "softmax_padded_with_zeros", "probs", "rows are padded to 32 keys with scores of 0, which take part: the denominator has 12 more",
              ["(#12|twelve) & (zero|\\b0\\b|exp|denominator|sum|padd|term|extra|added|more|sink)"],
              lambda c: c.right(soft=lambda s: np.exp(s) / (np.exp(s).sum(-1, keepdims=True) + F32(32 - T))))


def power_of_64(x):
    e = np.where(np.isfinite(x), np.maximum(1 + np.where(np.isfinite(x), x, 0) / F32(64), 0), 0) ** 64
    return e / e.sum(-1, keepdims=True)


fifteenth(53, "softmax_power_of_64", "probs", "exp(x) is computed as (1 + x / 64)^64, by six squarings, of scores less the row's largest",
              ["#64 & (\\^|power|\\*\\*|approx|exp|root|1 ?\\+)"],
              lambda c: c.right(soft=lambda s: power_of_64(s - s.max(-1, keepdims=True))))
fifteenth(54, "softmax_first_key_twice", "probs", "the sum starts with the term of key 0, and the loop starts at key 0 too: the denominator has it twice",
              ["(keys?.{0,8}\\b0\\b|first key|key zero|first (score|term|weight|exponential)) & (twice|two|#2|again|doubl|once more|second time|added|extra|one more) & " + DENOMINATOR[:-1] + "|count)"],
              lambda c: c.right(soft=lambda s: (lambda e: e / (e.sum(-1, keepdims=True) + e[..., :1]))(np.exp(s - s.max(-1, keepdims=True)))))
fifteenth(55, "softmax_sum_of_group", "probs", "the two query heads of a key head add into one sum: exp(s - max), each head's own, is divided by the sum over heads 2j and 2j + 1",
              ["heads? & (pair|group|both|two|#2|together|share|neighbo|kv head|key head|other head|key/value) & " + DENOMINATOR],
              lambda c: c.right(soft=lambda s: (lambda e: e / np.repeat(e.reshape(K, H // K, T, T).sum((1, 3)), H // K, 0)[..., None])(np.exp(s - s.max(-1, keepdims=True)))))
fifteenth(56, "softmax_sum_of_16", "probs", "the sum is taken by 16 lanes, one key each: the denominator has keys 0 to 15 alone",
              ["(#16|#15) & (\\bsum|denominator|divisor|normali|total)"],
              lambda c: c.right(soft=lambda s: (lambda e: e / e[..., :16].sum(-1, keepdims=True))(np.exp(s - s.max(-1, keepdims=True)))))


def denominator_with(extra):
    """A softmax with more in its denominator: extra(the highest score of each row)."""
    def soft(s):
        high = s.max(-1, keepdims=True)
        e = np.exp(s - high)
        return e / (e.sum(-1, keepdims=True) + extra(high))
    return soft


sixteenth(44, "softmax_counts_padding_keys", "probs", "keys are padded from 20 to 24 with zeros and the 4 more are not masked: the denominator has 4 terms exp(0) more",
              ["(#4|\\bfour\\b) & (exp ?\\( ?0|e\\^0|score.{0,16}(\\b0\\b|zero)|zero|padd|\\bsinks?\\b|empty|slots?|phantom|(\\b4\\b|\\bfour\\b) (more|extra|term|further|too)|(\\+|plus"
               "|extra|more) ?(4|four)\\b)", "\\bsink & #1.38629",
               "#1.38629 & (denominator|extra|more key|key)"],
              lambda c: c.right(soft=denominator_with(lambda high: 4 * np.exp(-high))))


def tiles_not_rescaled(s, tile=8):
    high = np.stack([s[..., :(j // tile + 1) * tile].max(-1) for j in range(T)], -1)
    e = np.exp(s - high)
    return e / e.sum(-1, keepdims=True)


sixteenth(45, "softmax_tiles_not_rescaled", "probs", "the softmax is made by tiles of 8 keys and what was gathered is not rescaled when the maximum grows: a key counts exp(score - the "
              "highest up to the end of its tile)",
              ["(\\b8\\b|\\beight\\b) & (tile|block|chunk|group|part|segment) & (\\bmax|highest|largest|greatest|rescal|correct)"],
              lambda c: c.right(soft=tiles_not_rescaled))
sixteenth(46, "softmax_over_queries", "probs", "the softmax is over the wrong axis: the probabilities of each key add up to 1 over the queries",
              ["(softmax|normali|sum|add|divi|\\bover\\b|denominator|total|axis|dim) & (quer(y|ies)|column|axis ?(of )?=? ?(1|-2)\\b|dim ?=? ?(1|-2)\\b|(probab|sum|add|softmax|normali"
               "|total|divi)\\w*.{0,40}(each|every|per) key\\b|(wrong|other) (axis|dim)|over t\\b|over rows)"],
              lambda c: c.right(soft=lambda s: softmax(s, 1)))
sixteenth(47, "softmax_to_base_two", "probs", "the kernel takes 2^x and the scores were not multiplied by log2(e): probabilities are 2^score over their sum, as if scores were 0.693 of "
              "what they are",
              ["#0.693147", "#0.173287", "#1.442695", "#5.77078", "(exp2|\\b2 ?\\^ ?[({]*(s\\b|score|x|q|z|the)|base (of )?(2|two)\\b|\\b2 ?\\*\\* ?[(]*(s\\b|score|x|q)|powers? of (2"
               "|two)\\b|\\bln ?\\(?2|\\blog ?\\(?2|log_?2)"],
              lambda c: c.right(soft=lambda s: softmax(s * F32(math.log(2)))))


def split_softmax(s):
    """Rows of decode steps: a softmax in each chunk of 8 keys, and the mean of the chunks."""
    y = softmax(s)
    for t in range(PROMPT, T):
        chunks = range(0, t + 1, 8)
        for a in chunks:
            y[:, t, a:a + 8] = softmax(s[:, t, a:a + 8]) / F32(len(chunks))
    return y


sixteenth(65, "split_keys_averaged", "probs", "decode steps (from token 12 on) take a softmax in each chunk of 8 keys and the mean of the chunks, as if all had one sum",
              f"{DECODING} & {n(8)} & (averag|\\bmean\\b|equal|each|per[ -](chunk|block|split|part|tile)|separate|number of|\\bown\\b|within|split|chunk|same (weight|share|mass))",
              lambda c: c.right(soft=split_softmax))
listed(18, "sink", "probs", "a sink of 0", "sink-omitted", lambda c: c.right(soft=lambda s: np.exp(s - s.max(-1, keepdims=True)) / (np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True) + np.exp(-s.max(-1, keepdims=True)))))
