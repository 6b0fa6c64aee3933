/* What Python sees: functions over buffers, each of which checks every size and then runs without the interpreter's lock.
 *
 * `modulus` is the bytes that modulus.py makes for one path, which computes. Elements are arrays of words of 64 bits that the caller
 * owns; see operations.h. The digits in them are trusted to be digits: others give wrong numbers, and no access outside the arrays.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdarg.h>

#include "kernels.h"

#if HAVE_KERNEL

#include <immintrin.h>

enum { MAX_BUFFERS = 5, MAX_GROUP = 24, HEADER = 4 };

/* The paths, the fastest first. */
static const struct kernels *const all_paths[] = {&ifma_kernels, &avx2_kernels};

enum { N_PATHS = sizeof all_paths / sizeof *all_paths };

static int runs_here(const struct kernels *path) {
#ifdef EMULATE_IFMA
    if (path == &ifma_kernels) return 1;
#else
    if (path == &ifma_kernels) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512ifma");
#endif
    if (path == &avx2_kernels) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return 0;
}

static const struct kernels *path_of(int64_t lanes) {
    for (int i = 0; i < N_PATHS; i++)
        if (all_paths[i]->lanes == lanes && runs_here(all_paths[i])) return all_paths[i];
    return NULL;
}

/* Read the words of the first modulus in a buffer: returns their number, or 0 if they are not those of a modulus. */
static Py_ssize_t read_words(struct modulus *m, const struct kernels **kernels, const int64_t *words, Py_ssize_t count) {
    if (count < HEADER || !(*kernels = path_of(words[0])) || words[1] < 4 || words[1] > MAX_DIGITS || words[1] % 4 != 0 ||
        words[2] < 2 || words[2] > MAX_CHUNKS || words[3] < 2 || words[3] % 2 != 0 ||
        words[3] > 2 * DIGIT_BITS * words[1] / 8)
        return 0;
    const int64_t D = words[1], K = (*kernels)->k_digits, n_columns = (*kernels)->n_columns;
    *m = (struct modulus){.digits = (int)D, .chunks = (int)words[2], .limbs = (int)((D * DIGIT_BITS + 63) / 64), .width = words[3]};
    const int64_t *n = words + HEADER, *h = n + D, *k = h + D, *powers = k + K;
    m->n = n, m->h = h, m->k = k, m->power_of_r = (const uint64_t *)powers;
    m->columns = powers + (m->chunks + 1) * 2 * D;
    m->n_limbs = (const uint64_t *)(m->columns + n_columns * 2 * D);
    const Py_ssize_t size = HEADER + 2 * D + K + (m->chunks + 1) * 2 * D + n_columns * 2 * D + m->limbs;
    return size <= count ? size : 0;
}

/* Buffers of one call, given back together. */
struct call {
    Py_buffer buffers[MAX_BUFFERS];
    int n_buffers;
    const struct kernels *kernels;
    struct modulus modulus;
};

static int not_a_modulus(void) {
    PyErr_SetString(PyExc_ValueError, "these are not the constants of a modulus for a path that runs here");
    return 0;
}

/* Read the modulus in the first buffer; 0 and an exception if it is none. */
static int read_modulus(struct call *call) {
    const Py_buffer *buffer = &call->buffers[0];
    const Py_ssize_t count = buffer->len / 8;
    if (buffer->len % 8 == 0 && (uintptr_t)buffer->buf % 8 == 0 && count &&
        read_words(&call->modulus, &call->kernels, buffer->buf, count) == count)
        return 1;
    return not_a_modulus();
}

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

static int64_t elements_in(const struct call *call, int i) {
    const int64_t size = 16 * (int64_t)call->modulus.digits;
    return call->buffers[i].len % size || (uintptr_t)call->buffers[i].buf % 8 ? -1 : call->buffers[i].len / size;
}

#define DATA(i) (call.buffers[i].buf)
#define LENGTH(i) ((int64_t)call.buffers[i].len)
#define BUFFER(i) (&call.buffers[i])

/* Products in doubles are right only while results are rounded toward zero. The functions of a path are called through pointers into
 * another translation unit, and the build forbids link-time optimisation (-fno-lto), so no compiler moves arithmetic out of here. */
