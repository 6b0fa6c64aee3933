/* What the bindings call. Elements of the field and coordinates of points have 32 bytes, the lowest first. */
#ifndef TRILATERAL_CURVE25519_KERNELS_H
#define TRILATERAL_CURVE25519_KERNELS_H

#include <stdint.h>

/* The path needs intrinsics, 64-bit addresses in the order of the bytes, and target attributes. */
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_KERNEL 1
#else
#define HAVE_KERNEL 0
#endif

enum { ELEMENT_BYTES = 32 };

/* Map elements of the field to points. */
void map_to_curve(uint8_t *out, const uint8_t *in, int64_t count);

/* X25519. The keys are `step` bytes apart: 32 if each point has its own, 0 if all have the same. Returns how many results are zero,
 * which happens for points of low order alone. */
int64_t multiply(uint8_t *out, const uint8_t *keys, int64_t step, const uint8_t *in, int64_t count);

#endif
