// How does host code of a CUDA engine record what lies on the device? The embedding of a llama2.c checkpoint, gathered on a stream.
//
//     c++ -std=c++17 -I../../crates/trace/c cuda_host.cpp -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart -o cuda_host
//     FIRSTDIFF_DIR=out ./cuda_host stories260K.bin 1,403,407
//
// Without CUDA, -Icuda_stub has the same calls on the host.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#define FIRSTDIFF_IMPLEMENTATION
#include "firstdiff.h"

namespace {

cudaStream_t stream;

void check(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// Kernels and copies of the engine's stream are still under way when a tap is reached: wait for them, then copy.
void copy_from_device(void *host, const void *device, std::size_t bytes) {
    check(cudaStreamSynchronize(stream));
    check(cudaMemcpy(host, device, bytes, cudaMemcpyDefault));
}

float *on_device(std::size_t count) {
    void *memory = nullptr;
    check(cudaMalloc(&memory, count * sizeof(float)));
    return static_cast<float *>(memory);
}

} // namespace

int main(int argc, char **argv) try {
    if (argc != 3) throw std::runtime_error("usage: cuda_host MODEL.bin TOKENS");
    std::ifstream file(argv[1], std::ios::binary);
    std::int32_t sizes[7] = {};
    if (!file.read(reinterpret_cast<char *>(sizes), sizeof sizes)) throw std::runtime_error("the model's file cannot be read");
    const auto D = static_cast<std::size_t>(sizes[0]), V = static_cast<std::size_t>(std::abs(sizes[5]));
    if (D < 1 || D > 1 << 16 || V < 1 || V > 1 << 20) throw std::runtime_error("no llama2.c checkpoint of version 0");
    std::vector<float> weights(V * D);
    if (!file.read(reinterpret_cast<char *>(weights.data()), static_cast<std::streamsize>(V * D * sizeof(float))))
        throw std::runtime_error("the model's file is too short");
    std::vector<std::int64_t> tokens;
    std::istringstream text(argv[2]);
    for (std::string id; std::getline(text, id, ',');) tokens.push_back(std::stoll(id));

    check(cudaStreamCreate(&stream));
    firstdiff_copy = copy_from_device;
    firstdiff_note("producer", "cuda_host 0.1.0");
    firstdiff_tokens(tokens.data(), (long long)tokens.size());

    float *embedding = on_device(V * D), *h = on_device(tokens.size() * D);
    check(cudaMemcpyAsync(embedding, weights.data(), V * D * sizeof(float), cudaMemcpyHostToDevice, stream));
    for (std::size_t t = 0; t < tokens.size(); t++) {
        if (tokens[t] < 0 || static_cast<std::size_t>(tokens[t]) >= V) throw std::runtime_error("no such token");
        const float *row = embedding + static_cast<std::size_t>(tokens[t]) * D;
        check(cudaMemcpyAsync(h + t * D, row, D * sizeof(float), cudaMemcpyDeviceToDevice, stream));
    }
    firstdiff_f32(h, (long long)tokens.size(), (long long)D, 0, "h0"); // h: a pointer to the device

    check(cudaFree(embedding));
    check(cudaFree(h));
    return firstdiff_finish();
} catch (const std::exception &error) {
    std::cerr << "cuda_host: " << error.what() << '\n';
    return 2;
}
