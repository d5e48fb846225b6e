/* firstdiff.h: how does an engine in C, C++ or CUDA write a dump? One line a tap; off, a load and a jump.

       #define FIRSTDIFF_IMPLEMENTATION                        // in one source file, before the include
       #include "firstdiff.h"

       firstdiff_note("producer", "my engine 1.2");            // also model, precision, cache, qk_rows, rows
       firstdiff_tokens(ids, T);                               // the prompt: step 0
       firstdiff_f32(q, T, H, d, "layers.%d.q", layer);        // values, three extents (0: no such axis), name as in printf
       firstdiff_bf16(h, T, D, 0, "layers.%d.h", layer);       // f16, bf16: any two-byte type; f64 too
       firstdiff_next_step(token);                             // before each decode step, with the token it is fed
       firstdiff_next_chunk(ids, count);                       // before a step of several: a further chunk of the prompt
       int failed = firstdiff_finish();                        // the dump is complete: dump.json says so from here on

   Before the first tap a dump.json is written that says "complete": false; firstdiff_finish() alone replaces it. A run that is killed, or ends
   without it, or in which a tap could not be written, leaves false, and firstdiff never calls such a dump parity.
   A name that is none of the vocabulary's is recorded as it is, and `firstdiff compare` takes a map of names. In the name of its file every byte
   but ASCII letters, digits, '_', '-' and '.' is '%' and two hexadecimal digits; dump.json has the name itself.

   FIRSTDIFF_DIR=out ./engine       records into the folder out; without it everything is off
   FIRSTDIFF_TAPS='layers.*.h,logits'   these taps only          FIRSTDIFF_STEPS=0,2-5   these steps only (0: the prompt)
   FIRSTDIFF_ROWS=last, or 0,3,7        these token positions of every step only (taps in the vocabulary's shapes; others whole)
   What goes wrong is told on stderr, each kind once; the engine runs on, and firstdiff_finish() returns 1. A residual stream of more
   rows than its step was said to have tokens is told too, and recorded.

   Values on a device: set firstdiff_copy, e.g. to a function that calls cudaMemcpy(host, device, bytes, cudaMemcpyDefault).
   Threads: define FIRSTDIFF_LOCK() and FIRSTDIFF_UNLOCK() where the implementation is, and ask firstdiff_is_on() before they start.
   Off, arguments are not evaluated.

   C99 and C++; the C standard library, mkdir, getpid and a look into a folder (POSIX, Windows, WASI). MIT or Apache-2.0. */

#ifndef FIRSTDIFF_H
#define FIRSTDIFF_H

#include <stddef.h>

#ifdef __GNUC__
#define FIRSTDIFF_PRINTF(format_at, args_at) __attribute__((cold, format(printf, format_at, args_at)))
#else
#define FIRSTDIFF_PRINTF(format_at, args_at)
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum firstdiff_type { FIRSTDIFF_F64, FIRSTDIFF_F32, FIRSTDIFF_F16, FIRSTDIFF_BF16 };

#define firstdiff_f64(values, ...) firstdiff_tap(FIRSTDIFF_F64, firstdiff_is_f64(values), __VA_ARGS__)
#define firstdiff_f32(values, ...) firstdiff_tap(FIRSTDIFF_F32, firstdiff_is_f32(values), __VA_ARGS__)
#define firstdiff_f16(values, ...) firstdiff_tap(FIRSTDIFF_F16, firstdiff_sized(values, 2), __VA_ARGS__)
#define firstdiff_bf16(values, ...) firstdiff_tap(FIRSTDIFF_BF16, firstdiff_sized(values, 2), __VA_ARGS__)
#define firstdiff_tokens(ids, count) (firstdiff_state ? firstdiff_put_tokens(ids, (int)sizeof *(ids), count) : (void)0)
#define firstdiff_next_step(token) (firstdiff_state ? firstdiff_put_step(token) : (void)0)
#define firstdiff_next_chunk(ids, count) (firstdiff_state ? firstdiff_put_chunk(ids, (int)sizeof *(ids), count) : (void)0)
#define firstdiff_note(key, value) (firstdiff_state ? firstdiff_put_note(key, value) : (void)0)
#define firstdiff_is_on() (firstdiff_state ? firstdiff_ask() : 0)

/* Ends the recording: dump.json says that it is complete. 0: everything asked for is in the dump, or recording was off. */
int firstdiff_finish(void);

/* Brings values to the host, where set; every pointer given to a tap goes through it. */
extern void (*firstdiff_copy)(void *host, const void *device, size_t bytes);

/* ---- what the macros above stand on ---- */

#define firstdiff_tap(type, ...) (firstdiff_state ? firstdiff_put(type, __VA_ARGS__) : (void)0)
/* The same pointer; does not compile for elements of another size. */
#define firstdiff_sized(values, size) ((void)sizeof(char[sizeof *(values) == (size) ? 1 : -1]), (const void *)(values))

