/* How does a C engine of a few functions record itself? Llama or Qwen2 from one flat file: the prompt in one pass, then decode steps.

       cc -O2 -std=c99 -I.. engine.c -lm -o engine && FIRSTDIFF_DIR=out ./engine MODEL.flat 1,17,42 23,108

   MODEL.flat (scripts/suites/test_recorders.py writes it): 15 doubles, then f32 matrices [out,in] in the order of `load`.
   ENGINE_MISTAKE=pairs rotates adjacent pairs; ENGINE_MISTAKE=cache stores decoded keys one slot late.
   T new tokens, S keys, D hidden, H heads, K key/value heads, d head dim, F feed-forward, V vocabulary. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRSTDIFF_IMPLEMENTATION
#include "firstdiff.h"

enum { MAX_LAYERS = 64, MAX_TOKENS = 512 };

typedef struct {
    const float *attn_norm, *wq, *wk, *wv, *bq, *bk, *bv, *wo, *ffn_norm, *w_gate, *w_up, *w_down;
    float *keys, *values; /* the cache, [MAX_TOKENS, K*d] */
} Layer;

typedef struct {
    int D, F, L, H, K, d, V, biased, tied;
    double eps, theta, factor, low, high, length; /* RoPE's scaling as Llama 3.1's; factor 1: none */
    const float *embedding, *final_norm, *head;
    Layer layers[MAX_LAYERS];
} Model;

static void refuse(const char *what) {
    fprintf(stderr, "engine: %s\n", what);
    exit(2);
}

static float *floats(size_t count) {
    float *memory = (float *)calloc(count, sizeof *memory);
    if (!memory) refuse("no memory");
    return memory;
}

/* ---- the model's file ---- */

static const float *take(FILE *file, int rows, int columns) {
    size_t count = (size_t)rows * (size_t)columns;
    float *values = floats(count);
    if (fread(values, sizeof *values, count, file) != count) refuse("the model's file is too short");
    return values;
}

static void load_layer(Model *m, Layer *l, FILE *file) {
    int q = m->H * m->d, kv = m->K * m->d;
    l->attn_norm = take(file, 1, m->D);
    l->wq = take(file, q, m->D);
    l->wk = take(file, kv, m->D);
    l->wv = take(file, kv, m->D);
    l->bq = m->biased ? take(file, 1, q) : NULL;
    l->bk = m->biased ? take(file, 1, kv) : NULL;
    l->bv = m->biased ? take(file, 1, kv) : NULL;
    l->wo = take(file, m->D, q);
    l->ffn_norm = take(file, 1, m->D);
    l->w_gate = take(file, m->F, m->D);
    l->w_up = take(file, m->F, m->D);
    l->w_down = take(file, m->D, m->F);
    l->keys = floats((size_t)MAX_TOKENS * (size_t)kv);
    l->values = floats((size_t)MAX_TOKENS * (size_t)kv);
}

static void load(Model *m, const char *path) {
    double n[15];
    int l;
    FILE *file = fopen(path, "rb");
    if (!file || fread(n, sizeof *n, 15, file) != 15) refuse("the model's file cannot be read");
    m->D = (int)n[0], m->F = (int)n[1], m->L = (int)n[2], m->H = (int)n[3], m->K = (int)n[4], m->d = (int)n[5], m->V = (int)n[6];
    m->biased = n[7] != 0, m->tied = n[8] != 0;
    m->eps = n[9], m->theta = n[10], m->factor = n[11], m->low = n[12], m->high = n[13], m->length = n[14];
    if (m->L > MAX_LAYERS) refuse("too many layers");
    m->embedding = take(file, m->V, m->D);
    for (l = 0; l < m->L; l++) load_layer(m, &m->layers[l], file);
    m->final_norm = take(file, 1, m->D);
    m->head = m->tied ? m->embedding : take(file, m->V, m->D);
    fclose(file);
}

/* ---- operations ---- */

/* out [T,n] = x / sqrt(mean(x^2) + eps) * gain */
static void rms_norm(float *out, const float *x, const float *gain, int T, int n, double eps) {
    int t, i;
    for (t = 0; t < T; t++, x += n, out += n) {
        float sum = 0, scale;
        for (i = 0; i < n; i++) sum += x[i] * x[i];
        scale = 1 / sqrtf(sum / (float)n + (float)eps);
        for (i = 0; i < n; i++) out[i] = x[i] * scale * gain[i];
    }
}

