/* AVX-512 with VAES: eight elements in a vector, four blocks of AES in an instruction. */
#include "kernels.h"

#if HAVE_KERNEL
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,aes,vaes,bmi2,prefer-vector-width=512")

#define LANES 8

static inline __m512i counted(uint64_t purpose, uint64_t block) {
    const int64_t p = (int64_t)purpose, b = (int64_t)block;
    return _mm512_add_epi64(_mm512_set_epi64(b, p, b, p, b, p, b, p), _mm512_set_epi64(3, 0, 2, 0, 1, 0, 0, 0));
}

/* `groups` times 64 bytes of the stream, from group `group`; WIDE at a time hide the latency of a round. */
static void fill(const struct schedule *s, uint64_t purpose, uint64_t group, int64_t groups, uint64_t *out) {
    const __m512i reverse =
        _mm512_broadcast_i32x4(_mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    const __m512i four = _mm512_set_epi64(4, 0, 4, 0, 4, 0, 4, 0);
    __m512i keys[11], counter = counted(purpose, 4 * group);
    for (int i = 0; i < 11; i++) keys[i] = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)s->keys[i]));
#define ENCRYPT(WIDE)                                                                                                  \
    do {                                                                                                               \
        __m512i blocks[WIDE];                                                                                          \
        _Pragma("GCC unroll 8") for (int i = 0; i < WIDE; i++) {                                                       \
            blocks[i] = _mm512_xor_si512(_mm512_shuffle_epi8(counter, reverse), keys[0]);                              \
            counter = _mm512_add_epi64(counter, four);                                                                 \
        }                                                                                                              \
        _Pragma("GCC unroll 9") for (int r = 1; r < 10; r++)                                                           \
            _Pragma("GCC unroll 8") for (int i = 0; i < WIDE; i++) blocks[i] = _mm512_aesenc_epi128(blocks[i], keys[r]); \
        _Pragma("GCC unroll 8") for (int i = 0; i < WIDE; i++)                                                         \
            _mm512_storeu_si512(out + 8 * i, _mm512_aesenclast_epi128(blocks[i], keys[10]));                           \
        out += 8 * WIDE, groups -= WIDE;                                                                               \
    } while (0)
    while (groups >= 8) ENCRYPT(8);
    if (groups >= 4) ENCRYPT(4);
    if (groups >= 2) ENCRYPT(2);
    if (groups >= 1) ENCRYPT(1);
#undef ENCRYPT
}

/* Products of the low 32 bits, signed. */
#define MUL32(a, b) ((signed_lanes)_mm512_mul_epi32((__m512i)(a), (__m512i)(b)))
typedef uint64_t four __attribute__((vector_size(32)));

/* The sum of all lanes. The intrinsic for it adds signed numbers, which must not overflow. */
static inline uint64_t total_of(__m512i a) {
    const four sum = (four)_mm512_castsi512_si256(a) + (four)_mm512_extracti64x4_epi64(a, 1);
    return sum[0] + sum[1] + sum[2] + sum[3];
}
#define TOTAL(a) total_of((__m512i)(a))

#include "loops.h"

const struct level avx512_level = LEVEL;
#pragma GCC pop_options
#endif