extern int firstdiff_state; /* 0: off, 1: not asked yet, 2: on */

static inline const void *firstdiff_is_f64(const double *values) { return values; }
static inline const void *firstdiff_is_f32(const float *values) { return values; }
void firstdiff_put(enum firstdiff_type type, const void *values, long long extent0, long long extent1, long long extent2,
                   const char *name, ...) FIRSTDIFF_PRINTF(6, 7);
void firstdiff_put_tokens(const void *ids, int size, long long count);
void firstdiff_put_step(long long token);
void firstdiff_put_chunk(const void *ids, int size, long long count);
void firstdiff_put_note(const char *key, const char *value);
int firstdiff_ask(void);

#ifdef __cplusplus
}
#endif
#endif

#if defined(FIRSTDIFF_IMPLEMENTATION) && !defined(FIRSTDIFF_IMPLEMENTED)
#define FIRSTDIFF_IMPLEMENTED

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <direct.h>
#include <io.h>
#include <process.h>
#define firstdiff_mkdir(path) _mkdir(path)
#define firstdiff_pid() ((long)_getpid())
#else
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>
#define firstdiff_mkdir(path) mkdir(path, 0777)
#ifdef __wasi__ /* has no processes */
#define firstdiff_pid() 1L
#else
#define firstdiff_pid() ((long)getpid())
#endif
#endif

#ifndef FIRSTDIFF_LOCK
#define FIRSTDIFF_LOCK() ((void)0)
#define FIRSTDIFF_UNLOCK() ((void)0)
#endif

