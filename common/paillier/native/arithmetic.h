/* Products modulo n^2 for four independent pairs of numbers at a time. arithmetic.c has the method and the proofs. */
#ifndef TRILATERAL_ARITHMETIC_H
#define TRILATERAL_ARITHMETIC_H

#include <stdint.h>

/* The method needs the vectors and fused multiply-add of x86-64, and a compiler that takes GCC's assembly. */
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAVE_KERNEL 1
#include <immintrin.h>
#define KERNEL __attribute__((target("avx2,fma")))
#else
#define HAVE_KERNEL 0
#endif

enum {
    DIGIT_BITS = 52,
    LANES = 4,
    MAX_DIGITS = 80, /* of n: enough for 4096 bits and 16 bits of slack */
    MAX_CHUNKS = 8,
};

/* The constants of n that the products modulo n^2 need. The maker of the struct owns all arrays; see modulus.py. */
struct modulus {
    int digits;              /* D, a multiple of 4; R = 2^(52 D) is at least 2^16 n */
    int chunks;              /* how many pieces of D digits a number from outside has */
    int limbs;               /* 64-bit words that hold D digits */
    int64_t width;           /* bytes of a number modulo n^2 */
    const double *n;         /* [D] digits of n */
    const double *h;         /* [D] digits of (k n + 1) / 2^104 */
    const double *k;         /* [2] digits of k = -1/n mod 2^104 */
    /* [2 D] What is added to each column before it is read: of lo lo', of lo lo, and of lo hi' + hi lo'. */
    const int64_t *constant_lo, *constant_square, *constant_hi;
    const double *power_of_r; /* [chunks + 1][2 D] R, R^2, R^3 ... mod n^2 */
    const uint64_t *n_limbs; /* [limbs] */
};

#if HAVE_KERNEL
/* Digits of four numbers, one a lane: [2 D], those of lo and then those of hi. */
typedef __m256d digits4;

/* The products below are right only while results are rounded toward zero: what `toward_zero` sets and gives back. */
unsigned toward_zero(void);
void restore_rounding(unsigned before);

void multiply4(digits4 *out, const digits4 *a, const digits4 *b, const struct modulus *m);
void square4(digits4 *out, const digits4 *a, const struct modulus *m);
void add4(digits4 *out, const digits4 *a, const digits4 *b, const struct modulus *m);
#endif

#endif