/* out [T,rows] = x [T,columns] w^T + bias */
static void linear(float *out, const float *x, const float *w, const float *bias, int T, int rows, int columns) {
    int t, r, i;
    for (t = 0; t < T; t++) {
        for (r = 0; r < rows; r++) {
            const float *a = x + (size_t)t * (size_t)columns, *b = w + (size_t)r * (size_t)columns;
            float sum = 0;
            for (i = 0; i < columns; i++) sum += a[i] * b[i];
            out[(size_t)t * (size_t)rows + (size_t)r] = sum + (bias ? bias[r] : 0);
        }
    }
}

/* Angle a position of pair i: theta^(-2i/d); Llama 3.1 slows long waves down, keeps short ones, blends between. */
static double frequency(const Model *m, int i) {
    double f = pow(m->theta, -2.0 * i / m->d), turns, keep;
    if (m->factor == 1) return f;
    turns = m->length * f / (2 * 3.14159265358979323846);
    keep = fmin(fmax((turns - m->low) / (m->high - m->low), 0), 1);
    return f * keep + f / m->factor * (1 - keep);
}

/* RoPE in place, x [T,heads,d]: the pairs (i, i + d/2), or (2i, 2i + 1) where `adjacent`. */
static void rope(const Model *m, float *x, int T, int heads, int start, int adjacent) {
    int t, h, i, half = m->d / 2;
    for (t = 0; t < T; t++) {
        for (h = 0; h < heads; h++, x += m->d) {
            for (i = 0; i < half; i++) {
                double angle = (start + t) * frequency(m, i);
                float *a = adjacent ? &x[2 * i] : &x[i], *b = adjacent ? a + 1 : a + half;
                float c = (float)cos(angle), s = (float)sin(angle), old = *a;
                *a = old * c - *b * s;
                *b = *b * c + old * s;
            }
        }
    }
}

static void softmax(float *x, int n) {
    float max = x[0], sum = 0;
    int i;
    for (i = 1; i < n; i++) max = fmaxf(max, x[i]);
    for (i = 0; i < n; i++) sum += x[i] = expf(x[i] - max);
    for (i = 0; i < n; i++) x[i] /= sum;
}

static void add(float *out, const float *x, int n) {
    int i;
    for (i = 0; i < n; i++) out[i] += x[i];
}

/* ---- one layer ---- */

/* context [T,H*d] of q [T,H,d] over the first `start` + T keys of the cache. */
static void attention(const Model *m, const Layer *layer, int l, float *context, const float *q, int T, int start) {
    int S = start + T, kv = m->K * m->d, group = m->H / m->K, h, t, s, i;
    float *x = floats((size_t)m->H * (size_t)T * (size_t)S), *row = x; /* [H,T,S] */
    for (h = 0; h < m->H; h++) {
        for (t = 0; t < T; t++, row += S) {
            for (s = 0; s < S; s++) {
                const float *a = q + (t * m->H + h) * m->d, *b = layer->keys + s * kv + h / group * m->d;
                for (i = 0; i < m->d; i++) row[s] += a[i] * b[i];
            }
        }
    }
    firstdiff_f32(x, m->H, T, S, "layers.%d.qk", l);
    for (i = 0; i < m->H * T * S; i++) x[i] = i % S > start + i / S % T ? -INFINITY : x[i] / sqrtf((float)m->d);
    firstdiff_f32(x, m->H, T, S, "layers.%d.scores", l);
    for (i = 0; i < m->H * T; i++) softmax(x + i * S, S);
    firstdiff_f32(x, m->H, T, S, "layers.%d.probs", l);
    memset(context, 0, (size_t)(T * m->H * m->d) * sizeof *context);
    for (row = x, h = 0; h < m->H; h++) {
        for (t = 0; t < T; t++, row += S) {
            for (s = 0; s < S; s++) {
                const float *value = layer->values + s * kv + h / group * m->d;
                for (i = 0; i < m->d; i++) context[(t * m->H + h) * m->d + i] += row[s] * value[i];
            }
        }
    }
    firstdiff_f32(context, T, m->H * m->d, 0, "layers.%d.context", l);
    free(x);
}

static void self_attention(const Model *m, const Layer *layer, int l, float *out, const float *x, int T, int start, const char *mistake) {
    int kv = m->K * m->d, adjacent = strcmp(mistake, "pairs") == 0, late = start && strcmp(mistake, "cache") == 0;
    float *q = floats((size_t)(T * m->H * m->d)), *context = floats((size_t)(T * m->H * m->d));
    float *k = layer->keys + start * kv, *v = layer->values + start * kv;
    linear(q, x, layer->wq, layer->bq, T, m->H * m->d, m->D);
    linear(k, x, layer->wk, layer->bk, T, kv, m->D);
    linear(v, x, layer->wv, layer->bv, T, kv, m->D);
    firstdiff_f32(q, T, m->H, m->d, "layers.%d.q", l);
    firstdiff_f32(k, T, m->K, m->d, "layers.%d.k", l);
    firstdiff_f32(v, T, m->K, m->d, "layers.%d.v", l);
    rope(m, q, T, m->H, start, adjacent);
    rope(m, k, T, m->K, start, adjacent);
    firstdiff_f32(q, T, m->H, m->d, "layers.%d.q_rope", l);
    firstdiff_f32(k, T, m->K, m->d, "layers.%d.k_rope", l);
    if (late) memmove(k + kv, k, (size_t)kv * sizeof *k), memset(k, 0, (size_t)kv * sizeof *k);
    attention(m, layer, l, context, q, T, start);
    linear(out, context, layer->wo, NULL, T, m->D, m->H * m->d);
    firstdiff_f32(out, T, m->D, 0, "layers.%d.attn_out", l);
    free(q);
    free(context);
}

