"""Records the taps of a PyTorch model by hooks on its modules, by their Hugging Face names, within a `with` block."""

import hashlib
import os
import re
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import firstdiff
from firstdiff import RecordError, Recording, tap_patterns
from firstdiff.outputs import in_numbers, is_output, name_of_output, outputs_of

# Below a decoder layer: module -> the tap that is its output. Heads are split where the tap has them.
OUTPUTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v",
    "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_out",
}
INPUTS = {"self_attn.o_proj": "context", "post_attention_layernorm": "h_attn", "mlp.down_proj": "ffn_act"}
# Norms on both sides of attention and feed-forward (Gemma 2 and 3); OLMo 2 has those behind alone.
SANDWICH_OUTPUTS = {"post_attention_layernorm": "attn_post_norm", "pre_feedforward_layernorm": "ffn_norm",
                    "post_feedforward_layernorm": "ffn_post_norm"}
SANDWICH_INPUTS = {"pre_feedforward_layernorm": "h_attn"}
HEADED = {"q", "k", "v", "q_norm", "k_norm"}
# What may stand before `layers` and `norm`: not the encoder of images or sounds.
STEM = {"model", "language_model", "decoder"}
ATTENTION = re.compile(rf"(?:(?:{'|'.join(STEM)})\.)*(layers\.\d+)\.self_attn")


