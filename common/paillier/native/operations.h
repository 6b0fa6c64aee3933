/* Whole operations on lists of numbers modulo n^2. operations.c says what an element is. */
#ifndef TRILATERAL_OPERATIONS_H
#define TRILATERAL_OPERATIONS_H

#include <stddef.h>

#include "arithmetic.h"

enum { COMB_ROW = 256 /* powers in a row of a comb, one for each value of a byte */ };

/* Columns in clear: their values for the samples that a block of ciphertexts holds. */
struct samples {
    const int64_t *values; /* [count][columns] */
    int64_t count, columns;
    int64_t slots; /* samples to a ciphertext */
};

/* The result for a column is prod_t bucket_t^(2^t): for each column and slot, `bits` places upwards from the slot's lowest. */
struct buckets {
    double *elements; /* [columns][slots][bits][2 D] */
    uint8_t *filled;  /* [columns][slots][bits] */
    int64_t columns, slots, bits;
};

#if HAVE_KERNEL
void enter(double *out, const uint8_t *numbers, int64_t width, int64_t count, int montgomery, const struct modulus *m);
void leave(uint8_t *out, const double *elements, const uint8_t *plaintexts, int64_t count, const struct modulus *m);
void multiply(double *out, const double *a, const double *b, int64_t count, const struct modulus *m);
void square(double *out, const double *a, int64_t times, int64_t count, const struct modulus *m);
void power(double *out, const double *bases, const uint8_t *exponent, int64_t exponent_bytes, int64_t count,
           const struct modulus *m);
void fill_comb(double *rows, const double *bases, int64_t n_rows, const struct modulus *m);
void draw(double *out, const double *comb, int64_t n_rows, const uint8_t *exponents, int64_t count,
          const struct modulus *m);
void odd_powers(double *out, const double *bases, const double *inverses, int width, int64_t count,
                const struct modulus *m);
/* Returns -1 if there is no memory, and -2 if a value has more bits than there are buckets, or is 2^62 or more in size. */
int fill_buckets(struct buckets *buckets, const double *powers, int width, const struct samples *samples, int64_t first,
                 int64_t stop, const struct modulus *m);
void join_buckets(double *out, const struct buckets *buckets, int64_t slot_bits, int64_t first, int64_t stop,
                  const struct modulus *m);
#endif

#endif