static void feed_forward(const Model *m, const Layer *layer, int l, float *out, const float *x, int T) {
    int i, n = T * m->F;
    float *gate = floats((size_t)n), *up = floats((size_t)n);
    linear(gate, x, layer->w_gate, NULL, T, m->F, m->D);
    linear(up, x, layer->w_up, NULL, T, m->F, m->D);
    firstdiff_f32(gate, T, m->F, 0, "layers.%d.ffn_gate", l);
    firstdiff_f32(up, T, m->F, 0, "layers.%d.ffn_up", l);
    for (i = 0; i < n; i++) gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
    firstdiff_f32(gate, T, m->F, 0, "layers.%d.ffn_act", l);
    linear(out, gate, layer->w_down, NULL, T, m->D, m->F);
    firstdiff_f32(out, T, m->D, 0, "layers.%d.ffn_out", l);
    free(gate);
    free(up);
}

/* ---- the run ---- */

static void forward(const Model *m, const int *tokens, int T, int start, const char *mistake) {
    int t, l, n = T * m->D;
    float *h = floats((size_t)n), *x = floats((size_t)n), *out = floats((size_t)n), *logits = floats((size_t)(T * m->V));
    for (t = 0; t < T; t++) memcpy(h + t * m->D, m->embedding + tokens[t] * m->D, (size_t)m->D * sizeof *h);
    firstdiff_f32(h, T, m->D, 0, "h0");
    for (l = 0; l < m->L; l++) {
        const Layer *layer = &m->layers[l];
        rms_norm(x, h, layer->attn_norm, T, m->D, m->eps);
        firstdiff_f32(x, T, m->D, 0, "layers.%d.attn_norm", l);
        self_attention(m, layer, l, out, x, T, start, mistake);
        add(h, out, n);
        firstdiff_f32(h, T, m->D, 0, "layers.%d.h_attn", l);
        rms_norm(x, h, layer->ffn_norm, T, m->D, m->eps);
        firstdiff_f32(x, T, m->D, 0, "layers.%d.ffn_norm", l);
        feed_forward(m, layer, l, out, x, T);
        add(h, out, n);
        firstdiff_f32(h, T, m->D, 0, "layers.%d.h", l);
    }
    rms_norm(x, h, m->final_norm, T, m->D, m->eps);
    firstdiff_f32(x, T, m->D, 0, "final_norm");
    linear(logits, x, m->head, NULL, T, m->V, m->D);
    firstdiff_f32(logits, T, m->V, 0, "logits");
    free(h);
    free(x);
    free(out);
    free(logits);
}

static int parse(const Model *m, int *tokens, const char *text) {
    int count = 0;
    char *end = (char *)text;
    while (*text && count < MAX_TOKENS / 2) {
        tokens[count] = (int)strtol(text, &end, 10);
        if (end == text || (*end && *end != ',') || tokens[count] < 0 || tokens[count] >= m->V) refuse("bad token ids");
        text = *end ? end + 1 : end;
        count++;
    }
    return count;
}

int main(int argc, char **argv) {
    static Model m;
    int tokens[MAX_TOKENS], decoded[MAX_TOKENS], T, steps, n;
    const char *mistake = getenv("ENGINE_MISTAKE");
    if (argc < 3) refuse("usage: engine MODEL.flat TOKENS [DECODE_TOKENS]");
    if (!mistake) mistake = "";
    load(&m, argv[1]);
    T = parse(&m, tokens, argv[2]);
    steps = argc > 3 ? parse(&m, decoded, argv[3]) : 0;

    firstdiff_note("producer", "engine.c 0.1.0");
    firstdiff_note("precision", "f32");
    firstdiff_tokens(tokens, T);
    forward(&m, tokens, T, 0, mistake);
    for (n = 0; n < steps; n++) {
        firstdiff_next_step(decoded[n]);
        forward(&m, &decoded[n], 1, T + n, mistake);
    }
    return firstdiff_finish();
}