#define COMPUTE(statement)                                                                                             \
    do {                                                                                                               \
        Py_BEGIN_ALLOW_THREADS;                                                                                        \
        const unsigned rounding = _mm_getcsr();                                                                        \
        _mm_setcsr(0x7f80); /* toward zero, all exceptions masked, denormals kept */                                   \
        statement;                                                                                                     \
        _mm_setcsr(rounding);                                                                                          \
        Py_END_ALLOW_THREADS;                                                                                          \
        finish(&call);                                                                                                 \
    } while (0)
#define RUN(statement)                                                                                                 \
    COMPUTE(statement);                                                                                                \
    Py_RETURN_NONE
#define CALL(function, ...) call.kernels->function(__VA_ARGS__)

static PyObject *kernel_enter(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    int montgomery;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*p", BUFFER(0), BUFFER(1), BUFFER(2), &montgomery)) return NULL;
    if (!read_modulus(&call)) return finish(&call);
    const int64_t count = elements_in(&call, 1), width = count > 0 ? LENGTH(2) / count : 0;
    if (!require(count >= 0 && LENGTH(2) == count * width &&
                     width * 8 <= (int64_t)DIGIT_BITS * call.modulus.digits * call.modulus.chunks,
                 "enter: sizes do not match"))
        return finish(&call);
    RUN(CALL(enter, DATA(1), DATA(2), width, count, montgomery, &call.modulus));
}

static PyObject *kernel_leave(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3))) return NULL;
    if (!read_modulus(&call)) return finish(&call);
    const int64_t count = elements_in(&call, 2), width = call.modulus.width;
    if (!require(count >= 0 && LENGTH(1) == count * width && (LENGTH(3) == 0 || LENGTH(3) == count * (width / 2)),
                 "leave: sizes do not match"))
        return finish(&call);
    RUN(CALL(leave, DATA(1), DATA(2), LENGTH(3) ? DATA(3) : NULL, count, &call.modulus));
}

static PyObject *kernel_add_plaintexts(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3))) return NULL;
    if (!read_modulus(&call)) return finish(&call);
    const int64_t count = elements_in(&call, 1);
    if (!require(count >= 0 && elements_in(&call, 2) == count && LENGTH(3) == count * (call.modulus.width / 2),
                 "add_plaintexts: sizes do not match"))
        return finish(&call);
    RUN(CALL(add_plaintexts, DATA(1), DATA(2), DATA(3), count, &call.modulus));
}

static PyObject *kernel_multiply(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3))) return NULL;
    if (!read_modulus(&call)) return finish(&call);
    const int64_t count = elements_in(&call, 1);
    if (!require(count >= 0 && elements_in(&call, 2) == count && elements_in(&call, 3) == count,
                 "multiply: sizes do not match"))
        return finish(&call);
    RUN(CALL(multiply, DATA(1), DATA(2), DATA(3), count, &call.modulus));
}

static PyObject *kernel_square(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    long long times;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*L", BUFFER(0), BUFFER(1), BUFFER(2), &times)) return NULL;
    if (!read_modulus(&call)) return finish(&call);
    const int64_t count = elements_in(&call, 1);
    if (!require(count >= 0 && elements_in(&call, 2) == count && times >= 0, "square: sizes do not match"))
        return finish(&call);
    RUN(CALL(square, DATA(1), DATA(2), times, count, &call.modulus));
}

static PyObject *kernel_product(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*", BUFFER(0), BUFFER(1), BUFFER(2))) return NULL;
    if (!read_modulus(&call)) return finish(&call);
    const int64_t count = elements_in(&call, 2);
    if (!require(elements_in(&call, 1) == 1 && count >= 0, "product: sizes do not match")) return finish(&call);
    RUN(CALL(product, DATA(1), DATA(2), count, &call.modulus));
}

