// How does an engine that takes the prompt in one pass record itself? A Llama from an f32 GGUF: prefill, then decode steps.
//
//     c++ -O2 -std=c++17 -I../../crates/trace/c engine.cpp -o engine && FIRSTDIFF_DIR=out ./engine model.gguf 1,403,407 261,378
//
// GGUF keeps a Llama's queries and keys in adjacent pairs, which is told by a note. ENGINE_MISTAKE plants a mistake, named as firstdiff
// names it: weight-transposed, rope-position, mask-omitted, kv-cache-stale, context-layout.
// T new tokens, S keys, D hidden, H heads, K key/value heads, d head dim, F feed-forward, V vocabulary.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define FIRSTDIFF_IMPLEMENTATION
#include "firstdiff.h"

namespace {

using std::size_t;

// [rows, columns], row-major.
struct Matrix {
    size_t rows = 0, columns = 0;
    std::vector<float> values;

    Matrix() = default;
    Matrix(size_t r, size_t c) : rows(r), columns(c), values(r * c) {}
    float *operator[](size_t row) { return values.data() + row * columns; }
    const float *operator[](size_t row) const { return values.data() + row * columns; }
};

// ---- GGUF: metadata, a table of tensors, then their bytes ----

class Gguf {
public:
    explicit Gguf(const std::string &path) {
        std::ifstream file(path, std::ios::binary);
        bytes.assign(std::istreambuf_iterator<char>(file), {});
        if (text(4) != "GGUF" || take<std::uint32_t>() < 2) throw std::runtime_error(path + ": no GGUF file");
        const auto tensors = take<std::uint64_t>(), keys = take<std::uint64_t>();
        for (std::uint64_t n = 0; n < keys; n++) {
            const auto key = text(take<std::uint64_t>());
            numbers[key] = value(take<std::uint32_t>());
        }
        for (std::uint64_t n = 0; n < tensors; n++) entry();
        const auto aligned = numbers.count("general.alignment") ? static_cast<size_t>(numbers["general.alignment"]) : 32;
        data = (at + aligned - 1) / aligned * aligned;
    }

    double number(const std::string &key, double otherwise) const {
        const auto found = numbers.find(key);
        return found == numbers.end() ? otherwise : found->second;
    }
    size_t size(const std::string &key) const {
        const double n = number(key, 0);
        if (!(n >= 1 && n < 1e6)) throw std::runtime_error(key + ": missing, or no size");
        return static_cast<size_t>(n);
    }
    bool has(const std::string &name) const { return table.count(name) > 0; }

    Matrix matrix(const std::string &name) const {
        const auto found = table.find(name);
        if (found == table.end()) throw std::runtime_error(name + ": no such tensor");
        const auto &[rows, columns, offset, type] = found->second;
        if (type != 0) throw std::runtime_error(name + ": not f32");
        if (rows == 0 || columns > bytes.size() / 4 / rows || data + offset > bytes.size() - rows * columns * 4)
            throw std::runtime_error(name + ": beyond the end of the file");
        Matrix out(rows, columns);
        std::memcpy(out.values.data(), bytes.data() + data + offset, rows * columns * 4);
        return out;
    }

private:
    struct Entry { std::uint64_t rows, columns, offset; std::uint32_t type; };
    std::vector<char> bytes;
    size_t at = 0, data = 0;
    std::map<std::string, double> numbers;
    std::map<std::string, Entry> table;

    const char *skip(std::uint64_t count) {
        if (count > bytes.size() - at) throw std::runtime_error("the GGUF file is too short");
        at += count;
        return bytes.data() + at - count;
    }
    template <class T> T take() {
        T out;
        std::memcpy(&out, skip(sizeof out), sizeof out);
        return out;
    }
    std::string text(std::uint64_t count) { return {skip(count), count}; }

