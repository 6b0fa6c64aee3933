/* What Python sees: functions over buffers, each of which checks every size and then runs without the interpreter's lock.
 *
 * `format` is the integers that operations.py makes. `level` is one of the names below, and the processor must have it.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <string.h>

#include "kernels.h"

enum { NO_LEVEL = 0, AVX2 = 1, AVX512 = 2 };

#if HAVE_KERNEL

#include <cpuid.h>

enum { MAX_BUFFERS = 10 };
static const long long MAX_ROWS = 1LL << 40, MAX_COLUMNS = 1LL << 20;

/* The best level of the processor. */
static int best_level(void) {
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2") || !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_AES))
        return NO_LEVEL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & bit_VAES))
        return AVX512;
    return AVX2;
}

/* Buffers of one call, given back together. */
struct call {
    Py_buffer buffers[MAX_BUFFERS];
    int n_buffers;
};

static void *finish(struct call *call) {
    for (int i = 0; i < call->n_buffers; i++) PyBuffer_Release(&call->buffers[i]);
    call->n_buffers = 0;
    return NULL;
}

/* 1 if the condition holds, else 0 and a ValueError. */
static int require(int condition, const char *what) {
    if (!condition) PyErr_SetString(PyExc_ValueError, what);
    return condition;
}

/* The functions of a level; NULL and an exception if the processor does not have it. */
static const struct level *level_of(int level) {
    if (!require(level >= AVX2 && level <= best_level(), "the processor does not have this level")) return NULL;
    return level == AVX512 ? &avx512_level : &avx2_level;
}

/* How many elements of 8 bytes a buffer has; -1 if it has another size, or begins elsewhere than an element may. */
static int64_t words(const struct call *call, int i) {
    const Py_buffer *buffer = &call->buffers[i];
    return buffer->len % 8 || (uintptr_t)buffer->buf % 8 ? -1 : buffer->len / 8;
}

static int good_rows(long long row, long long rows) {
    return row >= 0 && row <= MAX_ROWS && row % 8 == 0 && rows >= 0 && rows <= MAX_ROWS && rows % 16 == 0;
}

/* 1 if a buffer is a key; the schedule of its rounds. */
static int read_key(const struct level *level, const struct call *call, int i, struct schedule *out) {
    if (!require(call->buffers[i].len == 16, "a key has 16 bytes")) return 0;
    level->expand(call->buffers[i].buf, out);
    return 1;
}

/* 1 if a buffer is a table of so many rows and columns, of integers of 4 bytes or of elements of 8. */
static int read_columns(const struct call *call, int i, int64_t rows, int64_t count, struct columns *out) {
    const Py_buffer *buffer = &call->buffers[i];
    const int wide = words(call, i) == rows * count, narrow = buffer->len == 4 * rows * count;
    *out = (struct columns){.count = count};
    /* An empty table is both. */
    if (wide)
        out->wide = buffer->buf;
    else if (narrow && (uintptr_t)buffer->buf % 4 == 0)
        out->narrow = buffer->buf;
    return out->wide || out->narrow;
}

/* Read what operations.py makes of a format, and the table of waves; 0 and an exception if they are not that. */
static int read_format(const struct call *call, int numbers, int table, struct format *f) {
    const int64_t count = words(call, numbers), *in = call->buffers[numbers].buf;
    if (count >= 4 && in[0] >= 1 && in[0] <= MAX_TERMS && count == 4 + 5 * in[0] && (in[3] == 0 || in[3] == 1)) {
        const int64_t K = in[0];
        *f = (struct format){.terms = K, .residual_cut = in[1], .square_cut = in[2], .weighted = in[3],
                             .wave_cut = in + 4, .by_cut = in + 4 + K, .loss_cut = in + 4 + 2 * K,
                             .coef = in + 4 + 3 * K, .loss_coef = in + 4 + 4 * K, .table = call->buffers[table].buf};
        int good = in[1] >= 1 && in[1] <= in[2] && in[2] <= 62;
        for (int64_t k = 0; k < 3 * K; k++) good = good && in[4 + k] >= 0 && in[4 + k] <= 62;
        for (int64_t k = 3 * K; k < 5 * K; k++) good = good && in[4 + k] >= -INT32_MAX && in[4 + k] <= INT32_MAX;
        if (good && call->buffers[table].len == 8 * TABLE_ENTRIES && (uintptr_t)f->table % 4 == 0) return 1;
    }
    PyErr_SetString(PyExc_ValueError, "these are not the numbers of a format and the table of waves");
    return 0;
}