static PyObject *kernel_power(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    struct modulus moduli[MAX_MODULI];
    long long first, stop;
    int n_moduli = 0, status;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*LL", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), &first, &stop)) return NULL;
    const int64_t *words = DATA(0), *const end = words + LENGTH(0) / 8;
    if (LENGTH(0) % 8 || (uintptr_t)words % 8) words = end;
    for (Py_ssize_t size; words < end && n_moduli < MAX_MODULI; words += size, n_moduli++) {
        const struct kernels *kernels = call.kernels;
        size = read_words(&moduli[n_moduli], &call.kernels, words, end - words);
        if (!size || (n_moduli && (kernels != call.kernels || moduli[n_moduli].digits != moduli[0].digits))) break;
    }
    if (!n_moduli || words < end) return not_a_modulus(), finish(&call);
    call.modulus = moduli[0];
    const int64_t all = elements_in(&call, 1);
    if (!require(all >= 0 && all % n_moduli == 0 && elements_in(&call, 2) == all && LENGTH(3) % n_moduli == 0 && 0 <= first &&
                     first <= stop && stop <= all,
                 "power: sizes do not match"))
        return finish(&call);
    COMPUTE(status = CALL(power, DATA(1), DATA(2), DATA(3), LENGTH(3) / n_moduli, all / n_moduli, first, stop, moduli));
    if (status) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *kernel_draw(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    long long n_tables;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*L", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), &n_tables)) return NULL;
    if (!read_modulus(&call)) return finish(&call);
    const int64_t count = elements_in(&call, 1), powers = elements_in(&call, 2);
    const int64_t entries = n_tables > 0 ? powers / n_tables : 0, indices = count > 0 ? LENGTH(3) / 2 / count : n_tables;
    if (!require(count >= 0 && entries > 0 && powers == n_tables * entries && (entries & (entries - 1)) == 0 &&
                     indices > 0 && indices % n_tables == 0 && LENGTH(3) == 2 * count * indices && (uintptr_t)DATA(3) % 2 == 0,
                 "draw: sizes do not match"))
        return finish(&call);
    RUN(CALL(draw, DATA(1), DATA(2), n_tables, entries, DATA(3), indices / n_tables, count, &call.modulus));
}

/* The sizes of tables; 0 and an exception if they do not match. */
static int read_tables(struct tables *tables, struct call *call, int elements, long long count, long long n_groups) {
    const int64_t all = elements_in(call, elements);
    if (!require(all > 0 && count >= 1 && n_groups >= 1 && n_groups <= count && count <= 1 << 24 && all % n_groups == 0 &&
                     (count - 1) / n_groups + 1 <= MAX_GROUP && all / n_groups == (int64_t)1 << ((count - 1) / n_groups + 1),
                 "tables: sizes do not match"))
        return 0;
    *tables = (struct tables){.elements = call->buffers[elements].buf, .count = count, .n_groups = n_groups,
                              .entries = all / n_groups};
    return 1;
}

static int check_range(long long first, long long stop, int64_t count) {
    return require(0 <= first && first <= stop && stop <= count, "the range is beyond the list's columns or tables");
}

static PyObject *kernel_fill_tables(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    struct tables tables;
    long long n_groups, first, stop;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*LLL", BUFFER(0), BUFFER(1), BUFFER(2), &n_groups, &first, &stop)) return NULL;
    if (!read_modulus(&call) || !read_tables(&tables, &call, 1, elements_in(&call, 2), n_groups) ||
        !check_range(first, stop, 2 * n_groups))
        return finish(&call);
    RUN(CALL(fill_tables, &tables, DATA(2), first, stop, &call.modulus));
}

/* The sizes of buckets; 0 and an exception if they do not match. */
static int read_buckets(struct buckets *buckets, struct call *call, int elements, long long slots, long long bits) {
    const int64_t count = elements_in(call, elements), limit = (int64_t)1 << 24;
    *buckets = (struct buckets){.elements = call->buffers[elements].buf, .slots = slots, .bits = bits};
    if (!require(slots >= 1 && slots <= limit && bits >= 1 && bits <= 63 && count >= 0 && count % (slots * bits) == 0,
                 "buckets: sizes do not match"))
        return 0;
    buckets->columns = count / (slots * bits);
    return 1;
}

static PyObject *kernel_fill_buckets(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 5};
    struct buckets buckets;
    struct tables tables;
    int fresh, status;
    long long count, n_groups, slots, bits, first, stop;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*y*LLLLpLL", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), BUFFER(4), &count, &n_groups,
                          &slots, &bits, &fresh, &first, &stop))
        return NULL;
    if (!read_modulus(&call) || !read_buckets(&buckets, &call, 1, slots, bits) ||
        !read_tables(&tables, &call, 2, count, n_groups) || !check_range(first, stop, buckets.columns * slots))
        return finish(&call);
    const int64_t columns = buckets.columns;
    if (!require(columns >= 1 && LENGTH(4) == 8 * columns && LENGTH(3) % (8 * columns) == 0 && (uintptr_t)DATA(3) % 8 == 0 &&
                     (uintptr_t)DATA(4) % 8 == 0 && (LENGTH(3) / (8 * columns) + slots - 1) / slots == count,
                 "fill_buckets: sizes do not match"))
        return finish(&call);
    const struct samples samples = {.values = DATA(3), .offsets = DATA(4), .count = LENGTH(3) / (8 * columns), .columns = columns};
    COMPUTE(status = CALL(fill_buckets, &buckets, &tables, &samples, fresh, first, stop, &call.modulus));
    if (status == -1) return PyErr_NoMemory();
    if (!require(status == 0, "fill_buckets: a value with its offset is negative, or has more bits than there are buckets"))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *kernel_join_buckets(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    struct buckets buckets;
    long long slots, bits, slot_bits, first, stop;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*LLLLL", BUFFER(0), BUFFER(1), BUFFER(2), &slots, &bits, &slot_bits, &first, &stop))
        return NULL;
    if (!read_modulus(&call) || !read_buckets(&buckets, &call, 2, slots, bits) || !check_range(first, stop, buckets.columns))
        return finish(&call);
    if (!require(elements_in(&call, 1) == buckets.columns && slot_bits >= 1 && slot_bits <= 1 << 24,
                 "join_buckets: sizes do not match"))
        return finish(&call);
    RUN(CALL(join_buckets, DATA(1), &buckets, slot_bits, first, stop, &call.modulus));
}

