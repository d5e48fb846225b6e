"""One mistake of the engine with hooks, and several at once."""


class Form:
    """A mistake: `how` takes the place of the operation at `sites` in these layers, `truth` says what it does, and one of `expected` must be said of it."""

    def __init__(self, name, sites, truth, expected, how, layers=None, archs=None):
        self.name, self.truth, self.how, self.layers = name, truth, how, layers
        self.sites = (sites,) if isinstance(sites, str) else tuple(sites)
        self.expected = [expected] if isinstance(expected, str) else list(expected)
        self.archs = archs or ("llama", "qwen2", "qwen3", "moe")
        # of a mixture the feed-forward has other operations
        if set(self.sites) & {"ffn_gate", "ffn_up", "ffn_act", "ffn_out"} and archs is None:
            self.archs = ("llama", "qwen2", "qwen3")
        if layers is None or 0 in layers:
            self.first = self.sites[0] if self.sites[0] in ("h0", "final_norm", "logits") else f"layers.0.{self.sites[0]}"
        else:
            self.first = f"layers.{min(layers)}.{self.sites[0]}"


class Together(Form):
    """Several mistakes of different operations in one engine."""

    def __init__(self, forms):
        self.forms, self.name, self.layers = forms, " + ".join(f.name for f in forms), None
        self.sites = tuple(site for f in forms for site in f.sites)

    def how(self, c):
        for f in self.forms:
            if c.site in f.sites and (f.layers is None or c.l in f.layers):
                return f.how(c)
        return c.right()