class Watching:
    """A `with`: every forward call of `model` is one step of a dump."""

    def __init__(self, model, folder, modules, program, asked=os.environ):
        self.model, self.folder, self.modules, self.program, self.asked = model, folder, modules, program, asked
        self.unasked, self.called = False, {}  # every module is recorded though none was named; how often in this step

    def __enter__(self):
        if not self.program and (self.folder is not None or firstdiff.is_on()):
            self.settle_modules()
        self.outer = firstdiff._recording if self.folder is not None else firstdiff._current()
        self.recording = Recording(self.folder, self.asked) if self.folder is not None else self.outer
        self.stack, self.calls = ExitStack(), 0
        self.length, self.head = 0, None  # of the forward call under way: its tokens, what lm_head gave
        if self.recording:
            firstdiff._recording = self.recording
            self.describe()
            if self.program:
                self.follow()
            else:
                self.watch()
        return self.recording

    def __exit__(self, kind, *_):
        self.stack.close()
        if self.program and self.recording and kind is None:
            self.write_program()
        firstdiff._recording = self.outer
        if self.recording and kind is None:
            self.check_recorded()
        if self.folder is not None and kind is None:
            self.recording.finish()
        elif self.folder is not None:
            with suppress(OSError, RecordError):  # the engine's own error is the one to show
                self.recording.abandon()
        elif self.recording and kind is None:
            self.recording.pause()  # the process may record more, and need not say that it does not

    def check_recorded(self):
        """A dump that says nothing of the model, or next to nothing, must not look like one that does."""
        recorded = self.recording.entries
        own = [tap for tap, _ in recorded if not is_output(tap)]
        if not recorded and self.recording.taps == "*" and not self.recording.steps and not self.recording.rows:
            why = ("it was not called inside of the `with`" if self.calls == 0 else "none of its modules gave a tensor of floats, and it returned none")
            raise RecordError(f"no tap of {type(self.model).__name__} was recorded: {why}. Call the module that record() was given, not a function or another module; "
                              "what plain functions compute is recorded by firstdiff.record(\"layers.0.q\", q), one line a tensor")
        if recorded and not own:
            print(f"firstdiff: of {type(self.model).__name__} nothing but what it returns was recorded: no module or rule names what is computed inside. For the tensors "
                  "between, call firstdiff.record(\"layers.0.q\", q), one line a tensor, or record a model of modules", file=sys.stderr)

    def settle_modules(self):
        """Of a model in which no layer is known every module is recorded, under its own name: which taps they are a map can say later."""
        named = dict(self.model.named_modules())
        others = tap_patterns(self.modules)
        if self.modules and not any(name and others.fullmatch(name) for name in named):
            raise RecordError(f"modules='{self.modules}' names no module of this model (it has {some(named)})")
        known = any(tap and tap.startswith("layers.") for name in named for tap in [self.taps_of(name, named)[1]])
        if not known and not self.modules:
            self.modules, self.unasked = "*", True
            print(f"firstdiff: no layer of this model has a name of Hugging Face's ('model.layers.0'): recorded under its modules' own names "
                  f"({some(named)}); `firstdiff compare --map` takes a table of them", file=sys.stderr)

    def describe(self):
        torch = sys.modules["torch"]
        precisions = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
        producer = {"name": "firstdiff (Python)", "version": firstdiff.__version__, "torch": torch.__version__}
        if "transformers" in sys.modules:
            producer["transformers"] = sys.modules["transformers"].__version__
        found = {"producer": producer, "model": getattr(self.config, "model_type", type(self.model).__name__),
                 "qk_rows": None if self.unasked else "half",  # of a model of other names nobody knows
                 "precision": precisions.get(next((p.dtype for p in self.model.parameters()), None))}
        for key, value in found.items():
            if value:
                self.recording.meta.setdefault(key, value)

    @property
    def config(self):
        return getattr(self.model, "config", None)

    # -- every operation --

    def follow(self):
        from .program import Following

        self.hook(self.model.register_forward_pre_hook(self.begin, with_kwargs=True))
        self.following = self.stack.enter_context(Following(self.model, self.recording.write))

    def write_program(self):
        from .naming import graph_of_prefill

        program = self.following.program
        if program.steps:
            self.recording.meta["graph"] = graph_of_prefill(self.following.graph)
        head = {"source": ", ".join(f"{name} {sys.modules[name].__version__}" for name in ("torch", "transformers") if name in sys.modules),
                "model": type(self.model).__name__}
        if (folder := Path(getattr(self.config, "_name_or_path", None) or "-")).is_dir():
            head["folder"] = str(folder.resolve())
        for file, parts in program.files_of(head).items():
            self.recording.replace(file, *parts)
        if escapes := program.escapes:
            print(f"firstdiff: values that left PyTorch are fixed in program.json, and what follows from them: {', '.join(escapes)}", file=sys.stderr)
        if unseen := program.unseen:
            print(f"firstdiff: memory was written by kernels that PyTorch's dispatcher did not see; nothing behind them can be computed: {', '.join(unseen)}",
                  file=sys.stderr)
        if randoms := program.randoms:
            advice = "call model.eval() first" if self.model.training else "the model is in eval mode: where they are used, each run is another"
            print(f"firstdiff: random numbers were drawn ({', '.join(randoms)}): {advice}", file=sys.stderr)

    # -- hooks --

    def watch(self):
        self.hook(self.model.register_forward_pre_hook(self.begin, with_kwargs=True))
        others, named = tap_patterns(self.modules), dict(self.model.named_modules())
        for name, module in named.items():
            inputs, output = self.taps_of(name, named)
            for tap in inputs:
                self.hook(module.register_forward_pre_hook(self.source(tap), with_kwargs=True))
            if name == "lm_head":
                self.hook(module.register_forward_hook(lambda _, __, output: setattr(self, "head", output)))
            elif output or (name and self.modules and others.fullmatch(name)):
                self.hook(module.register_forward_hook(self.result(output) if output else self.foreign(name)))
        self.hook(self.model.register_forward_hook(self.end))
        self.watch_attention(named)

    def hook(self, handle):
        self.stack.callback(handle.remove)

    def taps_of(self, name, named):
        """The taps that are a module's input, and the one that is its output, or None."""
        parts = name.split(".")
        at = next((i for i, part in enumerate(parts) if part not in STEM), None)
        if at is None or parts[at:] == ["layers"]:
            return [], None
        if parts[at] != "layers":
            return [], "final_norm" if parts[at:] == ["norm"] else None
        layer, below = parts[at + 1], ".".join(parts[at + 2:])
        if not below:
            return ["h0"] if layer == "0" else [], f"layers.{layer}.h"
        inputs, outputs = INPUTS, OUTPUTS
        if ".".join([*parts[:at + 2], "post_feedforward_layernorm"]) in named:
            inputs = {k: v for k, v in INPUTS.items() if k != "post_attention_layernorm"} | SANDWICH_INPUTS
            outputs = OUTPUTS | SANDWICH_OUTPUTS
        full = lambda tap: tap and f"layers.{layer}.{tap}"
        return [full(inputs[below])] if below in inputs else [], full(outputs.get(below))

    def begin(self, _, args, kwargs):
        """One forward call begins: the first is the prompt or its first chunk, each later one a decode step or a further chunk."""
        # Of a model that decodes what another stack has read, the positions are those of what it decodes.
        ids = next((kwargs[name] for name in ("decoder_input_ids", "input_ids") if name in kwargs), args[0] if args else None)
        shown = firstdiff.is_torch(ids) and not ids.is_floating_point()
        embeds = kwargs.get("inputs_embeds", ids)
        fed_with = ids if shown else embeds if firstdiff.is_torch(embeds) else None
        shape = tuple(fed_with.shape) if fed_with is not None else (1, 0)
        in_batch = len(shape) >= (2 if shown or fed_with is None else 3)  # [B,T] or [B,T,D]
        if in_batch and shape[0] != 1:
            raise RecordError(f"a batch of {shape[0]}: of a model one sequence at a time is recorded. Call it with one, without its padding (ids[0:1]), and record "
                              "the next one in another `with` and another folder; an engine's own batch is compared by `--sequence N`")
        fed = [int(id) for id in ids.reshape(-1)] if shown else []
        self.length, self.called = shape[in_batch] if len(shape) > in_batch else 0, {}
        self.last_shown = self.last_named = None
        self.shown = set() if self.program else {self.digest(tensor) for tensor in outputs_of([args, kwargs]) if tensor.numel()}
        if self.calls == 0 and fed:
            firstdiff.tokens(fed)
        if self.calls > 0:
            firstdiff.next_chunk(fed or [-1] * self.length)
        self.calls += 1

    def end(self, _, __, output):
        """The logits are the model's own, capped and scaled where it does that, else what lm_head gave."""
        logits, self.head = getattr(output, "logits", self.head), None
        if logits is not None:
            self.write("logits", logits)
        self.write_outputs(output, logits)

    def write_outputs(self, output, logits):
        """What the model returns and no tap shows. What it returns first, or as logits, is shown by the last tap alone: what another layer gave is another output."""
        returned, count = [tensor for tensor in outputs_of(output) if tensor.numel()], 0
        main = logits if logits is not None else next(iter(returned), None)
        ends = {self.last_shown, self.last_named}
        for tensor in returned:
            known = self.digest(tensor)
            if known in (ends if tensor is main else self.shown):
                continue
            count += 1
            self.shown.add(known)
            tensor = in_numbers(tensor)
            self.recording.write(name_of_output(count), tensor[0] if tensor.dim() > 2 and tensor.shape[0] == 1 else tensor)

    @staticmethod
    def digest(tensor):
        """What tells the elements of a tensor, in their order, from those of another one."""
        torch = sys.modules["torch"]
        plain = tensor.detach()
        plain = (plain.float() if plain.dtype in (torch.float16, torch.bfloat16) else in_numbers(plain)).cpu().contiguous()
        return hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy().data).digest()

    def show(self, tensor, named):
        """Remembers what a tap shows; `named`: in the vocabulary of firstdiff."""
        self.last_shown = self.digest(tensor)
        self.shown.add(self.last_shown)
        if named:
            self.last_named = self.last_shown

    def source(self, tap):
        def take(_, args, kwargs):
            self.write(tap, args[0] if args else kwargs["hidden_states"])

        return take

    def result(self, tap):
        def take(_, __, output):
            self.write(tap, output[0] if isinstance(output, (tuple, list)) else output)

        return take

    def foreign(self, name):
        """A module under its own name. Where nobody named it, what gives no floats is left alone, and a further call in one step is `name#2`."""
        def take(_, __, output):
            tensor = output[0] if isinstance(output, (tuple, list)) and output else output
            if self.unasked:
                if not firstdiff.is_torch(tensor) or not tensor.is_floating_point() or not tensor.numel():
                    return
                self.show(tensor, False)
                self.called[name] = count = self.called.get(name, 0) + 1
                return self.recording.write(name if count == 1 else f"{name}#{count}", tensor)
            if firstdiff.is_torch(tensor):
                self.show(tensor, False)
            self.recording.write(name, tensor)

        return take

    # -- attention: what happens inside a function, not between modules --

    def watch_attention(self, named):
        """Wraps the attention function where transformers' models look it up, eager or not."""
        attentions = {m: path[1] for name, m in named.items() if hasattr(m, "q_proj") and (path := ATTENTION.fullmatch(name))}
        for file in {type(m).__module__ for m in attentions}:
            modeling = sys.modules[file]
            if own := getattr(modeling, "eager_attention_forward", None):
                self.stack.callback(setattr, modeling, "eager_attention_forward", own)
                modeling.eager_attention_forward = self.attention(own, attentions)
        kind = getattr(self.config, "_attn_implementation", None)
        if attentions and (functions := fused_functions()) is not None and kind in functions:
            own = functions[kind]
            self.stack.callback(functions.__setitem__, kind, own)
            functions[kind] = self.attention(own, attentions)

    def attention(self, own, attentions):
        def attend(module, query, key, value, mask, *args, **options):
            """query [1,H,T,d] and key [1,K,S,d] after RoPE, mask [1,1,T,>=S] or None."""
            out = own(module, query, key, value, mask, *args, **options)
            if module in attentions:
                at, T, write = attentions[module], query.shape[2], self.recording.write  # shapes are known here
                write(f"{at}.q_rope", query[0].transpose(0, 1))
                write(f"{at}.k_rope", key[0, :, -T:].transpose(0, 1))
                if out[1] is not None:  # a fused function keeps its probabilities to itself
                    self.write_scores(at, query, key, mask, options.get("scaling"), out[1])
            return out

        return attend

    def write_scores(self, at, query, key, mask, scale, probs):
        """probs as the model has them; qk and scores computed once more, and kept only if the model's probs follow from them."""
        torch = sys.modules["torch"]
        write = self.recording.write
        qk = query @ key.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(2, 3)
        write(f"{at}.qk", qk[0])
        write(f"{at}.probs", probs[0])
        if scale is None:
            return
        scores = qk * scale
        if mask is not None:
            hidden = ~mask if mask.dtype == torch.bool else mask != 0
            scores = scores.masked_fill(hidden[..., :key.shape[2]], float("-inf"))
        if torch.allclose(torch.softmax(scores.float(), -1).to(probs.dtype), probs, atol=1e-6):
            write(f"{at}.scores", scores[0])

    # -- one tap --

    def write(self, tap, tensor):
        """Without its batch axis; with its heads apart where the tap has them."""
        self.show(tensor, True)
        if not self.recording.wants(tap):
            return
        site = tap.rsplit(".", 1)[-1]
        tensor = tensor[0] if tensor.dim() > 2 and tensor.shape[0] == 1 else tensor
        if site in HEADED and tensor.dim() == 2 and (d := self.head_dim()):
            tensor = tensor.reshape(tensor.shape[0], -1, d)
        elif site in HEADED and tensor.dim() == 3 and self.heads_first(tensor):
            tensor = tensor.transpose(0, 1)
        last = tap == "logits" and tensor.shape[0] == 1 and self.length > 1  # all that `generate` asks for
        self.recording.write(tap, tensor, rows="last" if last else None)

    def heads_first(self, tensor):
        """Whether it is [H,T,d], as of a QK-norm after the transposition; where H is T the memory's order tells."""
        H, T, _ = tensor.shape
        return H != self.length or (H == T and tensor.stride(0) < tensor.stride(1))

    def head_dim(self):
        c = getattr(self.config, "text_config", self.config)
        given = getattr(c, "head_dim", None)
        heads = getattr(c, "num_attention_heads", None)
        return given or (c.hidden_size // heads if heads else None)


def some(named):
    """The first names of modules and the last, for people."""
    names = [name for name in named if name]
    return ", ".join(f"'{name}'" for name in names[:3]) + (f" ... '{names[-1]}'" if len(names) > 3 else "")


def fused_functions():
    """transformers' table of attention functions, or None."""
    return getattr(sys.modules.get("transformers.modeling_utils"), "ALL_ATTENTION_FUNCTIONS", None)
