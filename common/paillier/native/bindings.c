/* What Python sees: functions over buffers, each of which checks every size and then runs without the interpreter's lock.
 *
 * `modulus` is the bytes that modulus.py makes. Elements are arrays of doubles that the caller owns; see operations.c. The
 * digits in them are trusted to be digits: others give wrong numbers, and no access outside the arrays.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdarg.h>

#include "operations.h"

#if HAVE_KERNEL

enum { MAX_BUFFERS = 6, MAX_WIDTH = 12 };

/* Read the words of a modulus; 0 and an exception if their number is not the one that they state. */
static int read_modulus(struct modulus *m, const Py_buffer *buffer) {
    const int64_t *words = buffer->buf;
    const Py_ssize_t count = buffer->len / 8;
    if (buffer->len % 8 == 0 && (uintptr_t)words % 8 == 0 && count >= 3 && words[0] >= 4 && words[0] <= MAX_DIGITS &&
        words[0] % 4 == 0 && words[1] >= 2 && words[1] <= MAX_CHUNKS && words[2] >= 2 && words[2] % 2 == 0 &&
        words[2] * 8 <= 2 * DIGIT_BITS * words[0]) {
        const int64_t D = words[0];
        m->digits = (int)D, m->chunks = (int)words[1], m->width = words[2];
        m->limbs = (int)((D * DIGIT_BITS + 63) / 64);
        const double *doubles = (const double *)(words + 3);
        m->n = doubles, m->h = m->n + D, m->k = m->h + D, m->power_of_r = m->k + 2;
        m->constant_lo = (const int64_t *)(m->power_of_r + (m->chunks + 1) * 2 * D);
        m->constant_square = m->constant_lo + 2 * D, m->constant_hi = m->constant_square + 2 * D;
        m->n_limbs = (const uint64_t *)(m->constant_hi + 2 * D);
        if (count == 3 + 2 * D + 2 + (m->chunks + 1) * 2 * D + 6 * D + m->limbs) return 1;
    }
    PyErr_SetString(PyExc_ValueError, "these are not the constants of a modulus");
    return 0;
}

/* Buffers of one call, given back together. */
struct call {
    Py_buffer buffers[MAX_BUFFERS];
    int n_buffers;
    struct modulus modulus;
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

static int64_t elements_in(const struct call *call, int i) {
    const int64_t size = 16 * (int64_t)call->modulus.digits;
    return call->buffers[i].len % size || (uintptr_t)call->buffers[i].buf % 8 ? -1 : call->buffers[i].len / size;
}

#define DATA(i) (call.buffers[i].buf)
#define LENGTH(i) ((int64_t)call.buffers[i].len)
#define BUFFER(i) (&call.buffers[i])
#define RUN(statement)                                                                                                 \
    Py_BEGIN_ALLOW_THREADS statement;                                                                                  \
    Py_END_ALLOW_THREADS finish(&call);                                                                                \
    Py_RETURN_NONE

static PyObject *kernel_enter(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    int montgomery;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*p", BUFFER(0), BUFFER(1), BUFFER(2), &montgomery)) return NULL;
    if (!read_modulus(&call.modulus, BUFFER(0))) return finish(&call);
    const int64_t count = elements_in(&call, 1), width = count > 0 ? LENGTH(2) / count : 0;
    if (!require(count >= 0 && LENGTH(2) == count * width &&
                     width * 8 <= (int64_t)DIGIT_BITS * call.modulus.digits * call.modulus.chunks,
                 "enter: sizes do not match"))
        return finish(&call);
    RUN(enter(DATA(1), DATA(2), width, count, montgomery, &call.modulus));
}

static PyObject *kernel_leave(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3))) return NULL;
    if (!read_modulus(&call.modulus, BUFFER(0))) return finish(&call);
    const int64_t count = elements_in(&call, 2), width = call.modulus.width;
    if (!require(count >= 0 && LENGTH(1) == count * width && (LENGTH(3) == 0 || LENGTH(3) == count * (width / 2)),
                 "leave: sizes do not match"))
        return finish(&call);
    RUN(leave(DATA(1), DATA(2), LENGTH(3) ? DATA(3) : NULL, count, &call.modulus));
}

