"""What images and sound become before the first layer."""

import re

import torch
from torch import nn

from scripts.planted.program_mistakes.parts import exchange, PATCHES
from scripts.planted.program_mistakes.sets import held, mistake, second, text, UNLISTED

held(second, 81, "patch-weight-channels-last", "unlisted storage-shape", r"weight$",
     lambda weight: weight.reshape(weight.shape[0], *weight.shape[2:], weight.shape[1]).permute(0, 3, 1, 2), PATCHES)
held(second, 82, "patch-channels-reversed", "unlisted", r"weight$", lambda weight: weight.flip(1), PATCHES)
held(second, 83, "patch-kernel-transposed", "unlisted", r"weight$", lambda weight: weight.transpose(2, 3), PATCHES)
ADDED = (r"embeddings = embeddings \+ "
         r"(self\.(?:position_embeddings|position_embedding\(self\.position_ids\)|interpolate_pos_encoding\(embeddings, height, width\)))$")
text(second, 84, "class-token-without-position", "unlisted", (ADDED, r"embeddings = torch.cat((embeddings[:, :1], (embeddings + \1)[:, 1:]), 1)"))
text(second, 85, "image-positions-behind-class-token", "position-embedding-offset unlisted",
     (ADDED, r"embeddings = embeddings + \1.roll(1, 1 if \1.dim() == 3 else 0)"))
text(second, 86, "pixels-halved", "unlisted result-scaled", (r"(self\.(?:projection|patch_embedding|patch_embeddings))\(pixel_values", r"\1(0.5 * pixel_values"))
text(second, 87, "patches-in-columns", "unlisted", (r"patch_embeds\.flatten\(2\)", "patch_embeds.transpose(2, 3).flatten(2)"))
text(second, 88, "layer-scale-omitted", "operation-omitted", (r"hidden_state \* self\.lambda1", "hidden_state"))
text(second, 89, "conv-gelu-omitted", "operation-omitted activation", (r"nn\.functional\.gelu\(self\.conv1\(input_features\)\)", "self.conv1(input_features)"))
text(second, 90, "conv-gelu-by-tanh", "activation unlisted", (r"nn\.functional\.gelu\((self\.conv\d\(\w+\))\)", r'nn.functional.gelu(\1, approximate="tanh")'))
text(second, 91, "conv-one-frame-late", "unlisted", (r"self\.conv2\(inputs_embeds\)", "self.conv2(inputs_embeds.roll(1, -1))"))
held(second, 92, "conv-kernel-reversed", "unlisted", r"conv[12]\.weight$", lambda weight: weight.flip(-1),
     lambda name, module: isinstance(module, nn.Conv1d) and module.groups == 1)


@mistake(second, 93, "layer-scales-exchanged", UNLISTED)
def layer_scales(site):
    found = dict(site.modules(lambda name, module: bool(re.search(r"layer_scale[12]$", name)) and hasattr(module, "lambda1")))
    firsts = site.some([name for name in found if name.endswith("1")])
    for name in firsts:
        exchange(site, (name, found[name]), (name, found[name[:-1] + "2"]))
    return bool(firsts)


@mistake(second, 94, "image-positions-resampled", UNLISTED)
def resampled(site):
    """The grid of positions goes through another size and back."""
    if site.model.main_input_name != "pixel_values":
        return False
    for name, table in site.model.named_parameters():
        if re.search(r"position_embeddings?(\.weight)?$", name):
            flat = table.data.reshape(-1, table.shape[-1])
            side = int(len(flat) ** 0.5)
            extra = len(flat) - side * side
            grid = flat[extra:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
            for size in (side + 1, side):
                grid = nn.functional.interpolate(grid, size=(size, size), mode="bicubic", align_corners=False)
            table.data.copy_(torch.cat((flat[:extra], grid.permute(0, 2, 3, 1).reshape(side * side, -1))).reshape(table.shape))
            return site.note(name)
    return False


text(second, 95, "pooling-of-last-token", "unlisted operation-input",
     (r"first_token_tensor = hidden_states\[:, 0\]", "first_token_tensor = hidden_states[:, -1]"),
     (r"pooled_output = last_hidden_state\[:, 0, :\]", "pooled_output = last_hidden_state[:, -1, :]"))
text(second, 96, "pooling-by-mean", "unlisted", (r"first_token_tensor = hidden_states\[:, 0\]", "first_token_tensor = hidden_states.mean(1)"),
     (r"pooled_output = last_hidden_state\[:, 0, :\]", "pooled_output = last_hidden_state.mean(1)"))
text(second, 97, "pooling-without-tanh", "operation-omitted activation", (r"pooled_output = self\.activation\(pooled_output\)", "pass"))
text(second, 98, "pooling-of-smallest-token", "unlisted operation-input",
     (r"(input_ids\.to\(dtype=torch\.int, device=last_hidden_state\.device\))\.argmax\(dim=-1\)", r"\1.argmin(dim=-1)"))
