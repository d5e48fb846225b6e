// How does a C++ engine that knows one token at a time record itself? Llama or Qwen2, each token a step, the first one the prompt.
//
//     c++ -O2 -std=c++17 -I.. engine.cpp -o engine && FIRSTDIFF_DIR=out ./engine MODEL.flat 1,17,42,99
//
// MODEL.flat is engine.c's. ENGINE_MISTAKE=scale leaves 1/sqrt(d) out; ENGINE_MISTAKE=position counts positions from 1.
// S keys, D hidden, H heads, K key/value heads, d head dim, F feed-forward, V vocabulary.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define FIRSTDIFF_IMPLEMENTATION
#include "firstdiff.h"

namespace {

using Vector = std::vector<float>;

// [rows, columns], as stored.
struct Matrix {
    std::size_t columns = 0;
    Vector values;

    Vector operator*(const Vector &x) const {
        Vector out(values.size() / columns);
        for (std::size_t r = 0; r < out.size(); r++)
            for (std::size_t c = 0; c < columns; c++) out[r] += values[r * columns + c] * x[c];
        return out;
    }
};

class Reader {
public:
    explicit Reader(const std::string &path) : file(path, std::ios::binary) {}

    template <class T> std::vector<T> take(std::size_t count) {
        std::vector<T> values(count);
        if (!file.read(reinterpret_cast<char *>(values.data()), static_cast<std::streamsize>(count * sizeof(T))))
            throw std::runtime_error("the model's file cannot be read, or is too short");
        return values;
    }