/* A clock that counts as the processor does: each multiplication waits for the one before, three cycles on all of them. */
static PyObject *kernel_cycles(PyObject *self, PyObject *args) {
    long long count;
    uint64_t x = 1;
    (void)self;
    if (!PyArg_ParseTuple(args, "L", &count)) return NULL;
    for (long long i = 0; i < count / 3; i++) __asm__ volatile("imul $3, %0, %0" : "+r"(x));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"cycles", kernel_cycles, METH_VARARGS, "cycles(count): take so many cycles of the processor"},
    {"enter", kernel_enter, METH_VARARGS, "enter(modulus, out, numbers, montgomery)"},
    {"leave", kernel_leave, METH_VARARGS, "leave(modulus, out, elements, plaintexts)"},
    {"add_plaintexts", kernel_add_plaintexts, METH_VARARGS, "add_plaintexts(modulus, out, elements, plaintexts)"},
    {"multiply", kernel_multiply, METH_VARARGS, "multiply(modulus, out, a, b)"},
    {"square", kernel_square, METH_VARARGS, "square(modulus, out, a, times)"},
    {"product", kernel_product, METH_VARARGS, "product(modulus, out, a)"},
    {"power", kernel_power, METH_VARARGS, "power(moduli, out, bases, exponents, first, stop)"},
    {"draw", kernel_draw, METH_VARARGS, "draw(modulus, out, comb, indices, n_tables)"},
    {"fill_tables", kernel_fill_tables, METH_VARARGS, "fill_tables(modulus, tables, bases, n_groups, first, stop)"},
    {"fill_buckets", kernel_fill_buckets, METH_VARARGS,
     "fill_buckets(modulus, buckets, tables, samples, offsets, count, n_groups, slots, bits, fresh, first, stop)"},
    {"join_buckets", kernel_join_buckets, METH_VARARGS,
     "join_buckets(modulus, out, buckets, slots, bits, slot_bits, first, stop)"},
    {NULL, NULL, 0, NULL},
};

/* The names of the paths that run here, the fastest first. */
static PyObject *paths(void) {
    PyObject *names = PyList_New(0);
    for (int i = 0; names && i < N_PATHS; i++) {
        if (!runs_here(all_paths[i])) continue;
        PyObject *name = PyUnicode_FromString(all_paths[i]->name);
        if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    PyObject *out = names ? PyList_AsTuple(names) : NULL;
    Py_XDECREF(names);
    return out;
}

#else

static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};

static PyObject *paths(void) { return PyTuple_New(0); }

#endif

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel", "Products modulo n^2, several at a time. `paths` names those that run here.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void) {
    PyObject *self = PyModule_Create(&module), *names = self ? paths() : NULL;
    if (names && PyModule_AddObjectRef(self, "paths", names) < 0) Py_CLEAR(self);
    else if (!names) Py_CLEAR(self);
    Py_XDECREF(names);
    return self;
}
