/* AVX2 with AES-NI: four elements in a vector, one block of AES in an instruction. */
#include "kernels.h"

#if HAVE_KERNEL
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("avx2,aes,bmi2")

#define LANES 4

/* `groups` times 64 bytes of the stream, from group `group`; eight blocks at a time hide the latency of a round. */
static void fill(const struct schedule *s, uint64_t purpose, uint64_t group, int64_t groups, uint64_t *out) {
    __m128i keys[11];
    for (int i = 0; i < 11; i++) keys[i] = _mm_load_si128((const __m128i *)s->keys[i]);
    const int64_t upper = (int64_t)__builtin_bswap64(purpose);
    uint64_t block = 4 * group;
#define ENCRYPT(WIDE)                                                                                                  \
    do {                                                                                                               \
        __m128i blocks[WIDE];                                                                                          \
        _Pragma("GCC unroll 8") for (int i = 0; i < WIDE; i++)                                                         \
            blocks[i] = _mm_xor_si128(_mm_set_epi64x((int64_t)__builtin_bswap64(block + (uint64_t)i), upper), keys[0]); \
        _Pragma("GCC unroll 9") for (int r = 1; r < 10; r++)                                                           \
            _Pragma("GCC unroll 8") for (int i = 0; i < WIDE; i++) blocks[i] = _mm_aesenc_si128(blocks[i], keys[r]);   \
        _Pragma("GCC unroll 8") for (int i = 0; i < WIDE; i++)                                                         \
            _mm_storeu_si128((__m128i *)(out + 2 * i), _mm_aesenclast_si128(blocks[i], keys[10]));                     \
        out += 2 * WIDE, block += WIDE, groups -= WIDE / 4;                                                            \
    } while (0)
    while (groups >= 2) ENCRYPT(8);
    if (groups >= 1) ENCRYPT(4);
#undef ENCRYPT
}

/* Products of the low 32 bits, signed. */
#define MUL32(a, b) ((signed_lanes)_mm256_mul_epi32((__m256i)(a), (__m256i)(b)))
#define TOTAL(a) ((a)[0] + (a)[1] + (a)[2] + (a)[3])

#include "loops.h"

const struct level avx2_level = LEVEL;
#pragma GCC pop_options
#endif