    Matrix matrix(std::size_t rows, std::size_t columns) { return {columns, take<float>(rows * columns)}; }

private:
    std::ifstream file;
};

struct Layer {
    Vector attn_norm, ffn_norm, bq, bk, bv;
    Matrix wq, wk, wv, wo, gate, up, down;
    std::vector<Vector> keys, values; // one [K*d] a token seen
};

Vector &operator+=(Vector &x, const Vector &y) {
    for (std::size_t i = 0; i < y.size(); i++) x[i] += y[i];
    return x;
}

float dot(const float *x, const float *y, std::size_t n) {
    float sum = 0;
    for (std::size_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

class Engine {
public:
    Engine(const std::string &path, std::string planted) : mistake(std::move(planted)) {
        Reader in(path);
        const auto n = in.take<double>(15);
        const auto size = [&](int i) { return static_cast<std::size_t>(n[static_cast<std::size_t>(i)]); };
        D = size(0), H = size(3), K = size(4), d = size(5);
        eps = static_cast<float>(n[9]);
        set_frequencies(n[10], n[11], n[12], n[13], n[14]);
        const std::size_t F = size(1), V = size(6);
        embedding = in.matrix(V, D);
        layers.resize(size(2));
        for (auto &l : layers) read(in, l, F, n[7] != 0);
        final_norm = in.take<float>(D);
        head = n[8] != 0 ? embedding : in.matrix(V, D);
    }

    void step(std::int64_t token) {
        if (token < 0 || static_cast<std::size_t>(token) >= embedding.values.size() / D) throw std::runtime_error("no such token");
        const auto row = embedding.values.begin() + token * static_cast<std::ptrdiff_t>(D);
        Vector h(row, row + static_cast<std::ptrdiff_t>(D));
        record(h, "h0");
        for (std::size_t l = 0; l < layers.size(); l++) block(static_cast<int>(l), layers[l], h);
        const Vector x = norm(h, final_norm);
        record(x, "final_norm");
        record(head * x, "logits");
        position++;
    }

private:
    std::size_t D, H, K, d, position = 0;
    float eps;
    std::string mistake;
    std::vector<double> frequencies; // [d/2]
    std::vector<Layer> layers;
    Matrix embedding, head;
    Vector final_norm;

    void read(Reader &in, Layer &l, std::size_t F, bool biased) {
        l.attn_norm = in.take<float>(D);
        l.wq = in.matrix(H * d, D), l.wk = in.matrix(K * d, D), l.wv = in.matrix(K * d, D);
        if (biased) l.bq = in.take<float>(H * d), l.bk = in.take<float>(K * d), l.bv = in.take<float>(K * d);
        l.wo = in.matrix(D, H * d);
        l.ffn_norm = in.take<float>(D);
        l.gate = in.matrix(F, D), l.up = in.matrix(F, D), l.down = in.matrix(D, F);
    }

    // Taps of one token: [1,n], [1,heads,d], [H,1,S].
    void record(const Vector &x, const char *tap) { firstdiff_f32(x.data(), 1, (long long)x.size(), 0, "%s", tap); }
    void record(const Vector &x, int layer, const char *site) {
        firstdiff_f32(x.data(), 1, (long long)x.size(), 0, "layers.%d.%s", layer, site);
    }
    void record_heads(const Vector &x, int layer, const char *site) {
        firstdiff_f32(x.data(), 1, (long long)(x.size() / d), (long long)d, "layers.%d.%s", layer, site);
    }
    void record_keys(const Vector &x, int layer, const char *site) {
        firstdiff_f32(x.data(), (long long)H, 1, (long long)(x.size() / H), "layers.%d.%s", layer, site);
    }

    // theta^(-2i/d), and where factor is not 1 Llama 3.1's blend of it with its factor-th part.
    void set_frequencies(double theta, double factor, double low, double high, double length) {
        for (std::size_t i = 0; i < d / 2; i++) {
            const double f = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
            const double turns = length * f / (2 * 3.14159265358979323846);
            const double keep = factor == 1 ? 1 : std::clamp((turns - low) / (high - low), 0.0, 1.0);
            frequencies.push_back(f * (keep + (1 - keep) / factor));
        }
    }

    Vector norm(const Vector &x, const Vector &gain) const {
        const float root = std::sqrt(dot(x.data(), x.data(), D) / static_cast<float>(D) + eps);
        Vector out(x);
        for (std::size_t i = 0; i < D; i++) out[i] = x[i] / root * gain[i];
        return out;
    }

    // The pairs (i, i + d/2) of every head.
    void rotate(Vector &x) const {
        const double at = static_cast<double>(position + (mistake == "position"));
        for (std::size_t head_at = 0; head_at < x.size(); head_at += d) {
            for (std::size_t i = 0; i < d / 2; i++) {
                const auto c = static_cast<float>(std::cos(at * frequencies[i])), s = static_cast<float>(std::sin(at * frequencies[i]));
                const float first = x[head_at + i], second = x[head_at + i + d / 2];
                x[head_at + i] = first * c - second * s;
                x[head_at + i + d / 2] = second * c + first * s;
            }
        }
    }

    Vector attend(int n, const Layer &l, const Vector &q) {
        const std::size_t S = l.keys.size();
        Vector x(H * S), context(H * d); // x: [H,S]
        for (std::size_t h = 0; h < H; h++)
            for (std::size_t s = 0; s < S; s++) x[h * S + s] = dot(&q[h * d], &l.keys[s][h / (H / K) * d], d);
        record_keys(x, n, "qk");
        if (mistake != "scale")
            for (float &score : x) score /= std::sqrt(static_cast<float>(d));
        record_keys(x, n, "scores");
        for (auto row = x.begin(); row != x.end(); row += static_cast<std::ptrdiff_t>(S)) softmax(row, row + static_cast<std::ptrdiff_t>(S));
        record_keys(x, n, "probs");
        for (std::size_t h = 0; h < H; h++)
            for (std::size_t s = 0; s < S; s++)
                for (std::size_t i = 0; i < d; i++) context[h * d + i] += x[h * S + s] * l.values[s][h / (H / K) * d + i];
        return context;
    }

    static void softmax(Vector::iterator begin, Vector::iterator end) {
        const float max = *std::max_element(begin, end);
        float sum = 0;
        for (auto x = begin; x != end; ++x) sum += *x = std::exp(*x - max);
        for (auto x = begin; x != end; ++x) *x /= sum;
    }

    void block(int n, Layer &l, Vector &h) {
        Vector x = norm(h, l.attn_norm);
        record(x, n, "attn_norm");
        Vector q = l.wq * x, k = l.wk * x, v = l.wv * x;
        q += l.bq, k += l.bk, v += l.bv;
        record_heads(q, n, "q"), record_heads(k, n, "k"), record_heads(v, n, "v");
        rotate(q), rotate(k);
        record_heads(q, n, "q_rope"), record_heads(k, n, "k_rope");
        l.keys.push_back(k), l.values.push_back(v);
        const Vector context = attend(n, l, q);
        record(context, n, "context");
        const Vector attn_out = l.wo * context;
        record(attn_out, n, "attn_out");
        record(h += attn_out, n, "h_attn");
        x = norm(h, l.ffn_norm);
        record(x, n, "ffn_norm");
        Vector gate = l.gate * x;
        const Vector up = l.up * x;
        record(gate, n, "ffn_gate"), record(up, n, "ffn_up");
        for (std::size_t i = 0; i < gate.size(); i++) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        record(gate, n, "ffn_act");
        const Vector out = l.down * gate;
        record(out, n, "ffn_out");
        record(h += out, n, "h");
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
    if (argc != 3) throw std::runtime_error("usage: engine MODEL.flat TOKENS");
    const char *mistake = std::getenv("ENGINE_MISTAKE");
    Engine engine(argv[1], mistake ? mistake : "");
    const auto tokens = parse(argv[2]);
    firstdiff_note("producer", "engine.cpp 0.1.0");
    firstdiff_note("precision", "f32");
    firstdiff_tokens(tokens.data(), 1);
    for (std::size_t t = 0; t < tokens.size(); t++) {
        if (t) firstdiff_next_step(tokens[t]);
        engine.step(tokens[t]);
    }
    return firstdiff_finish();
} catch (const std::exception &error) {
    std::cerr << "engine: " << error.what() << '\n';
    return 2;
}
