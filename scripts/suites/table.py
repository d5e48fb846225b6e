"""Every slow check: what it is, and how it is run as a sample (.ci/run) and whole (.ci/full). The driver is __main__.py."""

from typing import NamedTuple

FIRSTDIFF, EVALUATE = "target/release/firstdiff", "target/debug/examples/evaluate"
COMMAND = f"--command {FIRSTDIFF}"
OF_SETS = "laws: mistakes that no catalogue lists, by people who had not seen how laws are found"


class Suite(NamedTuple):
    name: str
    title: str
    script: str  # under scripts/; or a command of cargo
    both: str = ""  # arguments of the sample and of the whole
    sample: str | None = ""  # None: not in the sample
    whole: str | None = ""  # None: neither, run by name alone
    needs: str = ""  # what the driver looks for or prepares: see NEEDS there
    before: tuple = ()  # commands whose failure is the suite's
    last: bool = False  # with nothing beside it, after all others


def laws(name, seed, some, sample_of="llama,qwen2,moe"):
    """One set of scripts/forms, which stands behind its name there."""
    every = "llama,qwen2,qwen3,moe"
    return Suite(f"laws-{name}", f"{OF_SETS}: the {name} set", "suites/test_laws.py", f"{COMMAND} --set {name} --seed {seed}", f"--arch {sample_of} --only {some}", f"--arch {every}")