    // A metadata value as a number; strings and arrays are passed over.
    double value(std::uint32_t type) {
        switch (type) {
        case 0: case 1: case 7: return take<std::uint8_t>();
        case 2: case 3: return take<std::uint16_t>();
        case 4: case 5: return take<std::uint32_t>();
        case 6: return static_cast<double>(take<float>());
        case 8: return skip(take<std::uint64_t>()), 0;
        case 10: case 11: return static_cast<double>(take<std::uint64_t>());
        case 12: return take<double>();
        case 9: {
            const auto of = take<std::uint32_t>();
            for (auto left = take<std::uint64_t>(); left > 0; left--) value(of);
            return 0;
        }
        default: throw std::runtime_error("metadata of an unknown type");
        }
    }

    // ggml lists the fastest axis first.
    void entry() {
        const auto name = text(take<std::uint64_t>());
        const auto axes = take<std::uint32_t>();
        Entry found{1, take<std::uint64_t>(), 0, 0};
        for (std::uint32_t axis = 1; axis < axes; axis++) found.rows *= take<std::uint64_t>();
        found.type = take<std::uint32_t>();
        found.offset = take<std::uint64_t>();
        table[name] = found;
    }
};

// ---- the engine ----

struct Layer {
    Matrix attn_norm, wq, wk, wv, wo, ffn_norm, gate, up, down;
    std::vector<float> keys, values; // the cache, [S,K*d]
};

class Engine {
public:
    Engine(const Gguf &file, std::string planted) : mistake(std::move(planted)) {
        H = file.size("llama.attention.head_count"), K = file.size("llama.attention.head_count_kv");
        embedding = file.matrix("token_embd.weight");
        D = embedding.columns, d = D / H;
        if (D % H || H % K || file.has("rope_freqs.weight")) throw std::runtime_error("not a Llama that this engine runs");
        eps = static_cast<float>(file.number("llama.attention.layer_norm_rms_epsilon", 1e-5));
        theta = file.number("llama.rope.freq_base", 10000);
        layers.resize(file.size("llama.block_count"));
        for (size_t l = 0; l < layers.size(); l++) {
            const auto weight = [&](const char *name) { return file.matrix("blk." + std::to_string(l) + "." + name + ".weight"); };
            layers[l] = {weight("attn_norm"), weight("attn_q"), weight("attn_k"), weight("attn_v"), weight("attn_output"),
                         weight("ffn_norm"), weight("ffn_gate"), weight("ffn_up"), weight("ffn_down"), {}, {}};
        }
        final_norm = file.matrix("output_norm.weight");
        head = file.has("output.weight") ? file.matrix("output.weight") : embedding;
    }

    void pass(const std::vector<std::int64_t> &tokens) {
        Matrix h(tokens.size(), D);
        for (size_t t = 0; t < tokens.size(); t++) {
            if (tokens[t] < 0 || static_cast<size_t>(tokens[t]) >= embedding.rows) throw std::runtime_error("no such token");
            std::copy_n(embedding[static_cast<size_t>(tokens[t])], D, h[t]);
        }
        record(h, 0, "h0");
        for (size_t l = 0; l < layers.size(); l++) block(static_cast<int>(l), layers[l], h);
        const Matrix x = norm(h, final_norm);
        record(x, 0, "final_norm");
        record(linear(x, head), 0, "logits");
        position += tokens.size();
    }

private:
    size_t D, H, K, d, position = 0;
    float eps;
    double theta;
    std::string mistake;
    std::vector<Layer> layers;
    Matrix embedding, final_norm, head;

