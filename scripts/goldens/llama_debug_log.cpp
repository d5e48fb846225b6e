// llama_debug_log.cpp: what does llama.cpp's own debug callback print? The log of fixtures/foreign, made by llama.cpp's code.
//
//   LLAMA=...   the source of llama.cpp (in llama-cpp-python's source package: vendor/llama.cpp)
//   LIB=...     its libraries (of an installed llama-cpp-python: site-packages/llama_cpp/lib)
//   c++ -std=c++17 scripts/goldens/llama_debug_log.cpp $LLAMA/common/debug.cpp -I$LLAMA/common -I$LLAMA/include -I$LLAMA/ggml/include \
//       -L$LIB -lllama -lggml -lggml-base -Wl,-rpath,$LIB -o llama_debug_log
//   ./llama_debug_log fixtures/gguf/llama-f16.gguf 1,17,42,99,3,150,77,17,128,64,5 2>&1 | cat > fixtures/foreign/llama-eval-callback.log
//
// Each further list of ids is one more call of the model: a decode step.

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "debug.h"
#include "llama.h"
#include "log.h"

// llama.cpp's log, to standard output and nothing else.
struct common_log * common_log_main() { return nullptr; }
int common_log_get_verbosity_thold(void) { return 100; }
void common_log_add(struct common_log *, enum ggml_log_level, const char * format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
}

int main(int argc, char ** argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: llama_debug_log MODEL.gguf IDS [IDS ...]\n");
        return 2;
    }
    common_debug_cb_user_data printed;
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) {
        return 2;
    }
    llama_context_params settings = llama_context_default_params();
    settings.n_ctx = 256;
    settings.n_threads = settings.n_threads_batch = 1;
    settings.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    settings.type_k = settings.type_v = GGML_TYPE_F32;
    settings.cb_eval = common_debug_cb_eval;
    settings.cb_eval_user_data = &printed;
    llama_context * context = llama_init_from_model(model, settings);
    for (int argument = 2; argument < argc; argument++) {
        std::vector<llama_token> ids;
        std::stringstream list(argv[argument]);
        for (std::string id; std::getline(list, id, ',');) {
            ids.push_back(atoi(id.c_str()));
        }
        if (llama_decode(context, llama_batch_get_one(ids.data(), (int32_t) ids.size()))) {
            return 1;
        }
    }
    llama_free(context);
    llama_model_free(model);
    return 0;
}
