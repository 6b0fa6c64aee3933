/* What the paths of the kernel have in common: the constants of a modulus, and the operations that each path has.
 *
 * A path computes with numbers modulo n^2 in LANES lanes at a time. An *element* is a number at rest: 2 D words of 64 bits, each of
 * which holds a digit in the path's own form. operations.h says more.
 */
#ifndef TRILATERAL_KERNELS_H
#define TRILATERAL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* The paths need the vectors of x86-64, and a compiler that takes GCC's vectors and assembly. */
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAVE_KERNEL 1
#else
#define HAVE_KERNEL 0
#endif

enum {
    DIGIT_BITS = 52,
    MAX_DIGITS = 80, /* of n: enough for 4096 bits and 16 bits of slack */
    MAX_CHUNKS = 8,
    MAX_MODULI = 2, /* of one call of `power` */
};

static const uint64_t DIGIT_MASK = ((uint64_t)1 << DIGIT_BITS) - 1;

/* The constants of n that the products modulo n^2 need. The maker of the struct owns all arrays; see modulus.py. Digits are in the
 * path's form. */
struct modulus {
    int digits;    /* D, a multiple of 4; R = 2^(52 D) is at least 2^16 n */
    int chunks;    /* how many pieces of D digits a number from outside has */
    int limbs;     /* 64-bit words that hold D digits */
    int lanewise;  /* each lane has its own n, h and k: in place of every digit, these arrays have an aligned vector of digits */
    int64_t width; /* bytes of a number modulo n^2 */
    const void *n; /* [D] digits of n */
    const void *h; /* [D] digits of (k n + 1) / 2^(52 K) */
    const void *k; /* [K] digits of k = -1/n mod 2^(52 K), where K is `k_digits` of the path */
    const uint64_t *power_of_r; /* [chunks + 1][2 D] R, R^2, R^3 ... mod n^2, as elements */
    const int64_t *columns;     /* [n_columns][2 D] further numbers that the path wants for each column of a product */
    const uint64_t *n_limbs;    /* [limbs] */
};

/* Columns in clear: their values for the samples that a block of ciphertexts holds. */
struct samples {
    const int64_t *values;  /* [count][columns] */
    const int64_t *offsets; /* [columns] added to each value of a column */
    int64_t count, columns;
};

/* Products of ciphertexts: `count` ciphertexts are in `n_groups` groups, and for each group there is room for `entries` products. */
struct tables {
    uint64_t *elements; /* [n_groups][entries][2 D] */
    int64_t count, n_groups, entries;
};

/* The result for a column is prod_t bucket_t^(2^t): for each column and slot, `bits` places upwards from the slot's lowest. A pair is
 * a column and a slot. */
struct buckets {
    uint64_t *elements; /* [columns][slots][bits][2 D] */
    int64_t columns, slots, bits;
};

/* A path. A list of elements has `count` of them, one after the other. Functions that return an int return 0, or -1 if there is no
 * memory. operations.h says what each computes. */
struct kernels {
    const char *name;
    int lanes, k_digits, n_columns;
    void (*enter)(uint64_t *out, const uint8_t *numbers, int64_t width, int64_t count, int montgomery,
                  const struct modulus *m);
    void (*leave)(uint8_t *out, const uint64_t *elements, const uint8_t *plaintexts, int64_t count,
                  const struct modulus *m);
    void (*add_plaintexts)(uint64_t *out, const uint64_t *elements, const uint8_t *plaintexts, int64_t count,
                           const struct modulus *m);
    void (*multiply)(uint64_t *out, const uint64_t *a, const uint64_t *b, int64_t count, const struct modulus *m);
    void (*square)(uint64_t *out, const uint64_t *a, int64_t times, int64_t count, const struct modulus *m);
    void (*product)(uint64_t *out, const uint64_t *a, int64_t count, const struct modulus *m);
    /* Elements first ... stop - 1 of a list that has `count` elements for each of the moduli. */
    int (*power)(uint64_t *out, const uint64_t *bases, const uint8_t *exponents, int64_t exponent_bytes, int64_t count,
                 int64_t first, int64_t stop, const struct modulus *moduli);
    void (*draw)(uint64_t *out, const uint64_t *comb, int64_t n_tables, int64_t entries, const uint16_t *indices,
                 int64_t steps, int64_t count, const struct modulus *m);
    void (*fill_tables)(const struct tables *tables, const uint64_t *bases, int64_t first, int64_t stop,
                        const struct modulus *m);
    /* -2 if a value with its offset is negative or has more bits than there are buckets. */
    int (*fill_buckets)(const struct buckets *buckets, const struct tables *tables, const struct samples *samples, int fresh,
                        int64_t first, int64_t stop, const struct modulus *m);
    void (*join_buckets)(uint64_t *out, const struct buckets *buckets, int64_t slot_bits, int64_t first, int64_t stop,
                         const struct modulus *m);
};

extern const struct kernels avx2_kernels, ifma_kernels;

#endif