#define DATA(i) (call.buffers[i].buf)
#define BUFFER(i) (&call.buffers[i])
#define RUN(statement)                                                                                                 \
    Py_BEGIN_ALLOW_THREADS statement;                                                                                  \
    Py_END_ALLOW_THREADS finish(&call);                                                                                \
    Py_RETURN_NONE

static PyObject *kernel_stream(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 2};
    const struct level *level;
    struct schedule key;
    int number;
    unsigned long long purpose;
    long long row, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "iw*y*KLL", &number, BUFFER(0), BUFFER(1), &purpose, &row, &count)) return NULL;
    if (!(level = level_of(number)) || !read_key(level, &call, 1, &key)) return finish(&call);
    const int64_t n = words(&call, 0);
    if (!require(good_rows(row, 0) && count >= 1 && count <= MAX_COLUMNS && n >= 0 && n % (8 * count) == 0,
                 "stream: sizes do not match"))
        return finish(&call);
    RUN(level->stream(&key, purpose, row, n / count, count, DATA(0)));
}

static PyObject *kernel_mask(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    const struct level *level;
    struct schedule key;
    struct columns in;
    int number;
    unsigned long long purpose;
    long long row, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "iw*y*y*KLL", &number, BUFFER(0), BUFFER(1), BUFFER(2), &purpose, &row, &count)) return NULL;
    if (!(level = level_of(number)) || !read_key(level, &call, 2, &key)) return finish(&call);
    const int64_t n = words(&call, 0);
    if (!require(good_rows(row, 0) && count >= 1 && count <= MAX_COLUMNS && n >= 0 && n % (8 * count) == 0 &&
                     read_columns(&call, 1, n / count, count, &in),
                 "mask: sizes do not match"))
        return finish(&call);
    RUN(level->mask(&in, &key, purpose, row, n / count, DATA(0)));
}

static PyObject *kernel_score_part(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 8};
    const struct level *level;
    struct score_part in;
    int number, offset;
    long long row;
    (void)self;
    if (!PyArg_ParseTuple(args, "iw*y*y*y*y*y*y*y*Lp", &number, BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), BUFFER(4),
                          BUFFER(5), BUFFER(6), BUFFER(7), &row, &offset))
        return NULL;
    if (!(level = level_of(number)) || !read_key(level, &call, 6, &in.mask) || !read_key(level, &call, 7, &in.score))
        return finish(&call);
    const int64_t rows = words(&call, 0), own = words(&call, 3), other = words(&call, 5);
    if (!require(rows >= 0 && own >= 0 && other >= 0 && own <= MAX_COLUMNS && other <= MAX_COLUMNS &&
                     words(&call, 4) == own && good_rows(row, rows) && read_columns(&call, 1, rows, own, &in.own) &&
                     read_columns(&call, 2, rows, other, &in.other) && (own == 0 || rows == 0 || in.own.narrow) &&
                     (other == 0 || rows == 0 || in.other.wide),
                 "score_part: sizes do not match"))
        return finish(&call);
    in.own_weights = DATA(3), in.opened = DATA(4), in.other_weights = DATA(5);
    in.offset = offset ? UINT64_C(1) << 62 : 0;
    RUN(level->score_part(&in, row, rows, DATA(0)));
}

static PyObject *kernel_deal(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 10};
    const struct level *level;
    struct format f;
    struct dealer in;
    int number, with_sums;
    long long row, rows;
    (void)self;
    if (!PyArg_ParseTuple(args, "iw*w*w*w*w*y*y*y*y*y*LLp", &number, BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), BUFFER(4),
                          BUFFER(5), BUFFER(6), BUFFER(7), BUFFER(8), BUFFER(9), &row, &rows, &with_sums))
        return NULL;
    if (!(level = level_of(number)) || !read_format(&call, 5, 6, &f)) return finish(&call);
    const int64_t n_host = words(&call, 8), n_guest = words(&call, 9);
    if (!require(call.buffers[7].len == 64, "deal: expected four keys of 16 bytes") ||
        !require(good_rows(row, rows) && n_host >= 0 && n_guest >= 0 && n_host <= MAX_COLUMNS && n_guest <= MAX_COLUMNS &&
                     words(&call, 0) == rows * (f.terms + 2 + f.weighted) && words(&call, 1) == rows * (f.terms + 3),
                 "deal: sizes do not match") ||
        !require(!with_sums || (words(&call, 2) == n_host && words(&call, 3) == n_guest && words(&call, 4) == 1),
                 "deal: the sums do not have one element for each column, and one for the loss"))
        return finish(&call);
    struct schedule *keys[] = {&in.host_session, &in.guest_session, &in.host_round, &in.guest_round};
    for (int k = 0; k < 4; k++) level->expand((const uint8_t *)DATA(7) + 16 * k, keys[k]);
    in.a = DATA(8), in.b = DATA(9), in.n_host = n_host, in.n_guest = n_guest;
    in.sum_host = with_sums ? DATA(2) : NULL, in.sum_guest = DATA(3), in.sum_loss = DATA(4);
    RUN(level->deal(&f, &in, row, rows, DATA(0), DATA(1)));
}

