/* How does an engine in the manner of llama2.c record itself? One token at a time, weights from llama2.c's own checkpoint.

       cc -O2 -std=c99 -I../../crates/trace/c run.c -lm -o run && FIRSTDIFF_DIR=out ./run stories260K.bin 1,403,407,261,378

   The first token is the prompt, each further one a decode step. Queries and keys lie in adjacent pairs, as this format has them.
   ENGINE_MISTAKE plants a mistake, named as firstdiff names it: rope-pairing, norm-eps-outside, kv-cache-shift, kv-head-map,
   gate-up-swapped. S keys, D hidden, H heads, K key/value heads, d head dim, F feed-forward, V vocabulary. */

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRSTDIFF_IMPLEMENTATION
#include "firstdiff.h"

typedef struct { int32_t D, F, L, H, K, V, positions; } Config; /* as the file begins */

typedef struct {
    Config c;
    int d;
    float *memory; /* everything below points into it */
    float *embedding, *attn_norm, *wq, *wk, *wv, *wo, *ffn_norm, *gate, *down, *up, *final_norm, *head;
} Model;

/* Buffers of one token, and the cache: keys and values [L,positions,K*d]. */
typedef struct { float *h, *x, *q, *scores, *context, *gate, *up, *logits, *keys, *values; } State;

static const char *mistake = "";

static int planted(const char *id) { return strcmp(mistake, id) == 0; }

static void refuse(const char *what) {
    fprintf(stderr, "run: %s\n", what);
    exit(2);
}

static float *floats(size_t count) {
    float *memory = (float *)calloc(count, sizeof *memory);
    if (!memory) refuse("no memory");
    return memory;
}

/* ---- the checkpoint: seven int32, then f32 tensors, each kind for all layers ---- */

static float *next(float **at, size_t count) {
    float *begin = *at;
    *at += count;
    return begin;
}

static void place(Model *m, int tied) {
    const Config *c = &m->c;
    size_t D = (size_t)c->D, F = (size_t)c->F, L = (size_t)c->L, V = (size_t)c->V, kv = (size_t)(c->K * m->d);
    float *at = m->memory;
    m->embedding = next(&at, V * D);
    m->attn_norm = next(&at, L * D);
    m->wq = next(&at, L * D * D);
    m->wk = next(&at, L * kv * D);
    m->wv = next(&at, L * kv * D);
    m->wo = next(&at, L * D * D);
    m->ffn_norm = next(&at, L * D);
    m->gate = next(&at, L * F * D);
    m->down = next(&at, L * D * F);
    m->up = next(&at, L * F * D);
    m->final_norm = next(&at, D);
    next(&at, (size_t)c->positions * (size_t)m->d); /* tables of cosines and sines that run.c no longer reads */
    m->head = tied ? m->embedding : at;
}

static size_t size_in_floats(const Config *c, int tied) {
    size_t D = (size_t)c->D, kv = (size_t)(c->K * (c->D / c->H)), V = (size_t)c->V;
    size_t layer = 2 * D + 2 * D * D + 2 * kv * D + 3 * (size_t)c->F * D;
    return (tied ? 1 : 2) * V * D + (size_t)c->L * layer + D + (size_t)c->positions * (size_t)(c->D / c->H);
}

static void load(Model *m, const char *path) {
    Config *c = &m->c;
    int tied, n;
    size_t count;
    const int32_t *sizes = (const int32_t *)c;
    FILE *file = fopen(path, "rb");
    if (!file || fread(c, sizeof *c, 1, file) != 1) refuse("the model's file cannot be read");
    tied = c->V > 0;
    if (!tied && c->V > INT_MIN) c->V = -c->V;
    for (n = 0; n < 7; n++)
        if (sizes[n] < 1 || sizes[n] > 1 << 20) refuse("no llama2.c checkpoint of version 0");
    if (c->D % c->H || c->H % c->K || c->D / c->H % 2) refuse("sizes that do not divide");
    m->d = c->D / c->H;
    count = size_in_floats(c, tied);
    m->memory = floats(count);
    if (fread(m->memory, sizeof(float), count, file) != count) refuse("the model's file is too short");
    fclose(file);
    place(m, tied);
}

static void prepare(State *s, const Config *c) {
    size_t D = (size_t)c->D, cache = (size_t)c->L * (size_t)c->positions * (size_t)(c->K * (c->D / c->H));
    s->h = floats(D), s->x = floats(D), s->q = floats(D), s->context = floats(D);
    s->scores = floats((size_t)c->H * (size_t)c->positions);
    s->gate = floats((size_t)c->F), s->up = floats((size_t)c->F), s->logits = floats((size_t)c->V);
    s->keys = floats(cache), s->values = floats(cache);
}