static PyObject *kernel_multiply(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3))) return NULL;
    if (!read_modulus(&call.modulus, BUFFER(0))) return finish(&call);
    const int64_t count = elements_in(&call, 1);
    if (!require(count >= 0 && elements_in(&call, 2) == count && elements_in(&call, 3) == count,
                 "multiply: sizes do not match"))
        return finish(&call);
    RUN(multiply(DATA(1), DATA(2), DATA(3), count, &call.modulus));
}

static PyObject *kernel_square(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    long long times;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*L", BUFFER(0), BUFFER(1), BUFFER(2), &times)) return NULL;
    if (!read_modulus(&call.modulus, BUFFER(0))) return finish(&call);
    const int64_t count = elements_in(&call, 1);
    if (!require(count >= 0 && elements_in(&call, 2) == count && times >= 0, "square: sizes do not match"))
        return finish(&call);
    RUN(square(DATA(1), DATA(2), times, count, &call.modulus));
}

static PyObject *kernel_power(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3))) return NULL;
    if (!read_modulus(&call.modulus, BUFFER(0))) return finish(&call);
    const int64_t count = elements_in(&call, 1);
    if (!require(count >= 0 && elements_in(&call, 2) == count, "power: sizes do not match")) return finish(&call);
    RUN(power(DATA(1), DATA(2), DATA(3), LENGTH(3), count, &call.modulus));
}

static PyObject *kernel_fill_comb(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 3};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*", BUFFER(0), BUFFER(1), BUFFER(2))) return NULL;
    if (!read_modulus(&call.modulus, BUFFER(0))) return finish(&call);
    const int64_t count = elements_in(&call, 2);
    if (!require(count >= 0 && elements_in(&call, 1) == count * COMB_ROW, "fill_comb: sizes do not match"))
        return finish(&call);
    RUN(fill_comb(DATA(1), DATA(2), count, &call.modulus));
}

static PyObject *kernel_draw(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3))) return NULL;
    if (!read_modulus(&call.modulus, BUFFER(0))) return finish(&call);
    const int64_t count = elements_in(&call, 1), powers = elements_in(&call, 2), rows = powers / COMB_ROW;
    if (!require(count >= 0 && rows >= 1 && powers == rows * COMB_ROW && LENGTH(3) == count * rows,
                 "draw: sizes do not match"))
        return finish(&call);
    RUN(draw(DATA(1), DATA(2), rows, DATA(3), count, &call.modulus));
}

static PyObject *kernel_odd_powers(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    int width;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*i", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), &width)) return NULL;
    if (!read_modulus(&call.modulus, BUFFER(0))) return finish(&call);
    const int64_t count = elements_in(&call, 2);
    if (!require(width >= 2 && width <= MAX_WIDTH && count >= 0 && elements_in(&call, 3) == count &&
                     elements_in(&call, 1) == count << (width - 1),
                 "odd_powers: sizes do not match"))
        return finish(&call);
    RUN(odd_powers(DATA(1), DATA(2), DATA(3), width, count, &call.modulus));
}

/* The sizes of buckets, and which columns of them; 0 and an exception if they do not match. */
static int read_buckets(struct buckets *buckets, struct call *call, int elements, int filled, long long slots, long long bits,
                        long long first, long long stop) {
    const int64_t count = elements_in(call, elements), limit = (int64_t)1 << 24;
    if (!require(slots >= 1 && slots <= limit && bits >= 1 && bits <= 64 && count >= 0 && count % (slots * bits) == 0 &&
                     call->buffers[filled].len == count,
                 "buckets: sizes do not match"))
        return 0;
    *buckets = (struct buckets){.elements = call->buffers[elements].buf, .filled = call->buffers[filled].buf,
                                .columns = count / (slots * bits), .slots = slots, .bits = bits};
    return require(0 <= first && first <= stop && stop <= buckets->columns, "buckets: the columns are out of range");
}