static PyObject *kernel_residual(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 9};
    const struct level *level;
    struct format f;
    struct residual in = {.digest = {0}};
    int number, host, gradient;
    long long row;
    (void)self;
    if (!PyArg_ParseTuple(args, "iw*w*w*w*y*y*y*y*y*Lpp", &number, BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), BUFFER(4),
                          BUFFER(5), BUFFER(6), BUFFER(7), BUFFER(8), &row, &host, &gradient))
        return NULL;
    if (!(level = level_of(number)) || !read_format(&call, 4, 5, &f) || !read_key(level, &call, 6, &in.round))
        return finish(&call);
    const int64_t rows = words(&call, 8), dealt = host ? f.terms + 2 + f.weighted : f.terms + 3;
    if (!require(good_rows(row, rows) && words(&call, 7) == rows * dealt && words(&call, 1) == rows && words(&call, 3) == 8 &&
                     words(&call, 0) == (gradient ? rows : 0) && words(&call, 2) == (gradient && f.weighted ? rows : 0),
                 "residual: sizes do not match"))
        return finish(&call);
    in.host = host, in.gradient = gradient, in.d = DATA(0), in.loss = DATA(1), in.dealt = DATA(7), in.z = DATA(8);
    in.v = gradient && f.weighted ? DATA(2) : NULL;
    Py_BEGIN_ALLOW_THREADS level->residual(&f, &in, row, rows);
    Py_END_ALLOW_THREADS memcpy(DATA(3), in.digest, sizeof in.digest);
    finish(&call);
    Py_RETURN_NONE;
}

static PyObject *kernel_add_products(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    const struct level *level;
    struct columns in;
    int number;
    long long vectors;
    (void)self;
    if (!PyArg_ParseTuple(args, "iw*y*y*L", &number, BUFFER(0), BUFFER(1), BUFFER(2), &vectors)) return NULL;
    if (!(level = level_of(number))) return finish(&call);
    const int64_t sums = words(&call, 0), elements = words(&call, 2);
    int good = vectors >= 1 && vectors <= MAX_COLUMNS && sums >= 0 && elements >= 0 && sums % vectors == 0 && elements % vectors == 0;
    const int64_t count = good ? sums / vectors : 0, rows = good ? elements / vectors : 0;
    good = good && count <= MAX_COLUMNS && good_rows(0, rows) && read_columns(&call, 1, rows, count, &in);
    if (!require(good, "add_products: sizes do not match")) return finish(&call);
    RUN(level->add_products(&in, DATA(2), vectors, rows, DATA(0)));
}

static PyObject *kernel_scale(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    const struct level *level;
    struct columns in;
    int number;
    (void)self;
    if (!PyArg_ParseTuple(args, "iw*y*y*", &number, BUFFER(0), BUFFER(1), BUFFER(2))) return NULL;
    if (!(level = level_of(number))) return finish(&call);
    const int64_t elements = words(&call, 0), rows = words(&call, 2);
    int good = elements >= 0 && rows >= 16 && good_rows(0, rows) && elements % rows == 0;
    const int64_t count = good ? elements / rows : 0;
    good = good && count <= MAX_COLUMNS && read_columns(&call, 1, rows, count, &in);
    if (!require(good, "scale: sizes do not match")) return finish(&call);
    RUN(level->scale(&in, DATA(2), rows, DATA(0)));
}

static PyObject *kernel_add_mask_products(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    const struct level *level;
    struct schedule key;
    int number;
    unsigned long long purpose;
    long long row;
    (void)self;
    if (!PyArg_ParseTuple(args, "iw*y*y*KL", &number, BUFFER(0), BUFFER(1), BUFFER(2), &purpose, &row)) return NULL;
    if (!(level = level_of(number)) || !read_key(level, &call, 1, &key)) return finish(&call);
    const int64_t count = words(&call, 0), rows = words(&call, 2);
    if (!require(count >= 0 && count <= MAX_COLUMNS && rows >= 0 && good_rows(row, rows), "add_mask_products: sizes do not match"))
        return finish(&call);
    RUN(level->add_mask_products(&key, purpose, row, rows, count, DATA(2), DATA(0)));
}