#ifdef __cplusplus
extern "C" {
#endif

int firstdiff_state = 1;
void (*firstdiff_copy)(void *host, const void *device, size_t bytes);

enum { FIRSTDIFF_NAME = 200, FIRSTDIFF_FILE = FIRSTDIFF_NAME + 32 }; /* bytes of a tap's name at most, and of its file's with step and ending */

typedef struct {
    char tap[FIRSTDIFF_NAME + 1];
    unsigned long step;
    enum firstdiff_type type;
    long long shape[3];
    long long positions; /* of which FIRSTDIFF_ROWS left those of the shape; 0: all of them */
} firstdiff_entry;

typedef struct {
    long long *ids;
    size_t count, room;
} firstdiff_ids;

/* What a note may be: keys and values that every reader of dump.json takes. */
static const struct { const char *key, *values; } firstdiff_notes[] = {
    {"producer", NULL}, {"model", NULL}, {"precision", ",exact,f32,f16,bf16,ggml,"},
    {"cache", ",f32,f16,"}, {"qk_rows", ",half,adjacent,"}, {"rows", ",all,last,"},
};
enum { FIRSTDIFF_NOTES = sizeof firstdiff_notes / sizeof firstdiff_notes[0] };

/* Kinds of failure, and of what only may be one; each is told once. */
enum { FIRSTDIFF_BAD_SETUP = 1, FIRSTDIFF_BAD_NAME = 2, FIRSTDIFF_BAD_SHAPE = 4, FIRSTDIFF_TWICE = 8, FIRSTDIFF_DISK = 16,
       FIRSTDIFF_MEMORY = 32, FIRSTDIFF_BAD_NOTE = 64, FIRSTDIFF_NO_MATCH = 128, FIRSTDIFF_OTHER_ROWS = 256, FIRSTDIFF_NOT_FINISHED = 512,
       /* after which a tap is missing */
       FIRSTDIFF_LOST = FIRSTDIFF_BAD_NAME | FIRSTDIFF_BAD_SHAPE | FIRSTDIFF_TWICE | FIRSTDIFF_DISK | FIRSTDIFF_MEMORY };

static struct {
    char *folder, *taps, *steps, *rows;
    char *path, *temporary; /* of the file in the making */
    long pid;
    unsigned long step;
    size_t positions; /* of this step; 0: nobody said */
    unsigned told, failures;
    int begun; /* whether dump.json says that the recording is not complete */
    firstdiff_entry *entries;
    size_t count, room;
    firstdiff_ids tokens, decoded;
    char *notes[FIRSTDIFF_NOTES];
    void *host; /* values copied from a device */
    size_t host_bytes;
} firstdiff_run;

/* ---- failures and memory ---- */

#ifdef __GNUC__
__attribute__((format(printf, 2, 0)))
#endif
static void firstdiff_tell(unsigned kind, const char *format, va_list args) {
    if (firstdiff_run.told & kind) return;
    firstdiff_run.told |= kind;
    fputs("firstdiff: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static void firstdiff_fail(unsigned kind, const char *format, ...) {
    va_list args;
    firstdiff_run.failures++;
    va_start(args, format);
    firstdiff_tell(kind, format, args);
    va_end(args);
}

/* What is recorded all the same, as it might be meant. */
#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static void firstdiff_warn(unsigned kind, const char *format, ...) {
    va_list args;
    va_start(args, format);
    firstdiff_tell(kind, format, args);
    va_end(args);
}

static void *firstdiff_resize(void *memory, size_t bytes) {
    void *larger = realloc(memory, bytes);
    if (!larger) firstdiff_fail(FIRSTDIFF_MEMORY, "no memory for %lu bytes", (unsigned long)bytes);
    return larger;
}

/* Room for one element more; `array` as it was, and 0, where there is no memory. */
static int firstdiff_grow(void **array, size_t *room, size_t count, size_t size) {
    size_t more = *room ? *room * 2 : 64;
    void *larger;
    if (count < *room) return 1;
    larger = firstdiff_resize(*array, more * size);
    if (!larger) return 0;
    *array = larger;
    *room = more;
    return 1;
}

static char *firstdiff_text(const char *text) {
    char *copy = (char *)firstdiff_resize(NULL, strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}

static void firstdiff_push(firstdiff_ids *list, long long id) {
    void *ids = list->ids;
    if (!firstdiff_grow(&ids, &list->room, list->count, sizeof *list->ids)) return;
    list->ids = (long long *)ids;
    list->ids[list->count++] = id;
}

/* ---- which taps, which steps ---- */

/* `*` matches any run of characters, everything else itself. */
static int firstdiff_glob(const char *pattern, const char *end, const char *text) {
    const char *star = NULL, *mark = NULL;
    while (*text) {
        if (pattern < end && *pattern == '*') {
            star = pattern++;
            mark = text;
        } else if (pattern < end && *pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star + 1;
            text = ++mark;
        } else {
            return 0;
        }
    }
    while (pattern < end && *pattern == '*') pattern++;
    return pattern == end;
}

/* Patterns separated by commas. */
static int firstdiff_in_taps(const char *patterns, const char *tap) {
    for (;;) {
        const char *comma = patterns + strcspn(patterns, ","), *end = comma;
        while (*patterns == ' ') patterns++;
        while (end > patterns && end[-1] == ' ') end--;
        if (firstdiff_glob(patterns, end, tap)) return 1;
        if (!*comma) return 0;
        patterns = comma + 1;
    }
}

static int firstdiff_digit(char c) { return c >= '0' && c <= '9'; }

/* Numbers and ranges, `0,2-5`: 1 in it, 0 not, -1 no such list. */
static int firstdiff_in_steps(const char *list, unsigned long step) {
    int found = 0;
    for (;;) {
        char *end;
        unsigned long first, last;
        while (*list == ' ') list++;
        if (!firstdiff_digit(*list)) return -1;
        first = last = strtoul(list, &end, 10);
        if (*end == '-') {
            if (!firstdiff_digit(end[1])) return -1;
            last = strtoul(end + 1, &end, 10);
        }
        if (first > last) return -1;
        found |= first <= step && step <= last;
        if (*end != ',') return *end ? -1 : found;
        list = end + 1;
    }
}

/* `all`, `last` or numbers, `0,3,7`, of a tensor of so many positions: 1 in it, 0 not, -1 no such list. */
static int firstdiff_in_rows(const char *list, long long row, long long positions) {
    if (!*list || strcmp(list, "all") == 0) return 1;
    if (strcmp(list, "last") == 0) return row == positions - 1;
    return strchr(list, '-') ? -1 : firstdiff_in_steps(list, (unsigned long)row);
}

static int firstdiff_listed(const char *list, const char *word) {
    size_t length = strlen(word);
    const char *at = list;
    if (!length || strchr(word, ',')) return 0;
    while ((at = strstr(at + 1, word))) {
        if (at[-1] == ',' && at[length] == ',') return 1;
    }
    return 0;
}

/* Whether a name is of the vocabulary: `layers.N.` and a site, or one of three outside the layers. */
static int firstdiff_is_tap(const char *name) {
    const char *number = name + 7;
    size_t digits = 0;
    if (strncmp(name, "layers.", 7) != 0) return firstdiff_listed(",h0,final_norm,logits,", name);
    while (firstdiff_digit(number[digits])) digits++;
    if (!digits || digits > 9 || (digits > 1 && number[0] == '0') || number[digits] != '.') return 0;
    return firstdiff_listed(",attn_norm,q,k,v,q_norm,k_norm,q_rope,k_rope,qk,scores,probs,context,attn_out,attn_post_norm,h_attn,"
                            "ffn_norm,ffn_gate,ffn_up,ffn_act,router_logits,router_probs,ffn_out,ffn_post_norm,h,",
                            number + digits + 1);
}

/* ---- files: under a temporary name first, so that nobody ever sees half of one ---- */

static FILE *firstdiff_open(const char *file) {
    FILE *out;
    sprintf(firstdiff_run.path, "%s/%s", firstdiff_run.folder, file);
    sprintf(firstdiff_run.temporary, "%s.%ld.tmp", firstdiff_run.path, firstdiff_run.pid);
    errno = 0;
    out = fopen(firstdiff_run.temporary, "wb");
    if (!out) firstdiff_fail(FIRSTDIFF_DISK, "%s: %s", firstdiff_run.temporary, strerror(errno));
    return out;
}

static int firstdiff_close(FILE *out) {
    int good = !ferror(out);
    good = fclose(out) == 0 && good;
    good = good && rename(firstdiff_run.temporary, firstdiff_run.path) == 0;
    if (good) return 1;
    firstdiff_fail(FIRSTDIFF_DISK, "%s: %s", firstdiff_run.path, errno ? strerror(errno) : "not written");
    remove(firstdiff_run.temporary);
    return 0;
}

/* Makes a folder and those above it; whether that went well shows when it is looked into. */
static void firstdiff_make_folder(char *path) {
    char *at;
    for (at = path + 1; *at; at++) {
        char kept = *at;
        if (kept != '/' && kept != '\\') continue;
        *at = '\0';
        firstdiff_mkdir(path);
        *at = kept;
    }
    firstdiff_mkdir(path);
}

static int firstdiff_is_of_dump(const char *name) {
    size_t length = strlen(name);
    return strcmp(name, "dump.json") == 0 || (length > 4 && strcmp(name + length - 4, ".npy") == 0);
}

/* Whether there is a dump in the folder already; -1 where it cannot be looked into. */
#ifdef _WIN32
static int firstdiff_occupied(const char *folder) {
    int found = 0;
    struct _finddata_t entry;
    intptr_t search;
    sprintf(firstdiff_run.path, "%s/*", folder);
    if ((search = _findfirst(firstdiff_run.path, &entry)) == -1) return -1;
    do found |= firstdiff_is_of_dump(entry.name);
    while (_findnext(search, &entry) == 0);
    _findclose(search);
    return found;
}
#else
static int firstdiff_occupied(const char *folder) {
    int found = 0;
    struct dirent *entry;
    DIR *search = opendir(folder);
    if (!search) return -1;
    while ((entry = readdir(search))) found |= firstdiff_is_of_dump(entry->d_name);
    closedir(search);
    return found;
}
#endif

/* ---- begin ---- */

static void firstdiff_end(int finished);
static int firstdiff_write_json(const char *complete);

/* Whether the program got to its last tap nobody can tell here. */
static void firstdiff_at_exit(void) {
    if (firstdiff_state != 2 || firstdiff_run.pid != firstdiff_pid()) return; /* a forked child */
    FIRSTDIFF_LOCK();
    firstdiff_end(0);
    firstdiff_state = 0;
    FIRSTDIFF_UNLOCK();
}

static int firstdiff_prepare(const char *folder, const char *taps, const char *steps, const char *rows) {
    int occupied;
    firstdiff_run.folder = firstdiff_text(folder);
    firstdiff_run.taps = firstdiff_text(taps);
    firstdiff_run.steps = firstdiff_text(steps);
    firstdiff_run.rows = firstdiff_text(rows);
    firstdiff_run.path = (char *)firstdiff_resize(NULL, strlen(folder) + FIRSTDIFF_FILE + 32);
    firstdiff_run.temporary = (char *)firstdiff_resize(NULL, strlen(folder) + FIRSTDIFF_FILE + 64);
    firstdiff_run.pid = firstdiff_pid();
    if (firstdiff_run.failures) return 0;
    if (*steps && firstdiff_in_steps(steps, 0) < 0) {
        firstdiff_fail(FIRSTDIFF_BAD_SETUP, "FIRSTDIFF_STEPS='%s' is no list of steps such as 0,2-5; nothing is recorded", steps);
        return 0;
    }
    if (firstdiff_in_rows(rows, 0, 1) < 0) {
        firstdiff_fail(FIRSTDIFF_BAD_SETUP, "FIRSTDIFF_ROWS='%s' is neither last nor a list of positions such as 0,3,7; nothing is recorded", rows);
        return 0;
    }
    firstdiff_make_folder(firstdiff_run.folder);
    occupied = firstdiff_occupied(folder);
    if (occupied < 0) firstdiff_fail(FIRSTDIFF_BAD_SETUP, "%s: %s; nothing is recorded", folder, strerror(errno));
    if (occupied > 0) firstdiff_fail(FIRSTDIFF_BAD_SETUP, "%s: already holds a dump; remove it, or record into another folder", folder);
    return !firstdiff_run.failures;
}

/* Whether recording is on; looks at the environment the first time. */
static int firstdiff_begun(void) {
    const char *folder, *taps, *steps, *rows;
    if (firstdiff_state != 1) return firstdiff_state == 2;
    firstdiff_state = 0;
    folder = getenv("FIRSTDIFF_DIR");
    taps = getenv("FIRSTDIFF_TAPS");
    steps = getenv("FIRSTDIFF_STEPS");
    rows = getenv("FIRSTDIFF_ROWS");
    if (!folder || !*folder || !firstdiff_prepare(folder, taps ? taps : "*", steps ? steps : "", rows ? rows : "")) return 0;
    firstdiff_state = 2;
    atexit(firstdiff_at_exit);
    return 1;
}

int firstdiff_ask(void) {
    int on;
    FIRSTDIFF_LOCK();
    on = firstdiff_begun();
    FIRSTDIFF_UNLOCK();
    return on;
}

/* ---- one tap ---- */

static const char *const firstdiff_type_names[] = {"f64", "f32", "f16", "bf16"};
static const char *const firstdiff_descr[] = {"f8", "f4", "f2", "V2"};
static const size_t firstdiff_sizes[] = {8, 4, 2, 2};

static int firstdiff_axes(const long long *shape) { return shape[2] ? 3 : shape[1] ? 2 : 1; }

/* Bytes of a tensor; 0 where an extent is missing or negative, or they are too many to count. */
static size_t firstdiff_bytes(enum firstdiff_type type, const long long *shape) {
    size_t bytes = firstdiff_sizes[type];
    int axis;
    for (axis = 0; axis < firstdiff_axes(shape); axis++) {
        if (shape[axis] <= 0 || (unsigned long long)shape[axis] > PTRDIFF_MAX / bytes) return 0;
        bytes *= (size_t)shape[axis];
    }
    return bytes;
}

/* `(3, 6, 16)` or `[3, 6, 16]`. */
static void firstdiff_write_shape(FILE *out, const long long *shape, const char *open, const char *close) {
    int axis, axes = firstdiff_axes(shape);
    for (axis = 0; axis < axes; axis++) fprintf(out, "%s%lld", axis ? ", " : open, shape[axis]);
    fputs(close, out);
}

/* Version 1.0, padded to 128 bytes. The longest: three extents of one tensor have 22 digits at most. */
static void firstdiff_write_header(FILE *out, enum firstdiff_type type, const long long *shape) {
    const uint16_t one = 1;
    fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, out);
    fprintf(out, "{'descr': '%c%s', 'fortran_order': False, 'shape': ", *(const char *)&one ? '<' : '>', firstdiff_descr[type]);
    firstdiff_write_shape(out, shape, "(", firstdiff_axes(shape) == 1 ? ",), }" : "), }");
    fprintf(out, "%*s", (int)(128 - ftell(out)), "\n");
}

static const void *firstdiff_to_host(const void *values, size_t bytes) {
    if (!firstdiff_copy) return values;
    if (bytes > firstdiff_run.host_bytes) {
        void *larger = firstdiff_resize(firstdiff_run.host, bytes);
        if (!larger) return NULL;
        firstdiff_run.host = larger;
        firstdiff_run.host_bytes = bytes;
    }
    firstdiff_copy(firstdiff_run.host, values, bytes);
    return firstdiff_run.host;
}

static int firstdiff_recorded(const char *tap) {
    size_t n = firstdiff_run.count;
    while (n-- && firstdiff_run.entries[n].step == firstdiff_run.step) {
        if (strcmp(firstdiff_run.entries[n].tap, tap) == 0) return 1;
    }
    return 0;
}

/* Where a name ends like a step: `.step3`. */
static const char *firstdiff_like_step(const char *tap) {
    const char *at, *found = NULL;
    for (at = tap; (at = strstr(at, ".step")); at++) found = at;
    return found && strspn(found + 5, "0123456789") == strlen(found + 5) ? found : NULL;
}

/* `layers.0.q.npy`, `layers.0.q.step3.npy`; 0: no file can have that name. Bytes that may not be in one are `%` and two hexadecimal digits,
   and so is a dot at the start, and the one of a name that itself ends like a step. `file`: FIRSTDIFF_FILE bytes. */
static int firstdiff_file_name(char *file, const char *tap, unsigned long step) {
    const char *like_step = firstdiff_like_step(tap), *at;
    char *end = file;
    for (at = tap; *at; at++) {
        const unsigned char c = (unsigned char)*at;
        const int letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || firstdiff_digit(*at);
        if (end - file > FIRSTDIFF_NAME - 3) return 0;
        if (letter || c == '_' || c == '-' || (c == '.' && at != tap && at != like_step)) *end++ = *at;
        else end += sprintf(end, "%%%02X", (unsigned)c);
    }
    if (end == file) return 0;
    if (step) sprintf(end, ".step%lu.npy", step);
    else strcpy(end, ".npy");
    return 1;
}

static int firstdiff_wanted(const char *tap) {
    const char *steps = firstdiff_run.steps;
    return firstdiff_in_taps(firstdiff_run.taps, tap) && (!*steps || firstdiff_in_steps(steps, firstdiff_run.step) == 1);
}

/* ---- which token positions ---- */

/* The axis along which positions run; -1 where that cannot be told: in another shape than the vocabulary's, with other than the positions
   of the step, with two leading axes of one length, or with three axes and no prompt (heads may stand first). */
static int firstdiff_position_axis(const firstdiff_entry *entry) {
    const char *dot = strrchr(entry->tap, '.'), *site = dot ? dot + 1 : entry->tap;
    int axis = firstdiff_listed(",qk,scores,probs,", site);
    int three = axis || firstdiff_listed(",q,k,v,q_norm,k_norm,q_rope,k_rope,", site);
    size_t tokens = firstdiff_run.positions;
    if (!firstdiff_is_tap(entry->tap)) return -1;
    if (firstdiff_axes(entry->shape) != 2 + three || entry->shape[0] == entry->shape[1] || (three && !tokens)) return -1;
    return tokens && (unsigned long long)entry->shape[axis] != tokens ? -1 : axis;
}

/* Tells of a residual stream with more rows than the step has tokens. Fewer may be the rows that were kept; other shapes tell nothing. */
static void firstdiff_check_rows(const firstdiff_entry *entry) {
    const char *dot = strrchr(entry->tap, '.'), *site = dot ? dot + 1 : entry->tap;
    int is_stream = firstdiff_is_tap(entry->tap) && (strcmp(site, "h0") == 0 || strcmp(site, "h") == 0 || strcmp(site, "h_attn") == 0);
    size_t tokens = firstdiff_run.positions;
    if (!tokens || !is_stream || firstdiff_axes(entry->shape) != 2 || (unsigned long long)entry->shape[0] <= tokens) return;
    firstdiff_warn(FIRSTDIFF_OTHER_ROWS, "%s: %lld rows in step %lu, which was said to have %lu tokens; before a step of several call "
                   "firstdiff_next_chunk(ids, count)", entry->tap, entry->shape[0], entry->step, (unsigned long)tokens);
}

/* What FIRSTDIFF_ROWS leaves of a tap: the axis that is cut, or -1: the whole of it. */
static int firstdiff_keep_rows(firstdiff_entry *entry) {
    int axis = firstdiff_position_axis(entry);
    long long row, kept = 0, positions = axis < 0 ? 0 : entry->shape[axis];
    for (row = 0; row < positions; row++) kept += firstdiff_in_rows(firstdiff_run.rows, row, positions);
    if (kept == positions) return -1;
    entry->shape[axis] = kept;
    entry->positions = positions;
    return axis;
}

static void firstdiff_write_rows(FILE *out, const firstdiff_entry *entry, int axis, const char *values) {
    size_t run = firstdiff_sizes[entry->type];
    long long outer, row, blocks = axis ? entry->shape[0] : 1;
    int inner;
    for (inner = axis + 1; inner < firstdiff_axes(entry->shape); inner++) run *= (size_t)entry->shape[inner];
    for (outer = 0; outer < blocks; outer++) {
        for (row = 0; row < entry->positions; row++, values += run) {
            if (firstdiff_in_rows(firstdiff_run.rows, row, entry->positions) == 1) fwrite(values, 1, run, out);
        }
    }
}

static int firstdiff_write(const firstdiff_entry *entry, int axis, const void *values, size_t bytes) {
    char file[FIRSTDIFF_FILE];
    FILE *out;
    firstdiff_file_name(file, entry->tap, entry->step);
    if (!(out = firstdiff_open(file))) return 0;
    firstdiff_write_header(out, entry->type, entry->shape);
    if (axis < 0) fwrite(values, 1, bytes, out);
    else firstdiff_write_rows(out, entry, axis, (const char *)values);
    return firstdiff_close(out);
}

/* Says in dump.json that the recording is not complete, before anything is in it. Where that cannot be written, nothing is recorded. */
static int firstdiff_begin(void) {
    if (!firstdiff_run.begun) firstdiff_run.begun = firstdiff_write_json("false");
    return firstdiff_run.begun;
}

static void firstdiff_record(const firstdiff_entry *entry, const void *values) {
    size_t bytes = firstdiff_bytes(entry->type, entry->shape);
    const long long *shape = entry->shape;
    void *entries = firstdiff_run.entries;
    char file[FIRSTDIFF_FILE];
    if (!firstdiff_wanted(entry->tap)) {
        return;
    } else if (!firstdiff_file_name(file, entry->tap, entry->step)) {
        firstdiff_fail(FIRSTDIFF_BAD_NAME, "'%s': cannot be the name of a file, which needs 1 to %d bytes; not recorded", entry->tap, FIRSTDIFF_NAME);
    } else if (!bytes || !values) {
        firstdiff_fail(FIRSTDIFF_BAD_SHAPE, "%s: %s; extents are %lld, %lld, %lld; not recorded", entry->tap,
                       bytes ? "no values" : "no shape of a tensor", shape[0], shape[1], shape[2]);
    } else if (firstdiff_recorded(entry->tap)) {
        firstdiff_fail(FIRSTDIFF_TWICE, "%s: recorded before in step %lu; call firstdiff_next_step between decode steps; not recorded",
                       entry->tap, entry->step);
    } else if (firstdiff_begin() && firstdiff_grow(&entries, &firstdiff_run.room, firstdiff_run.count, sizeof *entry)) {
        firstdiff_entry kept = *entry;
        int axis = firstdiff_keep_rows(&kept);
        firstdiff_run.entries = (firstdiff_entry *)entries;
        firstdiff_check_rows(entry);
        if (axis >= 0 && !kept.shape[axis]) return; /* none of the positions asked for is in this step */
        values = firstdiff_to_host(values, bytes);
        if (values && firstdiff_write(&kept, axis, values, bytes)) firstdiff_run.entries[firstdiff_run.count++] = kept;
    }
}

void firstdiff_put(enum firstdiff_type type, const void *values, long long extent0, long long extent1, long long extent2,
                   const char *name, ...) {
    va_list args;
    FIRSTDIFF_LOCK();
    if (firstdiff_begun()) {
        firstdiff_entry entry;
        int length;
        entry.type = type;
        entry.positions = 0;
        entry.step = firstdiff_run.step;
        entry.shape[0] = extent0;
        entry.shape[1] = extent1;
        entry.shape[2] = extent2;
        va_start(args, name);
        length = vsnprintf(entry.tap, sizeof entry.tap, name, args);
        va_end(args);
        if (length >= 0 && (size_t)length < sizeof entry.tap) firstdiff_record(&entry, values);
        else firstdiff_fail(FIRSTDIFF_BAD_NAME, "'%s...': longer than %d bytes; not recorded", entry.tap, FIRSTDIFF_NAME);
    }
    FIRSTDIFF_UNLOCK();
}

/* ---- tokens, steps, notes ---- */

/* The tokens of the step that begins. */
static void firstdiff_push_all(firstdiff_ids *list, const void *ids, int size, long long count) {
    const int32_t *four = (const int32_t *)ids;
    const int64_t *eight = (const int64_t *)ids;
    long long i;
    firstdiff_run.positions = 0;
    if (size != 4 && size != 8) {
        firstdiff_fail(FIRSTDIFF_BAD_NOTE, "token ids of %d bytes; 4 and 8 are known; not noted", size);
        return;
    }
    for (i = 0; i < count; i++) firstdiff_push(list, size == 4 ? four[i] : eight[i]);
    if (count > 0) firstdiff_run.positions = (size_t)count;
}

void firstdiff_put_tokens(const void *ids, int size, long long count) {
    FIRSTDIFF_LOCK();
    if (firstdiff_begun()) {
        firstdiff_run.tokens.count = 0;
        firstdiff_push_all(&firstdiff_run.tokens, ids, size, count);
    }
    FIRSTDIFF_UNLOCK();
}

void firstdiff_put_chunk(const void *ids, int size, long long count) {
    FIRSTDIFF_LOCK();
    if (firstdiff_begun()) {
        firstdiff_run.step++;
        firstdiff_push_all(&firstdiff_run.decoded, ids, size, count);
    }
    FIRSTDIFF_UNLOCK();
}

void firstdiff_put_step(long long token) {
    const int64_t id = token;
    firstdiff_put_chunk(&id, (int)sizeof id, 1);
}

static void firstdiff_keep_note(const char *key, const char *value) {
    int n;
    for (n = 0; n < FIRSTDIFF_NOTES; n++) {
        if (strcmp(key, firstdiff_notes[n].key) != 0) continue;
        if (firstdiff_notes[n].values && !firstdiff_listed(firstdiff_notes[n].values, value)) break;
        free(firstdiff_run.notes[n]);
        firstdiff_run.notes[n] = firstdiff_text(value);
        return;
    }
    firstdiff_fail(FIRSTDIFF_BAD_NOTE, "note %s='%s' is none that dump.json knows; not noted", key, value);
}

void firstdiff_put_note(const char *key, const char *value) {
    FIRSTDIFF_LOCK();
    if (firstdiff_begun()) firstdiff_keep_note(key, value);
    FIRSTDIFF_UNLOCK();
}

/* ---- dump.json ---- */

/* Bytes of the character of UTF-8 that begins here; 0: none does. */
static int firstdiff_utf8(const unsigned char *at) {
    const int length = *at < 0x80 ? 1 : *at < 0xc2 || *at > 0xf4 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : 4;
    int n;
    for (n = 1; n < length; n++) {
        if ((at[n] & 0xc0) != 0x80) return 0;
    }
    if ((*at == 0xe0 && at[1] < 0xa0) || (*at == 0xed && at[1] > 0x9f) || (*at == 0xf0 && at[1] < 0x90) || (*at == 0xf4 && at[1] > 0x8f)) return 0;
    return length;
}

/* As JSON; bytes that are not UTF-8 as the characters of their numbers. */
static void firstdiff_write_text(FILE *out, const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    fputc('"', out);
    while (*at) {
        int length = firstdiff_utf8(at);
        if (*at < 0x20 || !length) fprintf(out, "\\u%04x", (unsigned)*at);
        else if (length == 1) fprintf(out, *at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
        else fwrite(at, 1, (size_t)length, out);
        at += length ? length : 1;
    }
    fputc('"', out);
}

static void firstdiff_write_ids(FILE *out, const char *key, const firstdiff_ids *list) {
    size_t n;
    if (!list->count) return;
    fprintf(out, ",\n  \"%s\": [", key);
    for (n = 0; n < list->count; n++) fprintf(out, n ? ", %lld" : "%lld", list->ids[n]);
    fputs("]", out);
}

static void firstdiff_write_entry(FILE *out, const firstdiff_entry *entry) {
    char file[FIRSTDIFF_FILE];
    long long row, written = 0;
    firstdiff_file_name(file, entry->tap, entry->step);
    fputs("{\"tap\": ", out);
    firstdiff_write_text(out, entry->tap);
    fprintf(out, ", \"step\": %lu, \"file\": \"%s\", \"shape\": ", entry->step, file);
    firstdiff_write_shape(out, entry->shape, "[", "]");
    fprintf(out, ", \"dtype\": \"%s\"", firstdiff_type_names[entry->type]);
    for (row = 0; row < entry->positions; row++) {
        if (firstdiff_in_rows(firstdiff_run.rows, row, entry->positions) != 1) continue;
        fprintf(out, written++ ? ", %lld" : ", \"rows\": [%lld", row);
    }
    fputs(written ? "]}" : "}", out);
}

static int firstdiff_write_json(const char *complete) {
    FILE *out = firstdiff_open("dump.json");
    size_t n;
    if (!out) return 0;
    fprintf(out, "{\n  \"format\": 1,\n  \"complete\": %s", complete);
    for (n = 0; n < FIRSTDIFF_NOTES; n++) {
        if (!firstdiff_run.notes[n]) continue;
        fprintf(out, ",\n  \"%s\": ", firstdiff_notes[n].key);
        firstdiff_write_text(out, firstdiff_run.notes[n]);
    }
    firstdiff_write_ids(out, "tokens", &firstdiff_run.tokens);
    firstdiff_write_ids(out, "decode_tokens", &firstdiff_run.decoded);
    fputs(",\n  \"taps\": [", out);
    for (n = 0; n < firstdiff_run.count; n++) {
        fputs(n ? ",\n    " : "\n    ", out);
        firstdiff_write_entry(out, &firstdiff_run.entries[n]);
    }
    fputs("\n  ]\n}\n", out);
    return firstdiff_close(out);
}

static void firstdiff_end(int finished) {
    const int lost = (firstdiff_run.told & FIRSTDIFF_LOST) != 0;
    size_t n;
    firstdiff_write_json(lost ? "false" : finished ? "true" : "false,\n  \"ended_by_itself\": true");
    if (!finished && firstdiff_run.count) {
        firstdiff_warn(FIRSTDIFF_NOT_FINISHED, "%s: not complete: the program ended without firstdiff_finish()", firstdiff_run.folder);
    }
    if (!firstdiff_run.count && (strcmp(firstdiff_run.taps, "*") != 0 || *firstdiff_run.steps || *firstdiff_run.rows)) {
        firstdiff_fail(FIRSTDIFF_NO_MATCH, "nothing recorded matches FIRSTDIFF_TAPS='%s' FIRSTDIFF_STEPS='%s' FIRSTDIFF_ROWS='%s'",
                       firstdiff_run.taps, firstdiff_run.steps, firstdiff_run.rows);
    }
    if (firstdiff_run.failures > 1) fprintf(stderr, "firstdiff: %u failures in all\n", firstdiff_run.failures);
    for (n = 0; n < FIRSTDIFF_NOTES; n++) free(firstdiff_run.notes[n]);
    free(firstdiff_run.tokens.ids);
    free(firstdiff_run.decoded.ids);
    free(firstdiff_run.entries);
    free(firstdiff_run.host);
    free(firstdiff_run.folder);
    free(firstdiff_run.taps);
    free(firstdiff_run.steps);
    free(firstdiff_run.rows);
    free(firstdiff_run.path);
    free(firstdiff_run.temporary);
}

int firstdiff_finish(void) {
    int failed;
    FIRSTDIFF_LOCK();
    if (firstdiff_begun()) firstdiff_end(1);
    firstdiff_state = 0;
    failed = firstdiff_run.failures != 0;
    FIRSTDIFF_UNLOCK();
    return failed;
}

#ifdef __cplusplus
}
#endif
#endif
