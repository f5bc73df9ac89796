/* Whether this CPU has the features that the kernels use.
 *
 * Sources: Intel SDM volume 2A (CPUID, XGETBV); Linux arch/arm64/include/uapi/asm/hwcap.h and
 * arch/arm/include/uapi/asm/hwcap.h. Features without a line here are not checked: those that are always there, and
 * RISC-V's with names of several letters, which the auxiliary vector does not show.
 */
#include "internal.h"

enum { WORDS = 6 };

typedef struct feature {
  const char *name;
  uint8_t word; /* of words() below */
  uint8_t bit;
} feature;

#if defined(__x86_64__)
/* Words: leaf 1 ecx; leaf 7 ebx, ecx; leaf 0x80000001 ecx; leaf 7 edx; leaf 7.1 eax. */
static const feature known[] = {
    {"sse3", 0, 0},         {"ssse3", 0, 9},        {"fma", 0, 12},         {"sse4.1", 0, 19},
    {"sse4.2", 0, 20},      {"movbe", 0, 22},       {"popcnt", 0, 23},      {"avx", 0, 28},
    {"f16c", 0, 29},        {"bmi", 1, 3},          {"avx2", 1, 5},         {"bmi2", 1, 8},
    {"avx512f", 1, 16},     {"avx512dq", 1, 17},    {"avx512ifma", 1, 21},  {"avx512cd", 1, 28},
    {"avx512bw", 1, 30},    {"avx512vl", 1, 31},    {"avx512vbmi", 2, 1},   {"avx512vbmi2", 2, 6},
    {"gfni", 2, 8},         {"avx512vnni", 2, 11},  {"avx512bitalg", 2, 12}, {"avx512vpopcntdq", 2, 14},
    {"lzcnt", 3, 5},        {"sse4a", 3, 6},        {"xop", 3, 11},         {"fma4", 3, 16},
    {"cx16", 0, 13},        {"sahf", 3, 0},         {"tbm", 3, 21},         {"avx512vp2intersect", 4, 8},
    {"avx512fp16", 4, 23},  {"avxvnni", 5, 4},      {"avx512bf16", 5, 5},
};

static void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
  __asm__ volatile("cpuid" : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3]) : "0"(leaf), "2"(subleaf));
}

static int words(uint32_t found[WORDS]) {
  uint32_t r[4], highest, saved = 0;
  cpuid(0, 0, r);
  highest = r[0];
  cpuid(1, 0, r);
  found[0] = r[2];
  if (found[0] & 1u << 27) __asm__ volatile("xgetbv" : "=a"(saved) : "c"(0) : "edx");
  if (highest >= 7) {
    cpuid(7, 0, r);
    found[1] = r[1];
    found[2] = r[2];
    found[4] = r[3];
    uint32_t subleaves = r[0];
    if (subleaves >= 1) {
      cpuid(7, 1, r);
      found[5] = r[0];
    }
  }
  cpuid(0x80000001u, 0, r);
  found[3] = r[2];
  /* What the system does not save when it switches threads is not there to use: XCR0. */
  if ((saved & 6) != 6) {
    found[0] &= ~(1u << 12 | 1u << 28 | 1u << 29), found[1] &= ~(1u << 5);
    found[3] &= ~(1u << 11 | 1u << 16), found[5] &= ~(1u << 4);
  }
  if ((saved & 0xe6) != 0xe6) {
    found[1] &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 28 | 1u << 30 | 1u << 31);
    found[2] &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
    found[4] &= ~(1u << 8 | 1u << 23), found[5] &= ~(1u << 5);
  }
  return 1;
}
#elif defined(__aarch64__)
static const feature known[] = {
    {"fp-armv8", 0, 0}, {"neon", 0, 1},   {"aes", 0, 3},   {"crc", 0, 7},    {"lse", 0, 8},
    {"fullfp16", 0, 10}, {"rdm", 0, 12},  {"fcma", 0, 14}, {"complxnum", 0, 14}, {"rcpc", 0, 15},
    {"sha3", 0, 17},    {"dotprod", 0, 20}, {"sve", 0, 22}, {"fp16fml", 0, 23}, {"sve2", 1, 1},
    {"i8mm", 1, 13},    {"bf16", 1, 14},  {"lse2", 0, 25}, {"rcpc-immo", 0, 26}, {"flagm", 0, 27}, {"altnzcv", 1, 7},
    {"fptoint", 1, 8},
};

static int words(uint32_t found[WORDS]) {
  found[0] = (uint32_t)getauxval(16);
  found[1] = (uint32_t)getauxval(26);
  return found[0] != 0;
}
#elif defined(__arm__)
static const feature known[] = {
    {"vfp2", 0, 6}, {"neon", 0, 12}, {"vfp3", 0, 13}, {"vfp4", 0, 16}, {"hwdiv-arm", 0, 17}, {"hwdiv", 0, 18},
    {"d32", 0, 19}, {"fullfp16", 0, 23}, {"dotprod", 0, 24}, {"fp16fml", 0, 25}, {"bf16", 0, 26}, {"i8mm", 0, 27},
};

static int words(uint32_t found[WORDS]) {
  found[0] = (uint32_t)getauxval(16);
  return found[0] != 0;
}
#else
static const feature known[] = {
    {"i", 0, 8}, {"m", 0, 12}, {"a", 0, 0}, {"f", 0, 5}, {"d", 0, 3}, {"c", 0, 2}, {"v", 0, 21},
};

/* Linux reports the letters of the RISC-V ISA: bit 0 is "a". */
static int words(uint32_t found[WORDS]) {
  found[0] = (uint32_t)getauxval(16);
  return found[0] != 0;
}
#endif

const char *et_missing_feature(const char *const *features) {
  uint32_t found[WORDS] = {0};
  if (!words(found)) return NULL;
  for (; *features != NULL; features++)
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
      if (strcmp(known[i].name, *features) == 0 && !(found[known[i].word] >> known[i].bit & 1)) return *features;
  return NULL;
}