static PyObject *kernel_fill_buckets(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 5};
    struct buckets buckets;
    int width, status;
    long long columns, slots, bits, first, stop;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*w*y*y*iLLLLL", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), BUFFER(4), &width, &columns,
                          &slots, &bits, &first, &stop))
        return NULL;
    if (!read_modulus(&call.modulus, BUFFER(0)) || !read_buckets(&buckets, &call, 1, 2, slots, bits, first, stop))
        return finish(&call);
    struct samples samples = {.values = DATA(4), .columns = columns, .slots = slots};
    const int64_t powers = elements_in(&call, 3);
    if (!require(columns >= 1 && columns == buckets.columns && LENGTH(4) % (8 * columns) == 0 &&
                     (uintptr_t)DATA(4) % 8 == 0 && width >= 2 && width <= MAX_WIDTH,
                 "fill_buckets: sizes do not match"))
        return finish(&call);
    samples.count = LENGTH(4) / (8 * columns);
    if (!require(powers >= 0 && powers <= INT32_MAX && powers == (samples.count + slots - 1) / slots << (width - 1),
                 "fill_buckets: expected the powers of one ciphertext for each group of samples"))
        return finish(&call);
    Py_BEGIN_ALLOW_THREADS status = fill_buckets(&buckets, DATA(3), width, &samples, first, stop, &call.modulus);
    Py_END_ALLOW_THREADS finish(&call);
    if (status == -1) return PyErr_NoMemory();
    if (!require(status == 0, "fill_buckets: a value has more bits than there are buckets, or than 62")) return NULL;
    Py_RETURN_NONE;
}

static PyObject *kernel_join_buckets(PyObject *self, PyObject *args) {
    struct call call = {.n_buffers = 4};
    struct buckets buckets;
    long long slots, bits, slot_bits, first, stop;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*y*y*LLLLL", BUFFER(0), BUFFER(1), BUFFER(2), BUFFER(3), &slots, &bits, &slot_bits,
                          &first, &stop))
        return NULL;
    if (!read_modulus(&call.modulus, BUFFER(0)) || !read_buckets(&buckets, &call, 2, 3, slots, bits, first, stop))
        return finish(&call);
    if (!require(elements_in(&call, 1) == buckets.columns && slot_bits >= 1 && slot_bits <= 1 << 24,
                 "join_buckets: sizes do not match"))
        return finish(&call);
    RUN(join_buckets(DATA(1), &buckets, slot_bits, first, stop, &call.modulus));
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
    {"multiply", kernel_multiply, METH_VARARGS, "multiply(modulus, out, a, b)"},
    {"square", kernel_square, METH_VARARGS, "square(modulus, out, a, times)"},
    {"power", kernel_power, METH_VARARGS, "power(modulus, out, bases, exponent)"},
    {"fill_comb", kernel_fill_comb, METH_VARARGS, "fill_comb(modulus, out, bases)"},
    {"draw", kernel_draw, METH_VARARGS, "draw(modulus, out, comb, exponents)"},
    {"odd_powers", kernel_odd_powers, METH_VARARGS, "odd_powers(modulus, out, bases, inverses, width)"},
    {"fill_buckets", kernel_fill_buckets, METH_VARARGS,
     "fill_buckets(modulus, buckets, filled, powers, samples, width, columns, slots, bits, first, stop)"},
    {"join_buckets", kernel_join_buckets, METH_VARARGS,
     "join_buckets(modulus, out, buckets, filled, slots, bits, slot_bits, first, stop)"},
    {NULL, NULL, 0, NULL},
};

static int supported(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#else

static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};

static int supported(void) { return 0; }

#endif

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel", "Products modulo n^2, four at a time. `supported` says if this machine can.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void) {
    PyObject *self = PyModule_Create(&module);
    if (self && PyModule_AddIntConstant(self, "supported", supported()) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}