/* ---- operations ---- */

/* out = x / sqrt(mean(x^2) + 1e-5) * gain */
static void rms_norm(float *out, const float *x, const float *gain, int n) {
    float sum = 0, scale;
    int i;
    for (i = 0; i < n; i++) sum += x[i] * x[i];
    scale = planted("norm-eps-outside") ? 1 / (sqrtf(sum / (float)n) + 1e-5f) : 1 / sqrtf(sum / (float)n + 1e-5f);
    for (i = 0; i < n; i++) out[i] = gain[i] * (scale * x[i]);
}

/* out [rows] = w [rows,n] x */
static void matmul(float *out, const float *x, const float *w, int rows, int n) {
    int r, i;
    for (r = 0; r < rows; r++) {
        float sum = 0;
        for (i = 0; i < n; i++) sum += w[(size_t)r * (size_t)n + (size_t)i] * x[i];
        out[r] = sum;
    }
}

/* RoPE in place, x [heads,d]: the pairs (2i, 2i + 1), base 10000. */
static void rope(float *x, int heads, int d, int position) {
    int h, i;
    for (h = 0; h < heads; h++, x += d) {
        for (i = 0; i < d / 2; i++) {
            float angle = (float)position * powf(10000, -2.0f * (float)i / (float)d), c = cosf(angle), s = sinf(angle);
            float *a = planted("rope-pairing") ? &x[i] : &x[2 * i], *b = planted("rope-pairing") ? a + d / 2 : a + 1, old = *a;
            *a = old * c - *b * s;
            *b = old * s + *b * c;
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

/* ---- one layer ---- */

/* context [H*d] of the queries q [H,d] over the S newest slots of a layer's cache. */
static void attend(const Model *m, State *s, int l, const float *keys, const float *values, int S) {
    const Config *c = &m->c;
    int d = m->d, kv = c->K * d, h, t, i;
    for (h = 0; h < c->H; h++) {
        const float *key = keys + (planted("kv-head-map") ? h % c->K : h / (c->H / c->K)) * d;
        for (t = 0; t < S; t++) {
            float dot = 0;
            for (i = 0; i < d; i++) dot += s->q[h * d + i] * key[t * kv + i];
            s->scores[h * S + t] = dot;
        }
    }
    firstdiff_f32(s->scores, c->H, 1, S, "layers.%d.qk", l);
    for (i = 0; i < c->H * S; i++) s->scores[i] /= sqrtf((float)d);
    firstdiff_f32(s->scores, c->H, 1, S, "layers.%d.scores", l);
    for (h = 0; h < c->H; h++) softmax(s->scores + h * S, S);
    firstdiff_f32(s->scores, c->H, 1, S, "layers.%d.probs", l);
    memset(s->context, 0, (size_t)c->D * sizeof *s->context);
    for (h = 0; h < c->H; h++) {
        const float *value = values + (planted("kv-head-map") ? h % c->K : h / (c->H / c->K)) * d;
        for (t = 0; t < S; t++)
            for (i = 0; i < d; i++) s->context[h * d + i] += s->scores[h * S + t] * value[t * kv + i];
    }
    firstdiff_f32(s->context, 1, c->D, 0, "layers.%d.context", l);
}

static void self_attention(const Model *m, State *s, int l, int position) {
    const Config *c = &m->c;
    int D = c->D, d = m->d, kv = c->K * d;
    size_t matrix = (size_t)l * (size_t)D;
    float *keys = s->keys + (size_t)l * (size_t)c->positions * (size_t)kv, *values = s->values + (keys - s->keys);
    float *k = keys + position * kv, *v = values + position * kv;
    matmul(s->q, s->x, m->wq + matrix * (size_t)D, D, D);
    matmul(k, s->x, m->wk + matrix * (size_t)kv, kv, D);
    matmul(v, s->x, m->wv + matrix * (size_t)kv, kv, D);
    firstdiff_f32(s->q, 1, c->H, d, "layers.%d.q", l);
    firstdiff_f32(k, 1, c->K, d, "layers.%d.k", l);
    firstdiff_f32(v, 1, c->K, d, "layers.%d.v", l);
    rope(s->q, c->H, d, position);
    rope(k, c->K, d, position);
    firstdiff_f32(s->q, 1, c->H, d, "layers.%d.q_rope", l);
    firstdiff_f32(k, 1, c->K, d, "layers.%d.k_rope", l);
    if (planted("kv-cache-shift") && position > 0) { /* into the last token's slot; the own one stays empty */
        memcpy(k - kv, k, (size_t)kv * sizeof *k), memset(k, 0, (size_t)kv * sizeof *k);
        memcpy(v - kv, v, (size_t)kv * sizeof *v), memset(v, 0, (size_t)kv * sizeof *v);
    }
    attend(m, s, l, keys, values, position + 1);
    matmul(s->x, s->context, m->wo + matrix * (size_t)D, D, D);
    firstdiff_f32(s->x, 1, D, 0, "layers.%d.attn_out", l);
}

static void feed_forward(const Model *m, State *s, int l) {
    int D = m->c.D, F = m->c.F, i;
    size_t matrix = (size_t)l * (size_t)F * (size_t)D;
    matmul(s->gate, s->x, m->gate + matrix, F, D);
    matmul(s->up, s->x, m->up + matrix, F, D);
    firstdiff_f32(s->gate, 1, F, 0, "layers.%d.ffn_gate", l);
    firstdiff_f32(s->up, 1, F, 0, "layers.%d.ffn_up", l);
    for (i = 0; i < F; i++) {
        float through = planted("gate-up-swapped") ? s->up[i] : s->gate[i], other = planted("gate-up-swapped") ? s->gate[i] : s->up[i];
        s->gate[i] = through / (1 + expf(-through)) * other;
    }
    firstdiff_f32(s->gate, 1, F, 0, "layers.%d.ffn_act", l);
    matmul(s->x, s->gate, m->down + matrix, D, F);
    firstdiff_f32(s->x, 1, D, 0, "layers.%d.ffn_out", l);
}

/* ---- the run ---- */

static void forward(const Model *m, State *s, int token, int position) {
    int D = m->c.D, l, i;
    memcpy(s->h, m->embedding + (size_t)token * (size_t)D, (size_t)D * sizeof *s->h);
    firstdiff_f32(s->h, 1, D, 0, "h0");
    for (l = 0; l < m->c.L; l++) {
        rms_norm(s->x, s->h, m->attn_norm + l * D, D);
        firstdiff_f32(s->x, 1, D, 0, "layers.%d.attn_norm", l);
        self_attention(m, s, l, position);
        for (i = 0; i < D; i++) s->h[i] += s->x[i];
        firstdiff_f32(s->h, 1, D, 0, "layers.%d.h_attn", l);
        rms_norm(s->x, s->h, m->ffn_norm + l * D, D);
        firstdiff_f32(s->x, 1, D, 0, "layers.%d.ffn_norm", l);
        feed_forward(m, s, l);
        for (i = 0; i < D; i++) s->h[i] += s->x[i];
        firstdiff_f32(s->h, 1, D, 0, "layers.%d.h", l);
    }
    rms_norm(s->x, s->h, m->final_norm, D);
    firstdiff_f32(s->x, 1, D, 0, "final_norm");
    matmul(s->logits, s->x, m->head, m->c.V, D);
    firstdiff_f32(s->logits, 1, m->c.V, 0, "logits");
}

/* The next id of a list such as 1,403,407. */
static int next_token(const Model *m, char **text) {
    char *end;
    long token = strtol(*text, &end, 10);
    if (end == *text || (*end && *end != ',') || token < 0 || token >= m->c.V) refuse("token ids are numbers below the vocabulary's size");
    *text = *end ? end + 1 : end;
    return (int)token;
}

int main(int argc, char **argv) {
    Model m;
    State s;
    int position, token;
    char *text;
    if (argc != 3) refuse("usage: run MODEL.bin TOKENS");
    if (getenv("ENGINE_MISTAKE")) mistake = getenv("ENGINE_MISTAKE");
    load(&m, argv[1]);
    prepare(&s, &m.c);
    firstdiff_note("producer", "run.c 0.1.0");
    firstdiff_note("precision", "f32");
    firstdiff_note("qk_rows", "adjacent");
    for (text = argv[2], position = 0; *text; position++) {
        if (position == m.c.positions) refuse("more tokens than positions");
        token = next_token(&m, &text);
        if (position == 0) firstdiff_tokens(&token, 1);
        else firstdiff_next_step(token);
        forward(&m, &s, token, position);
    }
    return firstdiff_finish();
}
