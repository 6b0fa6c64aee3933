/* What Python sees: functions over buffers, each of which checks every size and then runs without the interpreter's lock. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "kernels.h"

#if HAVE_KERNEL

#include <cpuid.h>

static int available(void) {
#ifdef EMULATE_IFMA
    return 1;
#else
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512ifma");
#endif
}

static PyObject *call(PyObject *args, const char *format, int with_keys) {
    Py_buffer out, keys, in;
    int64_t zeros = 0;
    if (!PyArg_ParseTuple(args, format, &out, with_keys ? &keys : &in, &in)) return NULL;
    const char *wrong = NULL;
    if (!available())
        wrong = "the processor has no AVX-512 IFMA";
    else if (out.len != in.len || in.len % ELEMENT_BYTES)
        wrong = "expected as many elements of 32 bytes in both buffers";
    else if (with_keys && keys.len != ELEMENT_BYTES && keys.len != in.len)
        wrong = "expected one key of 32 bytes, or one for each point";
    if (!wrong) {
        Py_BEGIN_ALLOW_THREADS
        if (with_keys)
            zeros = multiply(out.buf, keys.buf, keys.len == in.len ? ELEMENT_BYTES : 0, in.buf, in.len / ELEMENT_BYTES);
        else
            map_to_curve(out.buf, in.buf, in.len / ELEMENT_BYTES);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&in);
    if (with_keys) PyBuffer_Release(&keys);
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    return PyLong_FromLongLong(zeros);
}

static PyObject *kernel_map_to_curve(PyObject *self, PyObject *args) {
    (void)self;
    return call(args, "w*y*", 0);
}

static PyObject *kernel_multiply(PyObject *self, PyObject *args) {
    (void)self;
    return call(args, "w*y*y*", 1);
}

static PyMethodDef methods[] = {
    {"map_to_curve", kernel_map_to_curve, METH_VARARGS, "map_to_curve(out, elements)"},
    {"multiply", kernel_multiply, METH_VARARGS, "multiply(out, keys, points)"},
    {NULL, NULL, 0, NULL},
};

#else

static int available(void) { return 0; }

static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};

#endif

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel", "Curve25519. `available` says whether the processor can run it.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void) {
    PyObject *self = PyModule_Create(&module);
    if (self && PyModule_AddIntConstant(self, "available", available()) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}