    // The taps: [T,n], [T,heads,d], [H,T,S].
    static void record(const Matrix &x, int layer, const char *tap) {
        const auto name = named(tap, layer);
        firstdiff_f32(x.values.data(), (long long)x.rows, (long long)x.columns, 0, "%s", name.c_str());
    }
    void record_heads(const Matrix &x, int layer, const char *tap) const {
        const auto name = named(tap, layer);
        firstdiff_f32(x.values.data(), (long long)x.rows, (long long)(x.columns / d), (long long)d, "%s", name.c_str());
    }
    static void record_keys(const std::vector<float> &x, size_t heads, size_t T, int layer, const char *tap) {
        const auto name = named(tap, layer);
        firstdiff_f32(x.data(), (long long)heads, (long long)T, (long long)(x.size() / heads / T), "%s", name.c_str());
    }
    static std::string named(const char *tap, int layer) {
        const std::string text(tap);
        return text == "h0" || text == "final_norm" || text == "logits" ? text : "layers." + std::to_string(layer) + "." + text;
    }

    Matrix norm(const Matrix &x, const Matrix &gain) const {
        Matrix out(x.rows, x.columns);
        for (size_t t = 0; t < x.rows; t++) {
            double sum = 0;
            for (size_t i = 0; i < x.columns; i++) sum += static_cast<double>(x[t][i]) * static_cast<double>(x[t][i]);
            const float root = std::sqrt(static_cast<float>(sum / static_cast<double>(x.columns)) + eps);
            for (size_t i = 0; i < x.columns; i++) out[t][i] = x[t][i] / root * gain.values[i];
        }
        return out;
    }

    // x [T,in] times w [out,in] transposed, in four partial sums.
    Matrix linear(const Matrix &x, const Matrix &w, bool transposed = false) const {
        Matrix out(x.rows, w.rows);
        for (size_t t = 0; t < x.rows; t++) {
            for (size_t r = 0; r < w.rows; r++) {
                float sum[4] = {0, 0, 0, 0};
                for (size_t i = 0; i < w.columns; i++)
                    sum[i % 4] += x[t][i] * (transposed ? w.values[i * w.rows + r] : w[r][i]);
                out[t][r] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
            }
        }
        return out;
    }

    // RoPE in place: the pairs (2i, 2i + 1) of every head.
    void rotate(Matrix &x) const {
        for (size_t t = 0; t < x.rows; t++) {
            const size_t at = mistake == "rope-position" && position > 0 ? 0 : position + t;
            for (size_t i = 0; i < x.columns; i += 2) {
                const double angle = static_cast<double>(at) * std::pow(theta, -static_cast<double>(i % d) / static_cast<double>(d));
                const auto c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
                const float a = x[t][i], b = x[t][i + 1];
                x[t][i] = a * c - b * s, x[t][i + 1] = a * s + b * c;
            }
        }
    }

    // Keys and values of the new tokens into the cache's last slots.
    static void remember(Layer &l, const Matrix &k, const Matrix &v) {
        std::copy(k.values.begin(), k.values.end(), l.keys.end() - static_cast<std::ptrdiff_t>(k.values.size()));
        std::copy(v.values.begin(), v.values.end(), l.values.end() - static_cast<std::ptrdiff_t>(v.values.size()));
    }

    Matrix attend(int n, const Layer &l, const Matrix &q) const {
        const size_t T = q.rows, kv = K * d, S = l.keys.size() / kv;
        std::vector<float> x(H * T * S); // [H,T,S]
        const auto row = [&](size_t h, size_t t) { return x.data() + (h * T + t) * S; };
        for (size_t h = 0; h < H; h++)
            for (size_t t = 0; t < T; t++)
                for (size_t s = 0; s < S; s++)
                    for (size_t i = 0; i < d; i++) row(h, t)[s] += q[t][h * d + i] * l.keys[s * kv + h / (H / K) * d + i];
        record_keys(x, H, T, n, "qk");
        for (float &score : x) score *= 1 / std::sqrt(static_cast<float>(d));
        if (mistake != "mask-omitted")
            for (size_t h = 0; h < H; h++)
                for (size_t t = 0; t < T; t++) std::fill(row(h, t) + std::min(S, S - T + t + 1), row(h, t) + S, -INFINITY);
        record_keys(x, H, T, n, "scores");
        for (size_t r = 0; r < H * T; r++) softmax(x.data() + r * S, x.data() + (r + 1) * S);
        record_keys(x, H, T, n, "probs");
        Matrix context(T, H * d);
        for (size_t h = 0; h < H; h++) {
            for (size_t t = 0; t < T; t++) {
                float *out = mistake == "context-layout" ? context.values.data() + (h * T + t) * d : context[t] + h * d;
                for (size_t s = 0; s < S; s++)
                    for (size_t i = 0; i < d; i++) out[i] += row(h, t)[s] * l.values[s * kv + h / (H / K) * d + i];
            }
        }
        return context;
    }