SUITES = [
    Suite("pages", "pages: in a headless Chromium, by click and key", "suites/test_html.py", needs="browser"),
    Suite("dumpers", "dumpers: PyTorch and llama.cpp as references", "suites/test_dumpers.py", "", "--only llama qwen2 minimind-3 --with-checks"),
    Suite("action", "action: its steps as GitHub's runner runs them", "suites/test_action.py"),
    Suite("wheel", "wheel: built, installed in a clean environment, and used", "suites/test_wheel.py", needs="wheel"),
    Suite("comparators", "other comparators: firstdiff's own answers, or all of them", "measure/compared.py", f"{COMMAND} --check --without-large", "--peers firstdiff"),
    # Among the longest: not last, with a core idle beside it.
    Suite("rounding", "rounding: deep models, right and wrong", "suites/test_rounding.py", sample=None),
    Suite("campaign", "campaign: comparisons of known truth", "suites/campaign.py", "", "--count 400", "--count 6000"),
    Suite("programs-evaluated", "programs: PyTorch's, recorded, carried out again, evaluated", "suites/test_programs.py", f"--evaluate {EVALUATE}",
          "llama gemma3_text qwen3_moe deepseek_v3 mamba2 gpt2 bert vit"),
    Suite("programs-faults", "programs: planted faults, by compare", "suites/test_program_faults.py", COMMAND, "llama zamba2 qwen3_moe vit"),
    Suite("programs-dtypes", "programs: the same names in f32, f16 and bf16", "suites/test_programs.py", "--dtypes", "llama gemma2 mamba2 qwen3_moe"),
    Suite("programs-experts", "programs: experts under the candidate's own routing", "suites/test_program_experts.py", COMMAND, "qwen3_moe"),
    Suite("programs-expert-forms", "programs: forms of experts' rows", "suites/test_expert_forms.py", COMMAND,
          "mixtral gpt_oss --forms own-token padded-token by-place places-first sorted-place"),
    Suite("programs-expert-orders", "programs: other orders of places and of sorted rows, and taps beside the program", "suites/test_expert_orders.py", COMMAND,
          "qwen3_moe mixtral gpt_oss granitemoe"),
    # One set of scripts/planted/program_mistakes, which stands behind its name.
    Suite("programs-mistakes-first", "programs: mistakes made in PyTorch, placed and explained", "suites/test_program_mistakes.py", COMMAND,
          "--each 3 --variant f32,half --only llama gpt2 qwen3_moe", "--each 6"),
    Suite("programs-mistakes-second", "programs: the same, of mistakes held back from those who work on the explainer", "suites/test_program_mistakes.py",
          f"{COMMAND} --set second", None, None),
    Suite("programs-mistakes-third", "programs: the same, of mistakes written by somebody who had not seen what finds them", "suites/test_program_mistakes.py",
          f"{COMMAND} --set third --seed 20261201 --variant f32,bf16", "--each 4 --only llama mpt", "--each 6"),
    Suite("programs-mistakes-fourth", "programs: another such set", "suites/test_program_mistakes.py", f"{COMMAND} --set fourth --seed 20261124 --variant f32",
          "--each 3 --only llama qwen3_moe", "--each 7"),
    Suite("programs-right", "programs: right engines, in other arithmetics, with narrow caches, fused attention, other threads", "suites/test_right_programs.py", COMMAND,
          "--only llama gpt2"),
    Suite("programs-few-numbers", "programs: few numbers, of which nothing may be proved", "suites/test_few_numbers.py", COMMAND, "--seconds 1 --count 12",
          "--seconds 3 --count 520"),
    laws("fourth", 20261124, "n_sum_bf16 s_pages s_layout p_twice w_first_scale a_interleaved", "llama"),
    laws("fifth", 20261125, "nn_two_warps bb_of_q aa_gate_wide", "llama,qwen2"),
    *(laws(name, seed, some) for name, seed, some in (
        ("sixth", 20261126, "w6_input_blocks r6_table_by_pairs x6_rank_lost"),
        ("seventh", 20261127, "n7_gain_halves l7_next_row x7_router_half"),
        ("eighth", 20261128, "w8_tiles_transposed e8_rows_60_apart x8_sum_of_three"),
        ("ninth", 20261129, "d9_context e9_gain"),
        ("tenth", 20261130, "norm_sum_not_reset logits_chunk_repeated rope_frequency_shared"),
        ("eleventh", 20261201, "context_key_tail cache_slot_stuck score_query_of_group"),
        ("twelfth", 20261202, "softmax_own_not_divided experts_slot_as_number gate_sum_counted_twice"),
        ("thirteenth", 20261203, "final_norm_roots_averaged norm_second_warp_early"),
        ("fourteenth", 20261204, "norm_rsqrt_magic values_head_not_grouped act_sigmoid_table"),
        ("fifteenth", 20261205, "norm_std_unbiased rope_table_ends_at_16 experts_capacity"),
        ("sixteenth", 20261206, "embed_read_eight_bytes_early scores_with_slopes_left_on first_expert_never_chosen"),
    )),
    Suite("laws-together", "laws: several mistakes in one engine, one of them of the catalogue", "suites/test_laws.py",
          f"{COMMAND} --together 2,3 --set fourth --arch llama,qwen2,qwen3", "--count 6", "--count 60"),
    Suite("laws-ggml", "laws: the same single mistakes in llama.cpp's arithmetic", "suites/test_laws.py",
          f"{COMMAND} --set fourth --arith q8_0,q4_0 --seed 20261124", "--only s_pages p_twice a_interleaved", "--arch llama,qwen2,qwen3"),
    Suite("laws-right", "laws: right engines, where nothing may be said", "suites/test_laws.py",
          f"{COMMAND} --arch llama,qwen2,qwen3 --arith f32,bf16,f16,q8_0,q4_0", "--clean 12", "--clean 400"),
    Suite("docs-new-architecture", "programs: an architecture that nobody has seen, from its recording to a proved cause", "suites/test_docs.py",
          "docs/guide/engines/new_architecture.md --without-candle"),
    Suite("ggml-evaluated", "programs: llama.cpp's, evaluated", "suites/test_ggml_programs.py", f"--names --evaluate {EVALUATE}",
          "llama qwen3_moe gemma2 mamba2 bert t5_with_decoder"),
    Suite("ggml-mistakes", "programs: llama.cpp's: right runs, and mistakes in the file that it runs", "suites/test_ggml_mistakes.py", COMMAND, "llama gpt2 mixtral --each 2", None),
    Suite("ggml-quantised", "programs: llama.cpp's, quantised", "suites/test_ggml_programs.py", f"--quantised --evaluate {EVALUATE}", "llama"),
    Suite("weights-faults", "weights: planted faults against llama.cpp's own conversion", "suites/test_program_weights.py", f"{COMMAND} --faults llama qwen3_moe"),
    Suite("weights-right", "weights: right conversions by llama.cpp", "suites/test_program_weights.py", COMMAND, "mamba2 gpt2"),
    Suite("packed", "weights: packed checkpoints as their libraries unpack them, and wrongly", "suites/test_packed.py", COMMAND, "int4-groups nf4-nested gptq awq fp8-blocks",
          needs="packed"),
    Suite("importers", "importers: every form that other programs write, right and wrong", "suites/test_importers.py"),
    Suite("puzzles", "layouts and shards: puzzles of real runs, right and wrong", "suites/test_puzzles.py", "", "", "--names"),
    Suite("layouts", "layouts: replay on every order of axes, right and wrong", "suites/test_layouts.py", "", "--only apart"),
    Suite("decode", "decode: one pass, prefill and steps, token by token, chunks; faults planted in PyTorch's cache", "suites/test_decode.py", "", "--only llama"),
    Suite("block-tables", "weights: tables of block types", "goldens/ggml_grids.py", "--check"),
    Suite("blocks", "weights: every block type bit for bit", "suites/test_quants.py"),
    # The tests' build does: a release build of xtask takes longer to link than it saves.
    Suite("zoo", "explain: planted mistakes, a sample of the zoo; a wrong cause fails", "cargo xtask zoo", "--check", "--every 151", "--every 17"),
    Suite("three-ways", "explain: the same answer by the plan, by PyTorch's program and by llama.cpp's", "suites/test_three_ways.py", COMMAND,
          "--every 60 --pairs 1 --triples 0 --free 2 --models qwen2 --seconds 5", "--every 12"),
    Suite("recorders", "recorders: C, C++ and Python, against the golden dumps", "suites/test_recorders.py", needs="cc"),
    Suite("pairs", "engines: pairs on one model, a mistake planted in each (whole: candle too, where crates.io can be reached)", "suites/test_pairs.py", "",
          "--without-candle", needs="cc"),
    Suite("docs", "docs/guide/engines: the worked examples run", "suites/test_docs.py", sample=None, needs="cc"),
    Suite("explain-run", "explain --run: unlisted mistakes of a PyTorch engine, asked for a few taps", "suites/test_explain_run.py", "", "--only none window_6 sharp_every"),
    Suite("bisect", "bisect: a PyTorch engine of 22 layers, a few taps at a time", "suites/test_bisect.py", sample=None),
    Suite("quantised", "weights: llama.cpp's arithmetic, planted mistakes", "suites/test_quantised.py", "", "--only Q4_1"),
    Suite("weight-zoo", "weights: a zoo of planted mistakes", "planted/weight_zoo.py"),
    Suite("engines", "foreign engines: right runs and planted mistakes (each engine from PyPI, in an environment of its own)", "suites/test_engines.py", sample=None),
    Suite("right", "explain: right runs of every family, where nothing may be found", "suites/test_right.py", "", "--only llama --kinds bf16 F16 Q8_0"),
    Suite("unpacked", "explain: quantised blocks unpacked wrongly, from activations alone", "suites/test_unpacked.py", sample=None),
    # The features that only this asks for have Cargo compile much anew.
    Suite("remote", "addresses: dumps in S3, Google Cloud Storage and on web servers", "suites/test_remote.py", sample=None, needs="remote", last=True,
          before=("cargo clippy -p firstdiff --features remote --all-targets --locked -- -D warnings", "cargo build --locked --quiet -p firstdiff --features remote")),
    Suite("inspect", "programs: right recordings of every architecture, of which inspect may be certain of nothing", "suites/test_program_inspect.py", COMMAND, None, None),
    Suite("smallest", "explain: from which size on a number that is off is named (--docs writes the page)", "suites/test_below_noise.py", sample=None, whole=None),
]