/* 1 if a buffer is the table of waves. */
static int read_table(const struct call *call, int i, struct slopes *f) {
    f->table = call->buffers[i].buf;
    return require(call->buffers[i].len == 8 * TABLE_ENTRIES && (uintptr_t)f->table % 4 == 0, "the table of waves: sizes do not match");
}

static PyObject *kernel_deal_waves(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    const struct level *level;
    struct slopes f = {0};
    int number;
    long long terms, cut;
    (void)self;
    if (!PyArg_ParseTuple(args, "iw*w*y*y*LL", &number, BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), &terms, &cut)) return NULL;
    if (!(level = level_of(number)) || !read_table(&call, 3, &f)) return finish(&call);
    const int64_t rows = words(&call, 2);
    if (!require(rows >= 0 && good_rows(0, rows) && terms >= 1 && terms <= MAX_TERMS && cut >= 0 && cut <= WAVE_BITS &&
                     words(&call, 0) >= terms * rows && words(&call, 1) >= terms * rows,
                 "deal_waves: sizes do not match"))
        return finish(&call);
    f.terms = terms, f.wave_cut = cut;
    RUN(level->deal_waves(&f, DATA(2), rows, DATA(0), DATA(1)));
}

static PyObject *kernel_add_waves(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 9};
    const struct level *level;
    struct slopes f = {0};
    uint64_t digest[8] = {0};
    int number;
    (void)self;
    if (!PyArg_ParseTuple(args, "iw*w*w*w*y*y*y*y*y*", &number, BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), BUFFER(4),
                          BUFFER(5), BUFFER(6), BUFFER(7), BUFFER(8)))
        return NULL;
    if (!(level = level_of(number)) || !read_table(&call, 5, &f)) return finish(&call);
    const int64_t count = words(&call, 4), rows = words(&call, 6), K = count / 3;
    int good = count >= 3 && count % 3 == 0 && K <= MAX_TERMS && rows >= 0 && good_rows(0, rows) && words(&call, 0) == rows &&
               words(&call, 1) == rows && words(&call, 2) == rows && words(&call, 3) == 8 && words(&call, 7) >= K * rows &&
               words(&call, 8) >= K * rows;
    f.terms = K, f.coef = DATA(4);
    for (int64_t k = 0; good && k < count; k++) good = f.coef[k] >= -INT32_MAX && f.coef[k] <= INT32_MAX;
    if (!require(good, "add_waves: sizes do not match")) return finish(&call);
    Py_BEGIN_ALLOW_THREADS level->add_waves(&f, DATA(6), rows, DATA(7), DATA(8), DATA(0), DATA(1), DATA(2), digest);
    Py_END_ALLOW_THREADS memcpy(DATA(3), digest, sizeof digest);
    finish(&call);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"deal_waves", kernel_deal_waves, METH_VARARGS, "deal_waves(level, even, odd, r, table, n_terms, cut)"},
    {"add_waves", kernel_add_waves, METH_VARARGS, 
     "add_waves(level, slope, residual, entropy, digest, coef, table, z, even, odd)"},
    {"stream", kernel_stream, METH_VARARGS, "stream(level, out, key, purpose, first_row, n_columns)"},
    {"mask", kernel_mask, METH_VARARGS, "mask(level, out, table, key, purpose, first_row, n_columns)"},
    {"score_part", kernel_score_part, METH_VARARGS,
     "score_part(level, out, columns, other, own_weights, opened, other_weights, mask_key, score_key, first_row, offset)"},
    {"deal", kernel_deal, METH_VARARGS,
     "deal(level, for_host, for_guest, sum_host, sum_guest, sum_loss, format, table, keys, a, b, first_row, n_rows, with_sums)"},
    {"residual", kernel_residual, METH_VARARGS,
     "residual(level, d, loss, v, digest, format, table, key, dealt, z, first_row, host, gradient)"},
    {"add_products", kernel_add_products, METH_VARARGS, "add_products(level, sums, table, d, n_vectors)"},
    {"scale", kernel_scale, METH_VARARGS, "scale(level, out, table, factors)"},
    {"add_mask_products", kernel_add_mask_products, METH_VARARGS,
     "add_mask_products(level, sums, key, o, purpose, first_row)"},
    {NULL, NULL, 0, NULL},
};

#else

static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};

static int best_level(void) { return NO_LEVEL; }

#endif

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel", "Shares modulo 2^64. `level` is the best level of the processor, 0 for none.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void) {
    PyObject *self = PyModule_Create(&module);
    if (self && (PyModule_AddIntConstant(self, "level", best_level()) < 0 || PyModule_AddIntConstant(self, "AVX2", AVX2) < 0 ||
                 PyModule_AddIntConstant(self, "AVX512", AVX512) < 0)) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}