    static void softmax(float *begin, float *end) {
        const float max = *std::max_element(begin, end);
        float sum = 0;
        for (float *x = begin; x != end; ++x) sum += *x = std::exp(*x - max);
        for (float *x = begin; x != end; ++x) *x /= sum;
    }

    static void add(Matrix &h, const Matrix &x) {
        for (size_t i = 0; i < h.values.size(); i++) h.values[i] += x.values[i];
    }

    void block(int n, Layer &l, Matrix &h) {
        const bool transposed = mistake == "weight-transposed";
        Matrix x = norm(h, l.attn_norm);
        record(x, n, "attn_norm");
        Matrix q = linear(x, l.wq, transposed), k = linear(x, l.wk, transposed);
        const Matrix v = linear(x, l.wv, transposed);
        record_heads(q, n, "q"), record_heads(k, n, "k"), record_heads(v, n, "v");
        rotate(q), rotate(k);
        record_heads(q, n, "q_rope"), record_heads(k, n, "k_rope");
        l.keys.resize(l.keys.size() + k.values.size()), l.values.resize(l.values.size() + v.values.size());
        const bool late = mistake == "kv-cache-stale" && position > 0;
        if (!late) remember(l, k, v);
        const Matrix context = attend(n, l, q);
        if (late) remember(l, k, v);
        record(context, n, "context");
        x = linear(context, l.wo, transposed);
        record(x, n, "attn_out");
        add(h, x);
        record(h, n, "h_attn");
        x = norm(h, l.ffn_norm);
        record(x, n, "ffn_norm");
        Matrix gate = linear(x, l.gate, transposed);
        const Matrix up = linear(x, l.up, transposed);
        record(gate, n, "ffn_gate"), record(up, n, "ffn_up");
        for (size_t i = 0; i < gate.values.size(); i++) gate.values[i] *= up.values[i] / (1 + std::exp(-gate.values[i]));
        record(gate, n, "ffn_act");
        x = linear(gate, l.down, transposed);
        record(x, n, "ffn_out");
        add(h, x);
        record(h, n, "h");
    }
};

std::vector<std::int64_t> parse(const std::string &text) {
    std::vector<std::int64_t> tokens;
    std::istringstream in(text);
    for (std::string token; std::getline(in, token, ',');) tokens.push_back(std::stoll(token));
    return tokens;
}

} // namespace

int main(int argc, char **argv) try {
    if (argc < 3 || argc > 4) throw std::runtime_error("usage: engine MODEL.gguf TOKENS [DECODE_TOKENS]");
    const char *mistake = std::getenv("ENGINE_MISTAKE");
    Engine engine(Gguf(argv[1]), mistake ? mistake : "");
    const auto tokens = parse(argv[2]);
    firstdiff_note("producer", "engine.cpp (GGUF) 0.1.0");
    firstdiff_note("precision", "f32");
    firstdiff_note("qk_rows", "adjacent");
    firstdiff_tokens(tokens.data(), (long long)tokens.size());
    engine.pass(tokens);
    for (const auto token : parse(argc > 3 ? argv[3] : "")) {
        firstdiff_next_step(token);
        engine.pass({token});
    }
    return firstdiff_finish();
} catch (const std::exception &error) {
    std::cerr << "engine: " << error.what() << '\n';
    return 2;
}
